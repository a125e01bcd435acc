"""matplotlib pictures of results. Each takes ``ax=None``, draws on it or on a new figure, and returns the Axes."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
