"""Templates to HTML: what fills in the templates of this room."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from typing import Any

from markupsafe import Markup

from ..show import notebook

ROOM = "ffnmem.pages"
TABLES = "tables.js"


def render(template: str, *, scripts: tuple[str, ...] = (), **values: Any) -> str:
    """A page, filled in, with the script that sorts and filters its tables and ``scripts`` of this room; its policy
    admits these and no other."""
    found = [script_of(TABLES, notebook.HERE), *map(script_of, scripts)]
    return notebook.render(
        template,
        room=ROOM,
        scripts=[Markup(script) for script in found],  # ours, and without anything filled in
        script_hashes=[content_hash(script) for script in found],
        **values,
    )


def script_of(name: str, room: str = ROOM) -> str:
    """A script of this room, or of another."""
    return files(room).joinpath("templates", name).read_text("utf-8")


def content_hash(script: str) -> str:
    """The source expression of a content security policy that admits this script and no other."""
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"
