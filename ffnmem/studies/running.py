"""``run``: a paper's protocol on a model and a corpus, and everything written into one folder."""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from matplotlib.ticker import ScalarFormatter

from .._version import __version__
from ..core.checked_files import with_checksum
from ..core.defaults import STUDY_EXAMPLES
from ..core.errors import FileError, InputError, quoted
from ..core.files import user_path, write_whole
from ..core.folders import Kind, claimed
from ..core.json_values import plain
from ..core.progress import Progress
from ..core.run_folders import read_run
from ..core.types import Seed, checked
from ..models.model import Model
from ..models.turns import in_turn
from ..pages.links import Links, nowhere, to_site
from ..pages.rendering import render
from ..scanning.scanning import scan
from ..scanning.store import Store
from ..show.notebook import MINUS, percent
from ..show.records import csv_text
from .study import ABOUT, PAGE, Figure, Study, StudyTable, check_settings, study_module

# A study as files and as a page: CSV, PNG, JSON and HTML, each whole or not at all.

STORE = "store"  # of the corpus, where the study scanned it
FOLDER = Kind(ABOUT, "ffnmem study", 1, "the study")
DPI = 150
DARK: Any = {
    **{f"{part}.facecolor": "#181c21" for part in ("figure", "axes", "savefig", "legend")},
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.titlecolor", "xtick.color", "ytick.color"), "#e8eaed"),
    "axes.edgecolor": "#8a929d",
    "grid.color": "#2c323a",
}
"""Of figures on dark screens: the colours of page.css there."""
ROWS = 60  # of a table on the page; the file has all
SHARES = frozenset({"share", "rate", "probability"})  # words of names of columns that read in percent
TEXTS = ("prefix", "context")  # columns of running text, in which spaces are spaces


@dataclass(frozen=True)
class PageCell:
    """One cell of a table on a page: a number as text, a token, or running text; ``address``: where it leads."""

    kind: str
    text: str
    value: float | None = None
    address: str = ""


@dataclass(frozen=True)
class PageTable:
    """A table as a page shows it."""

    table: StudyTable
    columns: tuple[str, ...]
    rows: tuple[tuple[PageCell, ...], ...]

    @property
    def hidden(self) -> int:
        return len(self.table.frame) - len(self.rows)


def write_study(study: Study, folder: Path, links: Links = nowhere) -> None:
    """Write a study's files into a folder that exists; ``links``: where its page's neurons lead. Raises FileError.

    Everything is drawn before anything is replaced. While files are replaced there is no page: a folder without
    ``index.html`` is not whole. A figure that cannot be drawn leaves the tables of a new study.
    """
    tables = {f"{table.name}.csv": csv_text(table.frame) for table in study.tables}
    try:
        drawings = [png(figure) for figure in study.figures]
        dark = [png(figure, dark=True) for figure in study.figures]
    except Exception:
        if not (folder / PAGE).exists():
            write_all(folder, tables)
        raise
    shown_page = page(study, drawings, dark, links)
    about = json.dumps(described(study), ensure_ascii=False, allow_nan=False, indent=1) + "\n"
    try:
        (folder / PAGE).unlink(missing_ok=True)
    except OSError as error:
        raise FileError(f"cannot replace {folder / PAGE}: {error.strerror or error}") from None
    pictures = {f"{figure.name}.png": drawing for figure, drawing in zip(study.figures, drawings, strict=True)}
    write_all(folder, {ABOUT: about, **tables, **pictures, PAGE: shown_page})


def write_all(folder: Path, files: Mapping[str, str | bytes]) -> None:
    """Write files into a folder, each whole, in their order."""
    for name, content in files.items():
        write_whole(folder / name, content)


def described(study: Study) -> dict[str, Any]:
    """What a study is, without its tables, in what strict JSON has."""
    about = {
        "kind": FOLDER.kind,
        "schema": FOLDER.schema,
        "study": study.name,
        "paper": study.paper,
        "conclusion": study.conclusion,
        "settings": plain(study.settings),
        "published": plain(study.published),
        "provenance": plain(study.provenance),
        "ffnmem": __version__,
        "tables": {
            table.name: {"title": table.title, "note": table.note, "rows": len(table.frame)} for table in study.tables
        },
        "figures": {figure.name: {"title": figure.title, "note": figure.note} for figure in study.figures},
    }
    return with_checksum(about)


def png(figure: Figure, *, dark: bool = False) -> bytes:
    """A figure drawn on a canvas of its own, on a light ground or on the ``dark`` one of pages."""
    with mpl.rc_context(DARK if dark else {}):
        canvas = Canvas(figsize=figure.size, layout="constrained")
        figure.draw(canvas.add_subplot())
        buffer = io.BytesIO()
        canvas.savefig(buffer, format="png", dpi=DPI)
    return buffer.getvalue()


def figure_in_words(figure: Figure) -> str:
    """What a figure shows, for those who do not see it: its title, its axes, and from where to where each line goes."""
    ax = figure.draw(Canvas(figsize=figure.size).add_subplot())
    said = ": ".join(dict.fromkeys(text for text in (figure.title, ax.get_title(loc="left") or ax.get_title()) if text))
    axes = " by ".join(text for text in (ax.get_ylabel(), ax.get_xlabel()) if text)
    reads = ax.yaxis.get_major_formatter()
    parts = []
    for drawn, name in zip(*ax.get_legend_handles_labels(), strict=True):
        line = drawn[0] if isinstance(drawn, ErrorbarContainer) else drawn
        values = np.asarray(line.get_ydata() if isinstance(line, Line2D) else [], float)
        values = values[np.isfinite(values)]
        if len(values):
            first, last, low, high = (
                f"{value:,.4g}" if isinstance(reads, ScalarFormatter) else str(reads(value))
                for value in (values[0], values[-1], values.min(), values.max())
            )
            parts.append(
                f"{name}: {first} throughout"
                if low == high
                else f"{name}: {first} to {last}, lowest {low}, highest {high}"
            )
    return flowing_text(". ".join(text for text in (said, axes, *parts) if text))


def flowing_text(text: str) -> str:
    """A text on one line."""
    return " ".join(text.split())


def page(study: Study, drawings: Sequence[bytes], dark: Sequence[bytes] = (), links: Links = nowhere) -> str:
    """The page: every figure with its caption, every table (the first rows of long ones), settings and provenance.

    ``dark``: the figures for dark screens, if they were drawn. ``links``: where neurons lead.
    """
    pictures = [
        (figure, embedded(drawing), embedded(other) if other else "", figure_in_words(figure))
        for figure, drawing, other in zip_longest(study.figures, drawings, dark)
    ]
    return render(
        "study.html",
        study=study,
        version=__version__,
        pictures=pictures,
        tables=[page_table(table, ROWS, links) for table in study.tables],
        settings={name: flat(value) for name, value in study.settings.items()},
        published={name: flat(value) for name, value in study.published.items()},
        provenance={name: flat(value) for name, value in study.provenance.items()},
    )


def embedded(drawing: bytes) -> str:
    """A picture as the address of itself."""
    return "data:image/png;base64," + base64.b64encode(drawing).decode("ascii")


def flat(value: Any) -> Any:
    """A setting on one line."""
    return ", ".join(str(item) for item in value) if isinstance(value, list | tuple) else value


def page_table(table: StudyTable, limit: int, links: Links = nowhere) -> PageTable:
    """The first rows of a table as cells; a neuron beside its layer leads to where ``links`` has it."""
    columns = tuple(str(name) for name in table.frame.columns)
    head = table.frame.head(limit)
    rows = []
    for row in head.itertuples(index=False, name=None):
        cells = {name: cell(name, value) for name, value in zip(columns, row, strict=True)}
        if "layer" in cells and "neuron" in cells:
            layer, neuron = cells["layer"].value, cells["neuron"].value
            if layer is not None and neuron is not None:
                cells["neuron"] = replace(cells["neuron"], address=links(int(layer), int(neuron)))
        rows.append(tuple(cells.values()))
    return PageTable(table, columns, tuple(rows))


def cell(column: str, value: Any) -> PageCell:
    """A value of a column as a cell: whole numbers with commas, shares in percent, others with four significant
    digits."""
    if isinstance(value, str):
        kind = "running" if column in TEXTS else "token" if column.endswith("token") else "word"
        return PageCell(kind, value)
    if value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value)):
        return PageCell("number", "–")
    if isinstance(value, bool | np.bool_):
        return PageCell("word", "yes" if value else "no")
    if isinstance(value, int) or hasattr(value, "__index__"):
        text = f"{int(value):,}" if column not in ("layer", "neuron") else str(int(value))
        return PageCell("number", text.replace("-", MINUS), float(value))
    number = float(value)
    if not SHARES.isdisjoint(column.split("_")) and 0 <= number <= 1:
        return PageCell("number", percent(number, 1), number)
    return PageCell("number", f"{number:.4g}".replace("-", MINUS), number)


# `study`: scan a corpus if need be, run a paper's protocol on it, and write everything into one folder.


@checked
@in_turn
def run(
    name: str,
    model: Model,
    corpus: Any,
    out: str | Path,
    *,
    seed: Seed = 0,
    scan_options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    site: str | Path | None = None,
    **settings: Any,
) -> Study:
    """Run the protocol of a paper on a model, and write its tables, figures and settings.

    Args:
        name: ``"geva2021"`` (keys as patterns, values as predictions, how layers compose them), ``"voita2023"`` (dead,
            token-detecting and positional neurons), ``"gurnee2024"`` (roles of neurons).
        model: from :func:`ffnmem.load`.
        corpus: whatever :func:`ffnmem.scan` reads, scanned into ``out/store`` (a scan that was stopped goes on there, a
            finished one is used as it is); or a store of this model.
        out: the folder for ``index.html``, ``study.json``, one CSV a table and one PNG a figure; made if missing. An
            earlier run of the same study there is replaced, and anything else refused. A folder without ``index.html``
            is of a run that was stopped: the same call finishes it.
        seed: of every random choice, the scan's too.
        scan_options: of :func:`ffnmem.scan`, such as ``{"k": 50, "context": 64}``; by default k is 25.
        progress: called as (phase, done, total) by scan and study.
        site: the folder of a site of the model's neurons (:func:`ffnmem.pages.site`), to which the page's neurons lead.
        settings: of that study; its function in ``ffnmem.studies`` documents them.

    Returns:
        A :class:`Study`: ``.tables``, ``.figures``, ``.table(name)``, ``.plot(name)``, ``.settings``, ``.published``.

    Raises:
        InputError: an unknown study or setting, another model's store or site, or options for a scan that is not
            needed.
        FileError: no site, a folder that cannot be written or holds something else, or as :func:`ffnmem.scan`.
    """
    module = study_module(name)
    check_settings(name, settings)
    links = to_site(site, user_path(out) / PAGE, model.fingerprint)
    if isinstance(corpus, Store):
        if scan_options:
            raise InputError(f"{corpus.folder} is scanned already: leave out scan_options {sorted(scan_options)}")
        corpus.check_model(model)
    with claimed(out, FOLDER, {"study": name, "ffnmem": __version__}, beside=(STORE,)) as folder:
        held = read_run(folder, FOLDER)
        if held.get("study") != name:
            raise FileError(f"{out} holds the study {quoted(held.get('study'))}: name another folder for {name!r}")
        if isinstance(corpus, Store):
            store = corpus
        else:
            options = {"k": STUDY_EXAMPLES, "seed": seed, **(scan_options or {})}
            store = scan(model, corpus, folder / STORE, progress=progress, **options)
        found = module.study(model, store, progress=progress, seed=seed, **settings)
        assert isinstance(found, Study)
        write_study(found, folder, links)
    return found
