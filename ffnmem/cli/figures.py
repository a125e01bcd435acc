"""The figures of ``--plot``: their names checked before any work, and each written in one go."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._version import __version__
from ..core.files import write_whole
from .guard import note

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def save_figure(result: object, path: Path, **options: Any) -> None:
    """Write all pictures of a result in one go; ``options`` as :func:`ffnmem.plots.figure` takes them."""
    from ..plots.figures import figure

    write_figure(figure(result, **options), path)


def save_axes(draws: Sequence[Callable[..., Axes]], path: Path, columns: int = 0) -> None:
    """Pictures that take ``ax=``, side by side in rows of ``columns``; the file in one go."""
    from ..plots.figures import arrange

    write_figure(arrange(draws, columns), path)


def write_figure(figure: Figure, path: Path) -> None:
    """Write a figure that says what drew it: only such a one is ever replaced."""
    buffer, form = io.BytesIO(), path.suffix[1:].lower()
    said = {"Software" if form == "png" else "Creator": f"ffnmem {__version__}"}
    figure.savefig(buffer, format=form, dpi=150, metadata=said)
    write_whole(path, buffer.getvalue())
    note(f"wrote {path}")
