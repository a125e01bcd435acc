"""Sheets: how a result says what it is, as plain blocks that know nothing of where they are shown.

A result's ``sheet()`` gives a title and a few blocks: :class:`Facts`, :class:`Table`, :class:`Words`, :class:`Shaded`,
:class:`Origin`. The room ``show`` turns them into a terminal's lines, HTML, or Markdown. Values stay what they are
(numbers, tokens, neurons); their columns say how they read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Style = Literal["", "strong", "marked", "soft", "adds", "takes", "special"]


@dataclass(frozen=True)
class Span:
    """A run of text in one style. ``token``: its spaces and what would not show become marks; ``limit``: of a token,
    its most columns; ``note``: what a pointer on it tells, where there is one."""

    text: str
    style: Style = ""
    token: bool = False
    limit: int = 40
    note: str = ""


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


def tokens(texts: Iterable[str], named: Sequence[str] = ()) -> Fitting:
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
"""What stands beside a name in :class:`Facts`; a tuple of lines stands below each other."""

Kind = Literal[
    "text",  # str, Span, Line or Fitting
    "neuron",  # (layer, neuron), shown as 5.97
    "token",  # str
    "number",  # with as many decimals as the largest of the column asks for, or ``places``
    "count",  # whole numbers with thousands
    "percent",  # a share: 0.5 is 50.0%
    "change",  # the same with a sign
    "probability",  # a share of which a small one says so
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
        spare: of bars and contexts on a terminal, the columns that the others take; None: measured.
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

    @property
    def to_left(self) -> bool:
        """Numbers stand right, the rest left, unless the column says so."""
        if self.left is not None:
            return self.left
        return self.kind in ("text", "neuron", "token", "context", "heat", "bar")


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


@dataclass(frozen=True)
class Facts:
    """Short paragraphs, each with its name, under a title or none."""

    rows: Mapping[str, Content]
    title: str = ""


@dataclass(frozen=True)
class Words:
    """A paragraph; one to be copied, such as a path, is not broken into lines."""

    line: Line
    to_copy: bool = False

    @classmethod
    def of(cls, text: str, style: Style = "", to_copy: bool = False) -> Words:
        return cls((Span(text, style),), to_copy)


@dataclass(frozen=True)
class Shaded:
    """Running tokens, each shaded by a number."""

    tokens: tuple[str, ...]
    values: tuple[float, ...]
    limit: float
    name: str = ""


@dataclass(frozen=True)
class Origin:
    """Where the numbers come from: model, numeric type, settings, version."""

    fields: Mapping[str, Any]


Block = Facts | Table | Words | Shaded | Origin


@dataclass(frozen=True)
class Sheet:
    """What a result is: a title, or none, and its blocks in order."""

    blocks: tuple[Block, ...]
    title: str = ""

    @classmethod
    def of(cls, *blocks: Block | None, title: str = "") -> Sheet:
        """Of blocks, of which some may be missing."""
        return cls(tuple(block for block in blocks if block is not None), title)


def together(sheets: Iterable[Sheet], *last: Block) -> Sheet:
    """Several sheets as one, each under its title, and what stands below them all."""
    parts = [(*([Words.of(one.title, "strong")] if one.title else []), *one.blocks) for one in sheets]
    return Sheet((*(block for blocks in parts for block in blocks), *last))


def headed(sheet: Sheet) -> Sheet:
    """The sheet with the model that its numbers come from in its first line, where that does not name it yet."""
    model = next(
        (str(one.fields["model"]) for one in sheet.blocks if isinstance(one, Origin) and "model" in one.fields), ""
    )
    first, *rest = sheet.blocks or (Facts({}),)
    line = sheet.title or ("".join(span.text for span in first.line) if isinstance(first, Words) else "")
    if not model or model in line:
        return sheet
    if not line and isinstance(first, Facts) and not first.title:
        return Sheet((Facts({"model": model, **first.rows}), *rest))
    return together([Sheet((Facts({"model": model}),)), sheet])


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

    def table(
        self, title: str = "", note: str = "", caption: str = "", *, ruled: bool = True, folded: bool = False
    ) -> Table:
        return Table(
            self.columns,
            tuple(self.rows),
            title,
            note,
            caption,
            tuple(self.sections),
            tuple(self.strong),
            tuple(self.soft),
            ruled,
            folded,
        )


def rows(*columns: Column | str) -> Rows:
    """Rows of some columns; a name alone is a column of text."""
    return Rows(tuple(Column(one) if isinstance(one, str) else one for one in columns))


def share_of(value: float) -> float:
    """A bar's length from 0 to 1, whatever a number it is of."""
    return min(max(float(value), 0.0), 1.0) if math.isfinite(value) else 0.0


def of_frame(frame: Any, most: int | None = None, title: str = "") -> Table:
    """The first ``most`` rows of a pandas table (None: all), columns by what they hold; the caption counts the rest."""
    shown = frame if most is None else frame.head(most)
    columns: list[Column] = []
    texts: list[int] = []
    for name in frame.columns:
        values = [value for value in shown[name] if value is not None]
        if any(isinstance(value, bool) or not hasattr(value, "__float__") for value in values):
            columns.append(Column(str(name)))
            texts.append(len(columns) - 1)
        elif all(float(value).is_integer() for value in shown[name].dropna()):
            columns.append(Column(str(name), "number", places=0))
        else:
            columns.append(Column(str(name), "number"))
    body = shown.astype(object).where(shown.notna(), None)
    more = len(frame) - len(shown)
    return Table(
        tuple(columns),
        tuple(
            tuple(text_cell(value) if i in texts else value for i, value in enumerate(row))
            for row in body.itertuples(index=False, name=None)
        ),
        title,
        caption=f"… and {more:,} more" if more else "",
    )


def text_cell(value: Any) -> Any:
    """A cell of a column of text: what begins or ends with spaces as a token, whose spaces show; numbers in brief."""
    if isinstance(value, str):
        return token(value) if value != value.strip() else value
    return None if value is None else brief(value)


def decimals(values: Iterable[float], digits: int = 4) -> int:
    """Decimal places that show the largest of some values with ``digits`` significant digits."""
    largest = max((abs(v) for v in values if math.isfinite(v)), default=0.0)
    if largest == 0:
        return digits - 1
    return min(max(digits - 1 - math.floor(math.log10(largest)), 0), 9)


def places_of(column: Column, values: Iterable[Any]) -> int:
    """Decimal places of the numbers of a column."""
    if column.places is not None:
        return column.places
    known = [value for value in values if isinstance(value, int | float)]
    return decimals(known, column.digits) if column.kind == "number" else 1


def of_number(value: float, places: int, sign: bool = False) -> str:
    """A number with fixed places; a dash where there is none."""
    return f"{value:{'+' if sign else ''}z.{places}f}" if math.isfinite(value) else "–"


def of_share(value: float) -> str:
    """A share of a whole, in percent, without a sign where it rounds to nothing; a dash where there is none."""
    return f"{value:z.1%}" if math.isfinite(value) else "–"


def of_rate(share: float) -> str:
    """A share in percent with one decimal; a small one with two digits that count, below 0.001% as mantissa and
    exponent, in percent all the same."""
    percent = 100 * share
    if not 0 < percent < 0.2:
        return of_share(share)
    if percent < 0.001:
        mantissa, exponent = f"{percent:.1e}".split("e")
        return f"{mantissa}e{int(exponent)}%"
    return f"{float(f'{percent:.2g}'):.5f}".rstrip("0") + "%"


def of_share_within(share: float, low: float, high: float) -> str:
    """A share with its interval."""
    return f"{of_share(share)} ({of_share(low)} to {of_share(high)})"


NEGATIVE = "a negative coefficient promotes what the value suppresses, and those tokens are listed"
PROMOTES = Column("promotes", wraps=True)
"""Tokens that a neuron's coefficient times its value promotes; of its value alone it is "value promotes"."""


def of_negatives(coefficients: Iterable[float]) -> str:
    """A caption that says what a negative coefficient means, where there is one."""
    return NEGATIVE if any(coefficient < 0 for coefficient in coefficients) else ""


def brief(value: Any) -> str:
    """A number with four significant digits, a whole one with thousands; anything else as it is."""
    if isinstance(value, float):
        return f"{value:.4g}" if math.isfinite(value) else "–"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def folded(records: Sequence[Mapping[Any, Any]], title: str, note: str = "") -> Table:
    """A table of data with all its columns, where it can be unfolded."""
    names = list(records[0]) if records else []
    columns = tuple(Column(str(name), left=index == 0) for index, name in enumerate(names))
    cells = tuple(tuple(brief(record[name]) for name in names) for record in records)
    return Table(columns, cells, title, note, folded=True)


def of_chance(probability: float) -> str:
    """A probability in percent; one that rounds to nothing says so."""
    return "<0.1%" if 0 < probability < 0.0005 else f"{probability:.1%}"


def place(tokens: Sequence[str], position: int) -> Line:
    """Where in a prompt something is read: the token, and its position among the others."""
    return line(token(tokens[position], "marked"), f", position {position} of 0 to {len(tokens) - 1}")
