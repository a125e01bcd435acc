"""This room's templates, filled in."""

from __future__ import annotations

from functools import partial

from ..show import framing, rendering

ROOM = "ffnmem.reports"

render = partial(rendering.render, room=ROOM)
display = partial(framing.display, room=ROOM)
