"""``Result``: data, and a declaration of what of it is shown; all forms of it are made of these two."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from ..core.errors import InputError, quoted
from ..core.json_values import plain
from ..core.neuron_names import Experts, add_experts
from ..core.number_text import format_value
from ..core.pictures import picture
from ..core.provenance import Live, experts_in
from ..core.sheets import (
    Column,
    Content,
    Facts,
    Fitting,
    Grid,
    Histogram,
    Origin,
    Prompt,
    Sheet,
    Span,
    Style,
    Table,
    Words,
    is_line,
    line,
    text_cell,
    token,
)
from ..core.types import checked
from .columns import COLUMNS, FIRED, column_of

if TYPE_CHECKING:
    import pandas as pd

ResultKind = TypeVar("ResultKind", bound="Result")
MOVED = 0.01  # a probability that is coloured
BRIEF = 20
"""Rows of each table, unless all are asked for."""


class Result:
    """A result declares what of it is shown, and is printed, shown on pages, drawn, handed on as data and saved for it.

    ``heading``: names of attributes that stand at the top; of those that are None or empty, nothing. ``tables``: by
    attribute, the columns of that table. An attribute may be a DataFrame, or a mapping of several by their titles; a
    method of how many rows, or have one beside it (``shown_firings(top)``, with ``count`` or ``count_firings`` for how
    many there are); or a block that is drawn (a grid, a histogram). Of the columns "*" is all that it has; ``logit>``
    is ``logit_before`` and ``logit_after`` together; those behind ``|`` are shown where all is asked for. Columns are
    data of the table, or derived ones of :data:`ffnmem.show.columns.COLUMNS`, which also says how each reads; what a
    table is, says the first sentence of its attribute's docstring. ``main``: the table of CSV and of :meth:`to_frame`;
    by default the first one. ``verdict``: what was found, in a sentence; parts of it may be tokens.
    """

    heading: Any = ""
    tables: ClassVar[Mapping[str, str]] = {}
    main: ClassVar[str] = ""
    uncut: ClassVar[str] = ""
    """Tables of which all rows are shown, however few are asked for."""
    in_full: ClassVar[str] = ""
    """Tables of which data have all rows: a map's cells or a graph, of which the first ones say nothing, and sets that
    were asked for or searched."""
    pictured: ClassVar[bool] = False
    """Whether its page begins with its picture."""
    beside: ClassVar[str] = ""
    """Tables that stand beside the others, on a page that is wide enough."""
    only_shown: ClassVar[str] = ""
    """Tables that show what another one holds, so that data has them not."""
    only_data: ClassVar[str] = ""
    """Attributes that data have and that are not shown, or that other tables show."""
    no_file: ClassVar[str] = ""
    """Of a result that no single file holds: where it is kept, and how it is found again."""

    # Besides ``verdict`` a class may have ``status``, the exit status of a command that gives it: 1 where it did not
    # reach what was asked.
    if TYPE_CHECKING:  # no attributes of the class: of a field of a subclass they would be the default
        provenance: Any
        verdict: Any

    def on_page(self, top: int | None = BRIEF) -> Any:
        """What a page shows in its place: a result that can be had with more than is computed for a terminal."""
        return self

    # -- what is shown -----------------------------------------------------------------------------------------------

    def sheet(self, top: int | None = BRIEF, full: bool = False) -> Sheet:
        """What is shown of it: ``top`` rows of each table (all for None), and with ``full`` all columns."""
        said = getattr(self, "verdict", "")
        values = {name: getattr(self, f"shown_{name}", value) for name, value in self.heading_values().items()}
        facts = {name: content_of(name, value) for name, value in values.items()}
        origin = getattr(self, "provenance", None)
        if "logit" in facts:
            facts["logit"] = f"{facts['logit']}{getattr(self, 'logit_words', getattr(origin, 'before_cap', ''))}"
        return Sheet.of(
            Words(line(*([said] if isinstance(said, str) else said))) if said else None,
            {COLUMNS[name].name if name in COLUMNS else name.replace("_", " "): value for name, value in facts.items()}
            or None,
            *self.blocks(top, full),
            Origin(origin) if isinstance(origin, Mapping) else origin,
            title=text_of(self.title),
        )

    def heading_values(self) -> dict[str, Any]:
        """The attributes of the heading that there are."""
        values = {name: self.known(name) for name in self.heading.split()}
        return {
            name: value
            for name, value in values.items()
            if value is not None and value == value and value not in ("", [])
        }

    def known(self, name: str) -> Any:
        """An attribute; None where this result has none such."""
        try:
            return getattr(self, name)
        except InputError:
            return None

    def rows_of(self, name: str, top: int | None) -> Any:
        """A table; where it is a method, or one ``shown_NAME`` stands beside it, its first rows."""
        value = self.shown(name)
        return value(top) if callable(value) else value

    def shown(self, name: str) -> Any:
        """A table, or what gives its first rows."""
        return getattr(self, f"shown_{name}" if hasattr(type(self), f"shown_{name}") else name)

    def is_cut(self, name: str) -> bool:
        """Whether a table comes with no more rows than are asked for."""
        return callable(self.shown(name))

    def cut(self, name: str, rows: Any, top: int | None) -> Any:
        return rows if top is None or self.is_cut(name) or not hasattr(rows, "head") else rows.head(top)

    def blocks(self, asked: int | None, full: bool) -> Iterator[Any]:
        """Its tables as they are shown."""
        for name, declared in self.tables.items():
            if declared.startswith("|") and not full:
                continue
            top = None if name in self.uncut.split() else asked
            value, about = self.rows_of(name, top), first_sentence(type(self), name)  # type: ignore[arg-type]
            several = value if isinstance(value, Mapping) else {name.replace("_", " ").capitalize(): value}
            for title, rows in several.items():
                if isinstance(rows, Grid):
                    yield replace(rows, title=rows.title or title)
                elif isinstance(rows, Facts | Histogram | Table | Words):
                    yield rows
                elif isinstance(rows, Iterator):
                    yield from rows
                elif rows is not None and len(rows):
                    known = self.known_count(name) if self.is_cut(name) else len(rows)
                    yield self.block_of(title, self.cut(name, rows, top), declared, full, about, known)
                    about = ""  # said of the first of several

    def block_of(self, title: str, rows: Any, declared: str, full: bool, about: str, known: int | None) -> Table:
        """Some rows with the columns of a declaration. ``known``: how many there are in all."""
        shown = self.columns_of(rows, declared, full)
        columns, cells, notes = [], [], []
        decides = next((name for name in FIRED if name in rows), None)  # which tokens are those that it promotes
        for name, values in shown.items():
            pair = name.endswith(">") and name not in rows
            one = column_of(name.removesuffix(">") if pair and name not in COLUMNS else name, values)
            columns.append(replace(one, kind="text", left=False) if pair else shown_column(one))
            cells.append([self.cell(one, value) for value in values])
            if one.note and decides in (None, name) and any(isinstance(value, float) and value < 0 for value in values):
                notes.append(one.note)
        more = f"{known - len(rows):,} more" if known is not None and known > len(rows) else ""
        caption = "; ".join(filter(None, [about, *notes, more]))
        return Table(tuple(columns), tuple(zip(*cells, strict=True)), title=title, caption=caption)

    def columns_of(self, rows: Any, declared: str, full: bool) -> dict[str, list[Any]]:
        """The values of the declared columns that the rows have, or that are derived for these rows alone."""
        always, _, more = declared.partition("|")
        names = [
            n for name in f"{always} {more if full else ''}".split() for n in (rows.columns if name == "*" else [name])
        ]
        found: dict[str, list[Any]] = {}
        for name in dict.fromkeys(names):
            known = COLUMNS.get(name)
            if name.endswith(">") and name not in rows:
                ends = [known_values(rows[f"{name[:-1]}_{when}"]) for when in ("before", "after")]
                found[name] = list(zip(*ends, strict=True))
            elif known is not None and known.derive is not None and (name == "neuron" or name not in rows):
                if known.can_derive(rows):
                    found[name] = known.derive(self, rows)
            elif name in rows and not (name == "layer" and "neuron" in found):
                values = known_values(rows[name])
                if any(value is not None and value != "" for value in values):
                    found[name] = values
        return {name: values for name, values in found.items() if any(value not in (None, [], "") for value in values)}

    def cell(self, one: Column, value: Any) -> Any:
        """A value as its column shows it."""
        if value is None or value == "":
            return None
        if isinstance(value, tuple) and len(value) == 2 and one.kind not in ("neuron", "tokens") and not is_line(value):
            return pair_line(one, value)
        if one.kind == "tokens":
            named = [getattr(self, name, None) for name in ("target", "foil")]
            return Fitting(tuple(token_line(each, named, one.style) for each in value))
        return text_cell(value) if one.kind == "text" else value

    @property
    def title(self) -> Any:
        """Of what is shown, and of its page."""
        return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(self).__name__).capitalize()

    # -- data --------------------------------------------------------------------------------------------------------

    def has_all(self, name: str) -> bool:
        """Whether data have all rows of a table."""
        return name in f"{self.uncut} {self.in_full}".split()

    def first_rows(self, top: int | None = None) -> pd.DataFrame:
        """A copy of the first rows of the main table, or of all."""
        name = self.main or next(iter(self.tables))
        top = None if self.has_all(name) else top
        found = self.rows_of(name, top)
        if isinstance(found, Mapping):
            import pandas as pd

            found = pd.concat([one.assign(table=title) for title, one in found.items()], ignore_index=True)
        return found.copy() if top is None else self.cut(name, found, top)

    def to_frame(self, top: int | None = None, *, derived: bool = False) -> pd.DataFrame:
        """The main table, a copy: all rows, or the first ``top``; ``derived``: with the columns that are computed for
        rows that are shown, such as the tokens that a neuron promotes."""
        if not self.tables:
            import pandas as pd

            return pd.DataFrame([self.to_dict()])
        return self.data_of(self.main or next(iter(self.tables)), self.first_rows(top), derived)

    def data_of(self, name: str, rows: Any, derived: bool) -> Any:
        """A table as data, with its derived columns if asked."""
        found = self.naming_experts(rows)
        if derived:
            for one in self.tables.get(name, "").replace("|", " ").split():
                known = COLUMNS.get(one)
                if known is not None and known.derive is not None and one not in found and known.can_derive(found):
                    found = found.assign(**{one: known.derive(self, found)})
        return found

    def naming_experts(self, value: Any) -> Any:
        """A table of neurons with the column ``expert`` if the model has some; anything else as it is."""
        return add_experts(value.copy(), self.experts) if self.experts and hasattr(value, "columns") else value

    @property
    def experts(self) -> Experts:
        """The sizes of layers with experts, by layer."""
        return experts_in(getattr(self, "provenance", None))

    @property
    def data_names(self) -> list[str]:
        """The tables, and other attributes, that data have."""
        names = dict.fromkeys([*self.tables, *self.only_data.split(), *filter(None, [self.main])])
        return [name for name in names if name not in self.only_shown.split()]

    def left_out(self, name: str, top: int | None) -> tuple[int, int] | None:
        """How many rows of a table its first ``top`` in data are, and of how many; None of what is not cut."""
        if top is None or self.has_all(name):
            return None

        def count(top: int | None) -> int:
            found = self.rows_of(name, top)
            parts = found.values() if isinstance(found, Mapping) else [found]
            return sum(
                len(self.cut(name, one, top)) for one in parts if hasattr(one, "columns") and hasattr(one, "head")
            )

        given, known = count(top), self.known_count(name)
        there = count(None) if given and known is None else known
        return (given, there) if there and given < there else None

    def known_count(self, name: str) -> int | None:
        """How many rows a table has that comes with no more than are asked for, where that is known."""
        return getattr(self, f"count_{name}", getattr(self, "count", None)) if self.is_cut(name) else None

    def to_dict(self, top: int | None = None, *, derived: bool = False) -> dict[str, Any]:
        """Plain values, ready for JSON: the verdict, the heading, the tables by name, the provenance. ``top``: the
        first rows of each table; ``derived``: as of :meth:`to_frame`."""
        if not self.tables and not self.heading:
            return plain({one.name: getattr(self, one.name) for one in fields(self)})  # type: ignore[arg-type]
        said = getattr(self, "verdict", "")
        found: dict[str, Any] = {"verdict": text_of(said)} if said else {}
        found |= {name: self.known(name) for name in self.heading.split()}
        for name in self.data_names:
            rows = None if self.has_all(name) else top
            value = self.rows_of(name, rows)
            if isinstance(value, Mapping):
                found[name] = {
                    title: grid_values(one)
                    if isinstance(one, Grid)
                    else self.data_of(name, self.cut(name, one, rows), derived)
                    for title, one in value.items()
                }
            elif hasattr(value, "columns") and hasattr(value, "head"):
                found[name] = self.data_of(name, self.cut(name, value, rows), derived)
            elif value is not None:
                own = getattr(self, name)
                kept = value if callable(own) or isinstance(own, Grid) else own
                found[name] = grid_values(kept) if isinstance(kept, Grid) else kept
        return plain(found | {"provenance": getattr(self, "provenance", None)})

    # -- in few words ------------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        parts = [
            f"{name.replace('_', ' ')} {quoted(str(value)) if isinstance(value, str | Path) else format_value(value)}"
            for name, value in self.heading_values().items()
            if isinstance(value, str | Path | int | float)
        ]
        said = text_of(getattr(self, "verdict", "") or "").rstrip(".")
        return f"{type(self).__name__}({', '.join(parts) or said})"

    def _repr_html_(self) -> str:
        from .notebook import html  # the templates' library: only where something is shown

        return html(self.sheet())

    def to_markdown(self, top: int | None = BRIEF) -> str:
        """The same as Markdown, for notes, issues and pull requests; token text is escaped."""
        from .markdown import markdown

        return markdown(self.sheet(top))

    def plot(self, *args: Any, **options: Any) -> Any:
        """Draw its first picture, see :func:`ffnmem.plots.draw`; :func:`ffnmem.plots.figure` draws all of them.

        Raises InputError: nothing draws it.
        """
        return picture("draw")(self, *args, **options)

    # -- files -------------------------------------------------------------------------------------------------------

    @checked
    def save(self, path: str | Path) -> Path:
        """Write all of it as one file (a zip of JSON, arrays and tables), whole or not at all; returns the path.

        A model or store that it holds is not written, only which one it is.

        Raises: FileError: it cannot be written. InputError: a result that no single file holds.
        """
        from ..core.saved import save_result  # torch and pandas: only where something is saved

        check_fits_a_file(type(self))
        return save_result(self, path)

    @classmethod
    @checked
    def load(cls: type[ResultKind], path: str | Path, *live: Live) -> ResultKind:
        """The result in a file that :meth:`save` wrote, to the last bit; tensors are on the CPU, or where a model is.

        Args:
            path: of the file.
            live: the model or store that it holds, where it holds one.

        Raises:
            FileError: no such file, another kind of file, one of another version of ffnmem, or a damaged one.
            InputError: the model or store is missing, or it holds none. ModelError: it is of another one.
        """
        from ..core.saved import load_result

        check_fits_a_file(cls)
        return load_result(cls, path, live)


def check_fits_a_file(cls: type[Result]) -> None:
    """Raise InputError for results that no single file holds."""
    if cls.no_file:
        raise InputError(f"a {cls.__name__} is no single file: {cls.no_file}")


def text_of(said: Any) -> str:
    """A sentence without its styles."""
    return "".join(one.text if isinstance(one, Span) else one for one in said)


def grid_values(grid: Grid) -> dict[str, Any]:
    """A grid as plain values."""
    rows, columns = ([one.text if isinstance(one, Span) else one for one in some] for some in (grid.rows, grid.columns))
    return {"rows": rows, "columns": columns, "values": grid.values}


def known_values(column: Any) -> list[Any]:
    """The values of a column, None where there is none."""
    return column.astype(object).where(column.notna(), None).tolist()


def shown_column(one: Column) -> Column:
    """The column as renderers have it: several tokens are a text of them."""
    return replace(one, kind="text") if one.kind == "tokens" else one


def token_line(one: Any, named: Sequence[Any], style: Style = "") -> tuple[Span, ...]:
    """A token, or one with its number behind it; those ``named`` stand out."""
    text, *number = (one,) if isinstance(one, str) else one
    shown = token(text, "strong" if text in named else style)
    return (shown, *(Span(f" {format_value(value)}", "soft") for value in number))


def pair_line(one: Column, ends: tuple[Any, Any]) -> Any:
    """What a value was before and is after; one of them where both read alike."""
    if one.kind == "token":
        first, last = (token(value) for value in ends)
        return (first,) if ends[0] == ends[1] else line(first, " → ", last)
    places = one.places_of([value for value in ends if isinstance(value, int | float)])
    moved = one.kind == "probability" and one.colour and None not in ends and abs(ends[1] - ends[0]) >= MOVED
    texts = [
        value if isinstance(value, str) else "" if value is None else one.format(value, places) or str(value)
        for value in ends
    ]
    if moved:
        return line(f"{texts[0]} → ", Span(texts[1], "adds" if ends[1] > ends[0] else "takes"))
    return texts[0] if texts[0] == texts[1] else f"{texts[0]} → {texts[1]}"


def content_of(name: str, value: Any) -> Content:
    """What stands beside a name in the heading."""
    if isinstance(value, Prompt) or is_line(value) or (isinstance(value, tuple) and value and is_line(value[0])):
        return value
    one = column_of(name, [value])
    match one.kind:
        case "token":
            return token(value, "strong")
        case "tokens" if all(isinstance(each, int) for each in value):
            return ", ".join(map(str, value))
        case "tokens":
            return Fitting(tuple(token_line(each, ()) for each in value))
        case "text":
            if isinstance(value, Mapping):
                return ", ".join(f"{key.replace('_', ' ')} {content_of('', one)}" for key, one in value.items())
            if isinstance(value, bool):
                return "yes" if value else "no"
            if isinstance(value, list | tuple):
                return ", ".join(map(str, value))
            return value if isinstance(value, str) else format_value(value)
    return replace(one, sign=False).format(value, one.places_of([value]))


@cache
def first_sentence(cls: Any, name: str) -> str:
    """What a table is: the first sentence of its property's docstring, or of its line in the class's."""
    member = inspect.getattr_static(cls, name, None)
    text = member.__doc__ or "" if isinstance(member, property | Callable) or hasattr(member, "func") else ""
    if not text:
        found = re.search(rf"^ +{name}: (.+?)(?:\n {{4,8}}\w+[\w, ]*: |\n\n|\Z)", cls.__doc__ or "", re.M | re.S)
        text = found[1] if found else getattr(getattr(cls, f"shown_{name}", None), "__doc__", "") or ""
    sentence = re.split(r"[.:;](?:\s|$)", " ".join(text.split()), maxsplit=1)[0]
    return re.sub(r":\w+:`~?\.?([^`]*)`|``([^`]*)``|\\(?=\|)", lambda one: one[1] or one[2] or "", sentence)
