"""ffnmem: read and rewrite the key-value memories in the feed-forward networks of language models.

Importing it is cheap: torch and the models load with the first name that needs them. The names are in ``__init__.pyi``.
"""

import lazy_loader

from ._version import __version__ as __version__

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
