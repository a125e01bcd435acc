"""Pages of HTML that need nothing but a browser: prompts, circuits, neurons of a store, edits."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
