"""What neurons stand for: meanings, polysemanticity, roles, the geometry of keys and values, health."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
