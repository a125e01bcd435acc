"""Templates to HTML: what fills in the templates of this room."""

from __future__ import annotations

import base64
import hashlib
from functools import partial
from importlib.resources import files

from ..show import notebook

ROOM = "ffnmem.pages"

render = partial(notebook.render, room=ROOM)


def script_of(name: str) -> str:
    """A script of this room."""
    return files(ROOM).joinpath("templates", name).read_text("utf-8")


def content_hash(script: str) -> str:
    """The source expression of a content security policy that admits this script and no other."""
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"
