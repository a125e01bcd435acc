"""Scans: one pass over a corpus, and the store of what every neuron did."""

from .merging import merge as merge
from .scan import scan as scan
from .store import Store as Store
from .store import open_store as open_store

__all__ = ["Store", "merge", "open_store", "scan"]
