"""What a study is: a paper's protocol run on a model, as tables and figures with their settings beside the paper's.

Each study is a module of this subpackage, of its name, with ``PAPER`` (the citation, with its arXiv id),
``PUBLISHED`` (the paper's own settings and findings, by name), and ``study(model, store, *, progress=None, seed=0, …)
-> Study``, whose other keywords are its settings. That function reads a finished store of the model;
``progress(phase, done, total)`` is told how far it is, with a phase of ``ffnmem.core.progress``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from ..core import sheets
from ..core.errors import InputError, check_choice, listed, quoted
from ..core.json_values import plain
from ..core.number_text import format_value
from ..core.progress import Phase, Progress
from ..core.token_text import printable
from ..core.types import STUDIES as STUDIES
from ..show.result import Result

PAGE, ABOUT = "index.html", "study.json"
"""Of a study's folder, beside a file for each table and figure."""
SHOWN = ("model", "store", "progress", "seed")  # of a study's function, what is no setting


@dataclass(frozen=True, eq=False)
class StudyTable:
    """One table of a study, written as ``<name>.csv``.

    Attributes:
        name: of the file, such as ``"agreement"``.
        frame: the rows.
        title: what it is, on one line.
        note: how to read it: what was counted over what, and how the paper has it.
    """

    name: str
    frame: pd.DataFrame
    title: str
    note: str = ""


def tables_of(frames: Mapping[str, pd.DataFrame], words: Mapping[str, tuple[str, str]]) -> tuple[StudyTable, ...]:
    """Tables in the order of their ``words``: by name, title and note."""
    return tuple(StudyTable(name, frames[name], title, note) for name, (title, note) in words.items())


@dataclass(frozen=True, eq=False)
class Figure:
    """One figure of a study, written as ``<name>.png``.

    Attributes:
        name: of the file.
        title: the caption's first sentence.
        draw: draws on the Axes given, and returns them.
        note: the rest of the caption: what the paper's figure shows.
        size: inches, width and height.
    """

    name: str
    title: str
    draw: Callable[[Axes], Axes]
    note: str = ""
    size: tuple[float, float] = (7.0, 3.8)


@dataclass(frozen=True, eq=False, repr=False)
class Study(Result):
    """What a study found.

    Attributes:
        name: its name in :data:`STUDIES`.
        paper: authors, year, title and arXiv id.
        tables, figures: in the order in which they are shown. ``summary``, if there is one, comes first: one row a
            layer with the main numbers, which the command line prints.
        settings: everything that the numbers depend on besides model and store.
        provenance: of model and store.
        published: the paper's own settings and findings, by name, to compare with.
        conclusion: what was found, in a sentence or two.
    """

    name: str
    paper: str
    tables: tuple[StudyTable, ...]
    figures: tuple[Figure, ...]
    settings: Mapping[str, Any]
    provenance: Mapping[str, Any]
    published: Mapping[str, Any] = field(default_factory=dict)
    conclusion: str = ""

    no_file = "fm.studies.run writes its folder"

    def table(self, name: str) -> pd.DataFrame:
        """The rows of a table by its name; raises InputError."""
        check_choice("table", name, [table.name for table in self.tables])
        return next(table.frame for table in self.tables if table.name == name)

    def figure(self, name: str) -> Figure:
        """A figure by its name; raises InputError."""
        check_choice("figure", name, [figure.name for figure in self.figures])
        return next(figure for figure in self.figures if figure.name == name)

    def plot(self, name: str, ax: Axes | None = None) -> Axes:
        """Draw a figure on Axes, or on those of a new figure. Raises InputError."""
        from ..plots.shapes import axes_for

        figure = self.figure(name)
        return figure.draw(axes_for(ax, figure.size))

    def to_frame(self) -> pd.DataFrame:
        """The first table: the main numbers by layer."""
        return self.tables[0].frame

    def to_dict(self, top: int | None = None) -> dict[str, Any]:
        """Plain values, ready for JSON, with the rows of every table."""
        tables = {
            table.name: {"title": table.title, "note": table.note, "rows": plain(table.frame)} for table in self.tables
        }
        names = ("paper", "conclusion", "settings", "published", "provenance")
        about = {name: getattr(self, name) for name in names}
        figures = {figure.name: {"title": figure.title, "note": figure.note} for figure in self.figures}
        values: dict[str, Any] = plain({"study": self.name, **about, "tables": tables, "figures": figures})
        return values

    def summary(self) -> str:
        model = printable(str(self.provenance.get("model", "?")))
        return f"{self.name!r} of {model}: {len(self.tables)} tables, {len(self.figures)} figures"

    def sheet(self, folder: Path | None = None) -> sheets.Sheet:
        """The first table, and the names of all; ``folder``: where they were written."""
        first = self.tables[0]
        frame = first.frame
        columns = [sheets.Column(str(name), left=False, stays=place == 0) for place, name in enumerate(frame.columns)]
        shown = sheets.rows(*columns)
        for row in frame.to_dict("records"):
            shown.add(*map(format_value, row.values()))
        tables, figures = ([one.name for one in some] for some in (self.tables, self.figures))
        facts: dict[str, sheets.Content] = {
            "study": f"{self.name}: {self.paper}",
            "tables": ", ".join(tables),
            "figures": ", ".join(figures),
        }
        if folder is not None:
            facts = {
                "page": str(folder / PAGE),
                "tables": ", ".join(f"{name}.csv" for name in tables),
                "figures": ", ".join(f"{name}.png" for name in figures),
                "settings": str(folder / ABOUT),
            }
        found = sheets.Words.of(self.conclusion) if self.conclusion else None
        return sheets.Sheet.of(
            found, shown.table(), sheets.Facts(facts), sheets.Origin(self.provenance), title=first.title
        )


def study_module(name: str) -> ModuleType:
    """The module of a study; raises InputError for an unknown name."""
    check_choice("study", name, STUDIES)
    return import_module(f".{name}", __package__)


def setting_names(name: str) -> list[str]:
    """The settings that a study takes."""
    return [parameter for parameter in inspect.signature(study_module(name).study).parameters if parameter not in SHOWN]


def check_settings(name: str, settings: Mapping[str, Any]) -> None:
    """Raise InputError for a setting that a study does not take."""
    taken = setting_names(name)
    unknown = [setting for setting in settings if setting not in taken]
    if unknown:
        offer = f"it takes {listed(taken, 20)}" if taken else "it takes none"
        raise InputError(f"study {quoted(name)} has no setting {listed([repr(u) for u in unknown])}: {offer}")


def report_progress(progress: Progress | None, phase: Phase, done: int, total: int) -> None:
    """Tell a study's progress, if anybody listens."""
    if progress is not None:
        progress(phase, done, total)
