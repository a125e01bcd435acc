"""The mathematics of one FFN in plain tensors: activations, both kinds of FFN, its memories, where parameters are."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
