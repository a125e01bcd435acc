"""Scans: one pass over a corpus, and the store of what every neuron did."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
