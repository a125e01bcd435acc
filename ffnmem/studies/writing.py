"""A study as files and as a page: CSV, PNG, JSON and HTML, each whole or not at all."""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Canvas

from .._version import __version__
from ..checked_files import with_checksum
from ..errors import FileError
from ..files import write_whole
from ..folders import Kind
from ..reports.templating import render
from ..show.rendering import MINUS
from .study import ABOUT, PAGE, Figure, Study, Table

STORE = "store"  # of the corpus, where the study scanned it
FOLDER = Kind(ABOUT, "ffnmem study", 1, "the study", older=frozenset({"study", "ffnmem", "settings", "tables"}))
DPI = 150
ROWS = 60  # of a table on the page; the file has all
TEXTS = ("prefix", "context")  # columns of running text, in which spaces are spaces


@dataclass(frozen=True)
class Cell:
    """One cell of a table on a page: a number as text, a token, or running text."""

    kind: str
    text: str
    value: float | None = None


@dataclass(frozen=True)
class Shown:
    """A table as a page shows it."""

    table: Table
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

    @property
    def hidden(self) -> int:
        return len(self.table.frame) - len(self.rows)


def write_study(study: Study, folder: Path) -> None:
    """Write a study's files into a folder that exists. Raises FileError.

    Everything is drawn before anything is written. While the files are replaced there is no page: a folder without
    ``index.html`` is not whole.
    """
    drawings = [png(figure) for figure in study.figures]
    shown_page = page(study, drawings)
    about = json.dumps(described(study), ensure_ascii=False, allow_nan=False, indent=1) + "\n"
    files: dict[str, str | bytes] = {ABOUT: about}
    files |= {f"{table.name}.csv": table.frame.to_csv(index=False, lineterminator="\n") for table in study.tables}
    files |= {f"{figure.name}.png": drawing for figure, drawing in zip(study.figures, drawings, strict=True)}
    try:
        (folder / PAGE).unlink(missing_ok=True)
    except OSError as error:
        raise FileError(f"cannot replace {folder / PAGE}: {error.strerror or error}") from None
    for name, content in files.items():
        write_whole(folder / name, content)
    write_whole(folder / PAGE, shown_page)


def described(study: Study) -> dict[str, Any]:
    """What a study is, without its tables, in what strict JSON has."""
    about = {
        "kind": FOLDER.kind,
        "schema": FOLDER.schema,
        "study": study.name,
        "paper": study.paper,
        "settings": strict(study.settings),
        "published": strict(study.published),
        "provenance": strict(study.provenance),
        "ffnmem": __version__,
        "tables": {
            table.name: {"title": table.title, "note": table.note, "rows": len(table.frame)} for table in study.tables
        },
        "figures": {figure.name: {"title": figure.title, "note": figure.note} for figure in study.figures},
    }
    return with_checksum(about)


def strict(value: Any) -> Any:
    """``value`` with what JSON lacks replaced: numbers that are not finite become None, NumPy's become Python's."""
    if isinstance(value, Mapping):
        return {str(key): strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    if hasattr(value, "item"):
        return strict(value.item())
    return str(value)


def png(figure: Figure) -> bytes:
    """A figure drawn on a canvas of its own."""
    canvas = Canvas(figsize=figure.size, layout="constrained")
    figure.draw(canvas.add_subplot())
    buffer = io.BytesIO()
    canvas.savefig(buffer, format="png", dpi=DPI)
    return buffer.getvalue()


def page(study: Study, drawings: list[bytes]) -> str:
    """The page: every figure with its caption, every table (the first rows of long ones), settings and provenance."""
    pictures = [
        (figure, "data:image/png;base64," + base64.b64encode(drawing).decode("ascii"))
        for figure, drawing in zip(study.figures, drawings, strict=True)
    ]
    return render(
        "study.html",
        study=study,
        version=__version__,
        pictures=pictures,
        tables=[shown(table, ROWS) for table in study.tables],
        settings={name: flat(value) for name, value in study.settings.items()},
        published={name: flat(value) for name, value in study.published.items()},
        provenance={name: flat(value) for name, value in study.provenance.items()},
    )


def flat(value: Any) -> Any:
    """A setting on one line."""
    return ", ".join(str(item) for item in value) if isinstance(value, list | tuple) else value


def shown(table: Table, limit: int) -> Shown:
    """The first rows of a table as cells."""
    columns = tuple(str(name) for name in table.frame.columns)
    head = table.frame.head(limit)
    rows = tuple(
        tuple(cell(name, value) for name, value in zip(columns, row, strict=True))
        for row in head.itertuples(index=False, name=None)
    )
    return Shown(table, columns, rows)


def cell(column: str, value: Any) -> Cell:
    """A value of a column as a cell: whole numbers with commas, others with four significant digits."""
    if isinstance(value, str):
        kind = "running" if column in TEXTS else "token" if column.endswith("token") else "word"
        return Cell(kind, value)
    if value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value)):
        return Cell("number", "–")
    if isinstance(value, bool | np.bool_):
        return Cell("word", "yes" if value else "no")
    if isinstance(value, int) or hasattr(value, "__index__"):
        text = f"{int(value):,}" if column not in ("layer", "neuron") else str(int(value))
        return Cell("number", text.replace("-", MINUS), float(value))
    return Cell("number", f"{float(value):.4g}".replace("-", MINUS), float(value))
