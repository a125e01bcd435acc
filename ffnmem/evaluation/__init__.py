"""Evaluation: what edits of many facts do to what was meant, to what follows from it, and to everything else."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
