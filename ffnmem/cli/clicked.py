"""What the list of commands says of those that still run by click."""

from __future__ import annotations

from typing import Any

from .click_guard import Commands
from .manual import WIDTH


def __getattr__(name: str) -> Any:
    from . import CLICKED

    if name.startswith("__"):
        raise AttributeError(name)

    def listed() -> None: ...

    listed.__doc__ = Commands(CLICKED)[name.replace("_", "-")].get_short_help_str(WIDTH)
    return listed
