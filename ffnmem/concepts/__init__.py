"""Concepts: which neurons tell two sets of texts apart, and what a model writes with them held."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
