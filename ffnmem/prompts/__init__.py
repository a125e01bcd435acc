"""Prompts: which memories wrote an answer, at one position or along all paths through attention."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
