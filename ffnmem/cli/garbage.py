"""How often the process of a command looks for garbage.

Of half a million objects that torch and transformers make as they are imported none is garbage, and looking through
them again and again, and once more at the end, would be a quarter of a short command's time.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

USUAL = gc.get_threshold()
SELDOM = (10_000, 10, 10)
"""After so many new objects, where Python itself waits for 700."""


@contextmanager
def seldom_collected() -> Iterator[None]:
    """A whole process: searches are seldom until :func:`set_up`, and what is left at the end is left to the system."""
    gc.set_threshold(*SELDOM)
    try:
        yield
    finally:
        set_up()
        gc.freeze()


def set_up() -> None:
    """What the process works with is there: from here on it is left out, and searches are as usual.

    Does nothing outside :func:`seldom_collected`.
    """
    if gc.get_threshold() == SELDOM:
        gc.freeze()
        gc.set_threshold(*USUAL)
