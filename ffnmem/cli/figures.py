"""The figures of ``--plot``: their names checked before any work, and each written in one go."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.errors import InputError
from ..core.files import check_destination, user_path, write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ..prompts.attribution import Attribution
    from ..prompts.causal import CausalScores
    from ..prompts.paths import PathAttribution


FORMATS = (".png", ".svg", ".pdf")


def check_figure(file: str) -> Path:
    """The path of a figure to write; raises InputError or FileError before any work is done for nothing."""
    path = user_path(file)
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"--plot {file}: a figure's name ends in {', '.join(FORMATS[:-1])} or {FORMATS[-1]}")
    return check_destination(path)


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
    buffer = io.BytesIO()
    figure.savefig(buffer, format=path.suffix[1:].lower(), dpi=150)
    write_whole(path, buffer.getvalue())
