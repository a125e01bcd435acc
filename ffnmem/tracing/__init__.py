"""Causal tracing: where in a model, and at which token, a fact is recalled."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
