"""Edits of small models for the tests of the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ffnmem as fm

from ..editing.edits import EIFFEL, made


def saved(model: fm.Model, path: Path, **more: Any) -> fm.Edit:
    """A random edit, and its file."""
    edit = made(model, fact=EIFFEL, **more)
    edit.save(path)
    return edit
