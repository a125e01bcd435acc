"""Comparing: two models memory by memory, before and after an edit, two checkpoints, two seeds."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
