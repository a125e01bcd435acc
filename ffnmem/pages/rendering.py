"""Templates to HTML: what fills in the templates of this room."""

from __future__ import annotations

from functools import partial

from ..show import notebook

ROOM = "ffnmem.pages"

render = partial(notebook.render, room=ROOM)
