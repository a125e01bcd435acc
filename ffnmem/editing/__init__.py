"""Editing: second moments of coefficients, the edits that they shape, and what an edit changes."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
