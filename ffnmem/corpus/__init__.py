"""Corpora: text from anywhere as documents, tokenised once into files, cut into the batches that a pass reads."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
