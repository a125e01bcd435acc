"""Facts: what a model may know, as prompts, targets, paraphrases and neighbours."""

from .fact import Fact
from .reading import load_facts, write_facts

__all__ = ["Fact", "load_facts", "write_facts"]
