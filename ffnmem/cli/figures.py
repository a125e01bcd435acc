"""The figures of ``--plot``: their names checked before any work, and each written in one go."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .._version import __version__
from ..core.files import write_whole
from .guard import note

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ..prompts.attribution import Attribution
    from ..prompts.causal import CausalScores
    from ..prompts.paths import PathAttribution


def save_figure(found: Attribution | PathAttribution | CausalScores, path: Path, top: int) -> None:
    """Draw the layers (or the map of layers and positions) beside the top neurons, and write the file in one go."""
    from matplotlib.figure import Figure

    from ..plots.attribution import layers, map, neurons
    from ..prompts.attribution import Attribution

    top = min(top, 40)  # more bars than that cannot be told apart
    figure = Figure(figsize=(11, max(4.2, 0.9 + 0.26 * top)), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    if isinstance(found, Attribution):
        layers(found, left)
    else:
        map(found, left)
    neurons(found, right, top)
    right.set_title("The memories behind it", loc="left")  # the left title names the answer, and has room for it
    write_figure(figure, path)


def save_axes(
    draws: Sequence[Callable[[Axes], object]], path: Path, columns: int = 2, height: float = 3.8, width: float = 6.6
) -> None:
    """One picture a function, which is given its Axes, side by side in rows of ``columns``; the file in one go.

    Each is ``height`` inches high and ``width`` wide.
    """
    from matplotlib.figure import Figure

    across = min(columns, len(draws))
    down = -(-len(draws) // across)
    figure = Figure(figsize=(width * across, height * down), layout="constrained")
    for index, draw in enumerate(draws, start=1):
        draw(figure.add_subplot(down, across, index))
    write_figure(figure, path)


def write_figure(figure: Figure, path: Path) -> None:
    """Write a figure that says what drew it: only such a one is ever replaced."""
    buffer, form = io.BytesIO(), path.suffix[1:].lower()
    said = {"Software" if form == "png" else "Creator": f"ffnmem {__version__}"}
    figure.savefig(buffer, format=form, dpi=150, metadata=said)
    write_whole(path, buffer.getvalue())
    note(f"wrote {path}")
