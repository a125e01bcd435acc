"""HTML: the report of one prompt, reports of neurons, and what notebooks show of results."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .neurons import neuron_report as neuron_report
    from .report import report as report

__all__ = ["neuron_report", "report"]

MODULES = {"neuron_report": "neurons", "report": "report"}


def __getattr__(name: str) -> Any:
    """Loaded when asked for: a table on a terminal needs neither stores nor figures."""
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f".{MODULES[name]}", __name__), name)
    globals()[name] = found  # in place of the module of that name, which the import put there
    return found
