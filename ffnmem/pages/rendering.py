"""Templates to HTML: the one place where numbers, tokens and provenance become text for a page, and its frame."""

from __future__ import annotations

from functools import partial

from ..show import notebook

ROOM = "ffnmem.pages"

render = partial(notebook.render, room=ROOM)
display = partial(notebook.display, room=ROOM)
