"""ffnmem: read and rewrite the key-value memories in the feed-forward networks of language models.

Importing it is cheap: torch and the models load with the first name that needs them. The names are in ``__init__.pyi``.
"""

from pathlib import Path

import lazy_loader

from ._version import __version__ as __version__

_look_up, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name):
    try:
        return _look_up(name)
    except AttributeError:
        subpackages = [
            f"ffnmem.{stub.parent.name}.{asked}"
            for stub in sorted(Path(__file__).parent.glob("*/__init__.pyi"))
            for asked in dict.fromkeys((name, name.removeprefix("plot_")))
            if f" as {asked}\n" in stub.read_text("utf-8")
        ]
        where = f": it is {' or '.join(subpackages)}" if subpackages else ""
        raise AttributeError(f"module 'ffnmem' has no attribute {name!r}{where}") from None
