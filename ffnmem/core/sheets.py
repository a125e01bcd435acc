"""Sheets: how a result says what it is, as plain blocks that know nothing of where they are shown.

A result's ``sheet()`` gives a title and a few blocks: :class:`Facts`, :class:`Table`, :class:`Words`,
:class:`Grid`, :class:`Histogram`, :class:`Origin`. The subpackage ``show`` turns them into a terminal's lines, HTML, or
Markdown. Values stay what they are (numbers, tokens, neurons); their columns say how they read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from .neuron_names import Experts
from .number_text import decimals, format_number, format_probability, format_share, format_small, format_value
from .provenance import Provenance, experts_in

# What stands in a cell, beside a name or in a line.

Style = Literal["", "strong", "marked", "soft", "adds", "takes", "special"]


@dataclass(frozen=True)
class Span:
    """A run of text in one style. ``token``: its spaces and what would not show become marks; ``limit``: of a token,
    its most columns; ``note``: what a pointer on it tells, where there is one; ``leads``: a kind and a value of it, to
    which it leads on a page with links, as a column's."""

    text: str
    style: Style = ""
    token: bool = False
    limit: int = 40
    note: str = ""
    leads: tuple[str, Any] | None = None


Line = tuple[Span, ...]


def line(*parts: str | Span) -> Line:
    """Texts and spans as one line."""
    return tuple(Span(part) if isinstance(part, str) else part for part in parts)


def token(text: str, style: Style = "", limit: int = 40, note: str = "") -> Span:
    """A token's text."""
    return Span(text, style, True, limit, note)


def is_line(value: object) -> bool:
    """Whether a value is a line of spans: what may stand in a cell of any column in place of its kind."""
    return isinstance(value, tuple) and bool(value) and isinstance(value[0], Span)


@dataclass(frozen=True)
class Fitting:
    """Pieces of which as many are shown as fit beside each other, two spaces apart; with ``whole``, all of them on as
    many lines as they need."""

    pieces: tuple[Line, ...]
    whole: bool = False


def tokens(texts: Iterable[str], named: Sequence[str | None] = ()) -> Fitting:
    """Tokens, best first; those ``named`` stand out."""
    return Fitting(tuple((token(text, "strong" if text in named else ""),) for text in texts))


@dataclass(frozen=True)
class Prompt:
    """A prompt's tokens around one position, which is marked. ``bos``: the first one is the beginning of sequence."""

    tokens: tuple[str, ...]
    position: int
    bos: bool = False


@dataclass(frozen=True)
class Shade:
    """A token of a text and how strongly it is shaded. ``strength``: from 0 to 1, below zero with ``negative``;
    ``note``: what a pointer on it tells."""

    text: str
    strength: float
    negative: bool
    note: str


@dataclass(frozen=True)
class Shades:
    """The tokens around the one that a :class:`Context` marks, each shaded by itself.

    ``before``, ``after``: those of its text. ``further_before``, ``further_after``: what goes on there, to be shown on
    request."""

    before: tuple[Shade, ...]
    after: tuple[Shade, ...]
    further_before: tuple[Shade, ...] = ()
    further_after: tuple[Shade, ...] = ()


@dataclass(frozen=True)
class Context:
    """A token where it stands in a text. ``strength``: from 0 to 1, how strongly it is marked; below zero with
    ``negative``. ``cut_before``, ``cut_after``: the text goes on there. ``note``: what a pointer on it tells.
    ``shades``: the tokens around it, where each has a strength of its own."""

    before: str
    token: str
    after: str
    cut_before: bool = False
    cut_after: bool = False
    strength: float = 1.0
    negative: bool = False
    note: str = ""
    shades: Shades | None = None

    @property
    def lead(self) -> str:
        """The spaces that the token begins with, unless it is nothing else; they need no mark."""
        return self.token[: len(self.token) - len(self.word)]

    @property
    def word(self) -> str:
        """The token without them."""
        return self.token.lstrip(" ") or self.token

    @property
    def blank(self) -> bool:
        """Whether the token is nothing, or nothing but spaces, and shows only as marks."""
        return not self.token.strip(" ")


Content = str | Line | Span | Fitting | Prompt | tuple[Line, ...]
"""What stands beside a name in :class:`Facts` or in a cell of text; a tuple of lines stands below each other."""

# Columns: how the values of a table read.

Kind = Literal[
    "text",  # Content
    "neuron",  # (layer, neuron), shown as 5.97
    "token",  # str
    "tokens",  # several, best first, each a str or a pair of one and its number
    "number",  # with as many decimals as the largest of the column asks for, or ``places``
    "count",  # whole numbers with thousands
    "percent",  # a share, or with ``sign`` a change: 0.5 is 50.0%
    "probability",  # a share of which a small one, and one near certainty, say so
    "small",  # mantissa and exponent
    "context",  # Context; or what a column of text holds
    "heat",  # a sequence of numbers, one shade each; ``limit`` is the strongest
    "bar",  # from 0 to 1
]


@dataclass(frozen=True)
class Column:
    """A column of a table and how its values read.

    Attributes:
        name: its head.
        kind: of its values.
        digits: significant digits of the largest number. places: decimals, in place of them.
        sign: numbers have a plus sign too. colour: what adds and what takes away differ in colour.
        bars: where there is room, a bar is drawn beside each number; "steps": as a waterfall.
        left: aligned to the left. wraps: gives way first where there is little room. soft: stands back.
        limit: of tokens, the most columns; of heat, the largest magnitude.
        least: the fewest columns on a terminal.
        scale: of heat and of shaded contexts, the strongest magnitude in words, for a legend.
        each: of heat, what each of its values stands for, "layer".
        stays: where a table is too wide for a terminal, it becomes several, and this column stands in each.
        spare: of bars, heat and contexts on a terminal, the columns that the others take; None: measured.
        derive: its values from a result and some rows of a table of its, where the table does not hold them but the
            columns that it ``needs``.
        leads: what a cell leads to on a page with links: "neuron", "token".
        note: said below a table that has a negative number in the column.
        style: of its tokens.
    """

    name: str
    kind: Kind = "text"
    digits: int = 4
    places: int | None = None
    sign: bool = False
    colour: bool = False
    bars: bool | Literal["steps"] = False
    left: bool | None = None
    wraps: bool = False
    soft: bool = False
    limit: float | None = None
    scale: str = ""
    each: str = ""
    spare: int | None = None
    least: int = 0
    stays: bool = False
    derive: Callable[[Any, Any], list[Any]] | None = None
    needs: tuple[str, ...] = ()
    leads: str = ""
    note: str = ""
    style: Style = ""

    def can_derive(self, rows: Any) -> bool:
        """Whether rows have the columns that its values are derived from."""
        return set(self.needs) <= set(rows.columns)

    @property
    def to_left(self) -> bool:
        """Numbers stand right, the rest left, unless the column says so."""
        if self.left is not None:
            return self.left
        return self.wraps or self.kind in ("text", "neuron", "token", "tokens", "context", "heat", "bar")

    def places_of(self, values: Iterable[Any]) -> int:
        """Decimal places of the column's numbers."""
        if self.places is not None or self.kind != "number":
            return 1 if self.places is None else self.places
        return decimals([value for value in values if isinstance(value, int | float)], self.digits)

    def format(self, value: Any, places: int) -> str:
        """A number, or a neuron, as it reads; nothing of anything else."""
        match self.kind:
            case "neuron":
                return f"{value[0]}.{value[1]}"
            case "count":
                return f"{value:,.0f}" if math.isfinite(value) else format_number(value)
            case "number":
                return format_number(value, places, self.sign)
            case "percent":
                return format_share(value, places, self.sign)
            case "probability":
                return format_probability(value)
            case "small":
                return format_small(value)
            case _:
                return ""


def guess_column(name: str, values: Iterable[Any]) -> Column:
    """A column by what it holds: whole numbers, numbers, or else text."""
    known = [value for value in values if value is not None]
    if any(isinstance(value, bool) or not hasattr(value, "__float__") for value in known):
        return Column(name)
    whole = all(float(value).is_integer() for value in known if math.isfinite(value))
    return Column(name, "number", places=0 if whole else None)


def text_cell(value: Any) -> Any:
    """A cell of a column of text: what begins or ends with spaces as a token, whose spaces show; numbers in brief."""
    if isinstance(value, str):
        return token(value) if value != value.strip() else value
    if value is None or isinstance(value, Span | Fitting | Prompt | Context) or is_line(value):
        return value
    return value if isinstance(value, tuple) and value and is_line(value[0]) else format_value(value)


# Blocks.


@dataclass(frozen=True)
class Table:
    """Rows of typed values.

    Attributes:
        columns: what they hold.
        rows: a value a column; None where there is none.
        title, note: above; caption: below.
        sections: rows before which a rule is drawn. strong: rows that stand out; soft: rows that stand back.
        ruled: with names above the columns and a rule below them.
        folded: worth showing only where it can be unfolded on request: nowhere else.
        tiles: on a page each row is a small box, beside the others.
    """

    columns: tuple[Column, ...]
    rows: tuple[tuple[Any, ...], ...]
    title: str = ""
    note: str = ""
    caption: str = ""
    sections: tuple[int, ...] = ()
    strong: tuple[int, ...] = ()
    soft: tuple[int, ...] = ()
    ruled: bool = True
    folded: bool = False
    tiles: bool = False


@dataclass(frozen=True)
class Facts:
    """Short paragraphs, each with its name, under a title or none."""

    rows: Mapping[str, Content]
    title: str = ""


@dataclass(frozen=True)
class Words:
    """A paragraph."""

    line: Line

    @classmethod
    def of(cls, text: str, style: Style = "") -> Words:
        return cls((Span(text, style),))


@dataclass(frozen=True)
class Grid:
    """Named rows and columns of numbers, shaded: layers by positions.

    Attributes:
        rows, columns: their names, tokens as :func:`token`. values: a number a cell, None or NaN where there is none.
        limit: the magnitude of the strongest shade. unit: of the numbers, for a legend ("logits").
        kind: how they read, as a column's.
        leads: the layer and position to which a cell leads on a page with links, by its row and column.
        notes: what a pointer on a cell tells besides.
        marked: a column that stands out, such as the answer's position.
        title: above; caption: below.
    """

    rows: tuple[str | Span, ...]
    columns: tuple[str | Span, ...]
    values: tuple[tuple[float | None, ...], ...]
    limit: float
    unit: str = ""
    kind: Kind = "number"
    leads: Mapping[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    notes: Mapping[tuple[int, int], str] = field(default_factory=dict)
    marked: int | None = None
    title: str = ""
    caption: str = ""

    @property
    def column(self) -> Column:
        """How its numbers read."""
        return Column(self.unit, self.kind, sign=True, digits=3)

    @property
    def texts(self) -> list[list[str]]:
        """Its numbers as they read; nothing where there is none."""
        places = self.column.places_of([value for row in self.values for value in row])
        return [["" if value is None else self.column.format(value, places) for value in row] for row in self.values]

    @property
    def scale(self) -> str:
        """The strongest shade in words."""
        return f"{self.column.format(self.limit, self.column.places_of([self.limit]))} {self.unit}".rstrip()

    def table(self) -> Table:
        """Where there is no room for cells: a row with a shade a cell, the column of its largest, and how much that
        is."""
        heat = Column("", "heat", limit=self.limit, scale=self.scale.lstrip("+"))
        shown = rows("", heat, "largest at", replace(self.column, name=self.unit or "there"))
        for name, values in zip(self.rows, self.values, strict=True):
            known = [math.nan if value is None else float(value) for value in values]
            finite = [i for i, value in enumerate(known) if math.isfinite(value)]
            most = max(finite, key=lambda i: abs(known[i]), default=None)
            shown.add(name, known, *(() if most is None else (self.columns[most], known[most])))
        return shown.table(self.title, caption=self.caption)


@dataclass(frozen=True)
class Histogram:
    """Counts over bins. ``edges``: ascending, one more than counts; ``name``: of what lies along them; ``counted``: of
    what is counted. A drawing has all bins; the bars of a table are logarithmic in the count."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    name: str
    counted: str = "tokens"
    title: str = ""

    def table(self, most: int = 16) -> Table:
        """At most ``most`` rows, each of a bin or of neighbours."""
        edges, counts = join_bins(self.edges, self.counts, most)
        places, total, largest = decimals(edges, 3), sum(counts), math.log1p(max(counts, default=0)) or 1.0
        shown = rows(
            Column(self.name, left=False),
            Column(self.counted, "count"),
            Column("share", left=False),
            Column(f"{self.counted}, log scale", "bar", spare=46),
        )
        for low, high, count in zip(edges, edges[1:], counts, strict=False):
            share = format_probability(count / total) if count else None
            shown.add(f"{low:.{places}f} to {high:.{places}f}", count, share, math.log1p(count) / largest)
        return shown.table(self.title)


def join_bins(edges: Sequence[float], counts: Sequence[int], most: int) -> tuple[list[float], list[int]]:
    """At most ``most`` (two or more) bins: the neighbours that are narrowest together are joined, but never over zero.

    Near zero bins are many and narrow, so this ends in bins of about one width.
    """
    edges, counts = list(edges), list(counts)

    def together(at: int) -> float:
        return edges[at + 2] - edges[at] if edges[at + 1] != 0 else math.inf

    widths = [together(at) for at in range(len(counts) - 1)]
    while len(counts) > most and (least := min(widths)) < math.inf:
        at = widths.index(least)
        counts[at : at + 2] = [counts[at] + counts[at + 1]]
        del edges[at + 1], widths[at]
        for beside in range(max(at - 1, 0), min(at + 1, len(widths))):
            widths[beside] = together(beside)
    return edges, counts


@dataclass(frozen=True)
class Origin:
    """Where the numbers come from: model, numeric type, settings, version."""

    fields: Mapping[str, Any]


Block = Facts | Table | Words | Grid | Histogram | Origin


@dataclass(frozen=True)
class Sheet:
    """What a result is: a title, or none, and its blocks in order."""

    blocks: tuple[Block, ...]
    title: str = ""

    @classmethod
    def of(cls, *blocks: Block | Mapping[str, Content | None] | Provenance | None, title: str = "") -> Sheet:
        """Of blocks, of which some may be missing; a mapping is facts (those that are None are left out), a provenance
        where the numbers come from."""
        made = cls(tuple(as_block(block) for block in blocks if block is not None), title)
        origin = next((block.fields for block in made.blocks if isinstance(block, Origin)), {})
        return made.naming_experts(experts_in(origin))

    def without_origin(self) -> Sheet:
        """Its blocks without where its numbers come from, which is said elsewhere."""
        return replace(self, blocks=tuple(block for block in self.blocks if not isinstance(block, Origin)))

    def naming_experts(self, experts: Experts) -> Sheet:
        """The sheet with a column behind each column of neurons, in every table, that names them within their experts,
        as in 5.e3.97; as it is if the model has none."""
        if not experts:
            return self
        return replace(self, blocks=tuple(name_experts(b, experts) if isinstance(b, Table) else b for b in self.blocks))


def name_experts(table: Table, experts: Experts) -> Table:
    """A table with a column ``expert`` behind each column of neurons, unless it has one."""
    if any(column.name == "expert" for column in table.columns):
        return table
    for at in reversed([i for i, column in enumerate(table.columns) if column.kind == "neuron"]):
        names = [str(experts[v[0]].name(v[1])) if v and v[0] in experts else None for v in (r[at] for r in table.rows)]
        rows = [(*row[: at + 1], name, *row[at + 1 :]) for row, name in zip(table.rows, names, strict=True)]
        columns = (*table.columns[: at + 1], Column("expert", soft=True), *table.columns[at + 1 :])
        table = replace(table, columns=columns, rows=tuple(rows))
    return table


def as_block(given: Block | Mapping[str, Content | None] | Provenance) -> Block:
    """What :meth:`Sheet.of` takes, as a block."""
    if isinstance(given, Provenance):
        return Origin(given.to_dict())
    if isinstance(given, Mapping):
        return Facts({name: value for name, value in given.items() if value is not None})
    return given


def join_sheets(sheets: Iterable[Sheet], *last: Block) -> Sheet:
    """Several sheets as one, each under its title, and what stands below them all."""
    parts = [(*([Words.of(one.title, "strong")] if one.title else []), *one.blocks) for one in sheets]
    return Sheet((*(block for blocks in parts for block in blocks), *last))


# Tables that no frame holds as they are shown.


@dataclass(frozen=True)
class Rows:
    """Rows under construction; ``table()`` makes them a block."""

    columns: tuple[Column, ...]
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    sections: list[int] = field(default_factory=list)
    strong: list[int] = field(default_factory=list)
    soft: list[int] = field(default_factory=list)

    def add(self, *values: Any, style: Literal["", "strong", "soft"] = "", section: bool = False) -> None:
        """A row of fewer values than columns has none in the others; ``section`` draws a rule before it."""
        at = len(self.rows)
        if section:
            self.sections.append(at)
        if style:
            (self.strong if style == "strong" else self.soft).append(at)
        self.rows.append((*values, *[None] * (len(self.columns) - len(values))))

    def table(self, title: str = "", note: str = "", caption: str = "", **about: Any) -> Table:
        """``about``: whether it is ruled, and folded."""
        places = {"sections": self.sections, "strong": self.strong, "soft": self.soft}
        about |= {name: tuple(some) for name, some in places.items()}
        return Table(self.columns, tuple(self.rows), title, note, caption, **about)


def rows(*columns: Column | str) -> Rows:
    """Rows of some columns; a name alone is a column of text."""
    return Rows(tuple(Column(one) if isinstance(one, str) else one for one in columns))


def share_of(value: float) -> float:
    """A bar's length from 0 to 1, whatever a number it is of."""
    return min(max(float(value), 0.0), 1.0) if math.isfinite(value) else 0.0


def share_of_limit(value: float, limit: float) -> float:
    """A magnitude as a share of the limit, at most 1; both may be infinite. 0 for one that is no number."""
    most = limit or 1.0
    return 1.0 if abs(value) >= most else abs(value) / most if value == value else 0.0


# What the sheets of several results say alike.

NEGATIVE = "a negative coefficient promotes what the value suppresses, and those tokens are listed"
