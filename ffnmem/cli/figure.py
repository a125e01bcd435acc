"""The figure of ``ffnmem attribute --plot``."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import FileError, InputError

if TYPE_CHECKING:
    from ..attribution import Attribution

FORMATS = (".png", ".svg", ".pdf")


def check_figure(file: str) -> Path:
    """The path of a figure to write; raises InputError or FileError before any work is done for nothing."""
    path = Path(file).expanduser()
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"--plot {file}: a figure's name ends in {', '.join(FORMATS[:-1])} or {FORMATS[-1]}")
    if not path.parent.is_dir():
        raise FileError(f"cannot write {file}: there is no folder {path.parent}")
    if path.exists() and not path.is_file():
        raise FileError(f"{file} is no ordinary file: name a new file or one to replace")
    return path


def save_figure(found: Attribution, path: Path, top: int) -> None:
    """Draw the layers beside the top neurons, without a window, and write the file in one go."""
    from matplotlib.figure import Figure

    from ..plots import plot_layers, plot_neurons

    top = min(top, 40)  # more bars than that cannot be told apart
    figure = Figure(figsize=(11, max(4.2, 0.9 + 0.26 * top)), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    plot_layers(found, left)
    plot_neurons(found, right, top)
    buffer = io.BytesIO()
    figure.savefig(buffer, format=path.suffix[1:].lower(), dpi=150)
    try:
        path.write_bytes(buffer.getvalue())
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror or error}") from None
