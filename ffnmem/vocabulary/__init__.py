"""Keys and values in token space: ``project`` and its nulls, the neurons behind a token, and stored projections."""

from .nulls import projection_null
from .projection import project, promoted_tokens
from .promoting import promoters
from .scoring import BLOCK, Extremes, Scorer, extremes
from .searching import search_projection
from .storing import read_projection
from .vectors import BASES, SIDES, SIGNS, folded, key_vectors, value_vectors

__all__ = [
    "BASES",
    "BLOCK",
    "SIDES",
    "SIGNS",
    "Extremes",
    "Scorer",
    "extremes",
    "folded",
    "key_vectors",
    "project",
    "projection_null",
    "promoted_tokens",
    "promoters",
    "read_projection",
    "search_projection",
    "value_vectors",
]
