"""Studies: the protocols of papers, run on any model, as tables and figures to compare with theirs."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
