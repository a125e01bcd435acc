"""What a study is: a paper's protocol run on a model, as tables and figures with its numbers beside the paper's.

Each study is a module of this subpackage, of its name, with ``PROTOCOL`` (a :class:`StudyProtocol`) and ``study(model,
store, *, progress=None, seed=0, …) -> Study``, whose other keywords are its settings. That function reads a finished
store of the model; ``progress(phase, done, total)`` is told how far it is, with a phase of ``ffnmem.core.progress``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from ..core.errors import InputError, check_choice, listed, quoted
from ..core.json_values import plain
from ..core.number_text import format_value
from ..core.progress import Phase, Progress
from ..core.sheets import Column, Facts, Origin, Sheet, Span, Table, Words, guess_column
from ..core.token_text import printable
from ..core.types import STUDIES as STUDIES
from ..plots.figures import draws
from ..plots.shapes import WIDE, axes_for, finish
from ..show.result import BRIEF, Result

PAGE, ABOUT = "index.html", "study.json"
"""Of a study's folder, beside a file for each table and figure."""
SHOWN = ("model", "store", "progress", "seed")  # of a study's function, what is no setting
ROWS = 60  # of a table on the page; the file has all
SHARES = frozenset({"share", "rate", "probability"})  # words of names of columns that read in percent
TEXTS = ("prefix", "context")  # columns of running text, in which spaces are spaces


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

    def block(self, top: int | None = None, **about: Any) -> Table:
        """The first rows, or all, as a block of a sheet; the first column stands in every part of a wide table."""
        names = [str(name) for name in self.frame.columns]
        if {"layer", "neuron"} <= set(names):
            names.remove("layer")
        columns = [self.column(name, stays=name == names[0]) for name in names]
        return Table.of(self.frame, *columns, top=top, title=self.title, **about)

    def column(self, name: str, stays: bool) -> Column:
        """How a column reads: shares in percent, tokens as such, numbers by their size."""
        values = self.frame[name]
        head = name.replace("_", " ")
        if name == "neuron" and "layer" in self.frame:
            return Column(name, "neuron", of=("layer", "neuron"), stays=stays)
        if name in TEXTS:
            return Column(head, wraps=True, stays=stays, of=lambda row: (Span(row[name]),))
        if name.endswith("token"):
            return Column(head, "token", of=name, stays=stays)
        if not SHARES.isdisjoint(name.split("_")) and values.dropna().between(0, 1).all():
            return Column(head, "percent", of=name, stays=stays)
        if pd.api.types.is_bool_dtype(values):
            return Column(head, of=lambda row: "yes" if row[name] else "no", stays=stays)
        if name.split("_")[-1] == "p":
            return Column(head, "small", of=name, stays=stays)
        kind = guess_column(head, [None if value is pd.NA else value for value in values]).kind
        if kind == "number" and (values.dropna() % 1 == 0).all():
            kind = "count"
        return Column(head, kind, of=name, stays=stays)


@dataclass(frozen=True, eq=False)
class Figure:
    """One figure of a study, written as ``<name>.png``.

    Attributes:
        name: of the file.
        title: of the picture, and the caption's first sentence.
        paint: draws the study's numbers on Axes, see :mod:`ffnmem.studies.figures`.
        y, x: what the axes are of; x is the layer unless it says something else.
        note: the rest of the caption: what the paper's figure shows.
        percent: whether y is a share. legend: where :func:`ffnmem.plots.shapes.finish` puts it.
        size: inches, width and height.
    """

    name: str
    title: str
    paint: Callable[[Axes, Study], None]
    y: str = ""
    note: str = ""
    x: str = ""
    percent: bool = False
    legend: str = "beside"
    size: tuple[float, float] = WIDE

    def draw(self, study: Study, ax: Axes) -> Axes:
        """Draw it on Axes, and return them."""
        self.paint(ax, study)
        return finish(ax, self.title, self.x, self.y, percent="y" * self.percent, legend=self.legend)


@dataclass(frozen=True, eq=False)
class StudyProtocol:
    """What a study shows, and what its paper has.

    Attributes:
        paper: authors, year, title and arXiv id.
        published: the paper's settings and findings, by subject.
        main: subjects of which the conclusion tells what was found here.
        tables: title and note of each, by name, in the order in which they are shown. The first is ``summary``: one row
            a layer with the main numbers.
        figures: in the order in which they are shown.
    """

    paper: str
    published: Mapping[str, str]
    main: tuple[str, ...]
    tables: Mapping[str, tuple[str, str]]
    figures: tuple[Figure, ...]


@dataclass(frozen=True, eq=False, repr=False)
class Study(Result):
    """What a study found.

    Attributes:
        name: its name in :data:`STUDIES`.
        frames: its tables, by name.
        found: what the study has of what the paper has (:attr:`published`), by subject.
        settings: everything that the numbers depend on besides model and store.
        provenance: of model and store.
    """

    name: str
    frames: Mapping[str, pd.DataFrame]
    found: Mapping[str, str]
    settings: Mapping[str, Any]
    provenance: Mapping[str, Any]

    @property
    def protocol(self) -> StudyProtocol:
        """As it is declared."""
        protocol: StudyProtocol = study_module(self.name).PROTOCOL
        return protocol

    @property
    def paper(self) -> str:
        """Authors, year, title and arXiv id."""
        return self.protocol.paper

    @property
    def published(self) -> Mapping[str, str]:
        """The paper's settings and findings, by subject."""
        return self.protocol.published

    @cached_property
    def tables(self) -> tuple[StudyTable, ...]:
        """In the order in which they are shown; ``summary`` first, which the command line prints."""
        frames = {name: self.naming_experts(frame) for name, frame in self.frames.items()}
        return tuple(StudyTable(name, frames[name], *words) for name, words in self.protocol.tables.items())

    @property
    def figures(self) -> tuple[Figure, ...]:
        """In the order in which they are shown."""
        return self.protocol.figures

    @property
    def conclusion(self) -> str:
        """What was found, in a sentence or two."""
        return " ".join(f"{subject.capitalize()}: {self.found[subject]}." for subject in self.protocol.main)

    @property
    def layers(self) -> list[int]:
        """The model's layers."""
        return sorted(self.tables[0].frame["layer"].unique().tolist())

    def table(self, name: str) -> pd.DataFrame:
        """The rows of a table by its name; raises InputError."""
        check_choice("table", name, list(self.protocol.tables))
        return next(table.frame for table in self.tables if table.name == name)

    def figure(self, name: str) -> Figure:
        """A figure by its name; raises InputError."""
        check_choice("figure", name, [figure.name for figure in self.figures])
        return next(figure for figure in self.figures if figure.name == name)

    def to_frame(self) -> pd.DataFrame:
        """The first table: the main numbers by layer."""
        return self.tables[0].frame

    def beside_paper(self) -> pd.DataFrame:
        """The study's settings and findings beside the paper's: a row a subject, with columns subject, here, paper."""
        rows = [(name, self.found.get(name, ""), paper) for name, paper in self.published.items()]
        return pd.DataFrame(rows, columns=["subject", "here", "paper"])

    def to_dict(self, top: int | None = None) -> dict[str, Any]:
        """Plain values, ready for JSON, with the rows of every table; ``top``: of the first table."""
        return self.described([table.name for table in self.tables], top)

    def brief(self, top: int = BRIEF) -> dict[str, Any]:
        """The same with the rows of the first table alone; all of them, as there is one a layer."""
        return self.described([self.tables[0].name])

    def described(self, whole: Collection[str] = (), top: int | None = None) -> dict[str, Any]:
        """What the study is, in plain values; of tables the rows of those that are named, of the others how many."""
        tables = {
            table.name: {
                "title": table.title,
                "note": table.note,
                "rows": table.frame[: top if table is self.tables[0] else None]
                if table.name in whole
                else len(table.frame),
            }
            for table in self.tables
        }
        figures = {figure.name: {"title": figure.title, "note": figure.note} for figure in self.figures}
        names = ("paper", "conclusion", "settings", "beside_paper", "provenance")
        about = {name: getattr(self, name) for name in names} | {"beside_paper": self.beside_paper()}
        values: dict[str, Any] = plain({"study": self.name, **about, "tables": tables, "figures": figures})
        return values

    def summary(self) -> str:
        model = printable(str(self.provenance.get("model", "?")))
        return f"{self.name!r} of {model}: {len(self.tables)} tables, {len(self.figures)} figures"

    def sheet(self, folder: Path | None = None) -> Sheet:
        """What was found, the first table, and the names of all; ``folder``: where they were written."""
        tables, figures = ([one.name for one in some] for some in (self.tables, self.figures))
        names = {"study": f"{self.name}: {self.paper}", "tables": ", ".join(tables), "figures": ", ".join(figures)}
        if folder is not None:
            names = {
                "page": str(folder / PAGE),
                "tables": ", ".join(f"{name}.csv" for name in tables),
                "figures": ", ".join(f"{name}.png" for name in figures),
                "settings": str(folder / ABOUT),
            }
        return Sheet.of(
            Words.of(self.conclusion),
            self.tables[0].block(),
            self.paper_block(self.found),
            Facts(names),
            Origin(self.provenance),
        )

    def paper_block(self, subjects: Collection[str]) -> Table:
        """Some rows of :meth:`beside_paper`."""
        frame = self.beside_paper()
        columns = (Column(name, wraps=name != "subject", of=name, least=12) for name in frame)
        return Table.of(frame[frame["subject"].isin(subjects)], *columns, title="Beside the paper")

    def whole_sheet(self) -> Sheet:
        """All tables, the paper's numbers beside the study's, and the settings: what its page shows beside figures."""
        tables = (table.block(ROWS, note=table.note, caption=f"{table.name}.csv") for table in self.tables)
        settings = {name: setting_text(value) for name, value in self.settings.items()}
        return Sheet.of(*tables, self.paper_block(self.published), Facts(settings, "Settings"), Origin(self.provenance))


@draws(Study, aspects=lambda study: [figure.name for figure in study.figures])
def draw_figure(study: Study, name: str | None = None, ax: Axes | None = None) -> Axes:
    """Draw a figure of a study, by default the first, on Axes or on those of a new figure. Raises InputError."""
    figure = study.figures[0] if name is None else study.figure(name)
    return figure.draw(study, axes_for(ax, figure.size))


def setting_text(value: Any) -> str:
    """A setting on one line."""
    if value is None or isinstance(value, bool):
        return {None: "–", True: "yes", False: "no"}[value]
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else format_value(value)


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
