"""Models: the only room that touches TransformerLens and Hugging Face classes."""

from .ffn_view import FFN
from .loading import load
from .model import Model

__all__ = ["FFN", "Model", "load"]
