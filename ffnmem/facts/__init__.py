"""Facts: what a model may know, as prompts, targets, paraphrases and neighbours.

``facts.known`` and ``facts.asking``, which ask a model, are imported from there: reading facts needs no torch.
"""

from .fact import Fact, Probe
from .portability import with_portability
from .reading import load_facts, write_facts

__all__ = ["Fact", "Probe", "load_facts", "with_portability", "write_facts"]
