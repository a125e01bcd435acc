"""Pictures by name. Plots stand above the results that they draw, so a result names its picture and imports none."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any


def picture(name: str) -> Callable[..., Any]:
    """The function of :mod:`ffnmem.plots` of that name; matplotlib is loaded with it."""
    return getattr(import_module("ffnmem.plots"), name)
