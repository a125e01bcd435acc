"""A sheet as HTML: templates filled in, bars drawn, in a frame that no style of a page reaches."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from itertools import accumulate
from types import MappingProxyType
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from ..core.errors import counted
from ..core.number_text import MISSING, format_number, format_probability
from ..core.sheets import (
    Block,
    Column,
    Content,
    Context,
    Fitting,
    Grid,
    Histogram,
    Prompt,
    Shade,
    Sheet,
    Span,
    Table,
    is_line,
    share_of,
    share_of_limit,
)
from ..core.token_text import flowing, page_text, pieces, visible

# The geometry of bars on one scale.


@dataclass(frozen=True)
class Axis:
    """A scale from logits to 0…1000, the width of every bar's drawing; zero is always on it."""

    low: float
    high: float

    @classmethod
    def over(cls, values: Sequence[float]) -> Axis:
        finite = [value for value in values if math.isfinite(value)]
        low, high = min([0.0, *finite]), max([0.0, *finite])
        return cls(low, high if high > low else low + 1.0)

    def at(self, value: float) -> float:
        return round(1000 * (value - self.low) / (self.high - self.low), 2) if math.isfinite(value) else self.at(0.0)


@dataclass(frozen=True)
class Bar:
    """From ``start`` to ``end``, both in 0…1000, as ``x`` and ``width`` that never vanish."""

    start: float
    end: float
    zero: float
    adds: bool

    @property
    def x(self) -> float:
        return min(self.start, self.end, 997.0)

    @property
    def width(self) -> float:
        return max(abs(self.end - self.start), 3.0)


def bar(axis: Axis, logit: float, before: float = 0.0) -> Bar:
    return Bar(axis.at(before), axis.at(before + logit), axis.at(0.0), logit >= 0)


# Templates to HTML: the one place where numbers, tokens and provenance become text for a page.

MINUS = "−"  # as wide as a plus sign and a digit, so that columns of numbers line up
HERE = "ffnmem.show"


def render(template: str, *, package: str | tuple[str, ...] = HERE, **values: Any) -> str:
    """A template of ``templates/`` of a package, of several, or of this one, filled in; every value is escaped unless a
    filter made it."""
    packages = (package,) if isinstance(package, str) else package
    return environment(*packages).get_template(template).render(**values)


@cache
def environment(*packages: str) -> Environment:
    """The templates of packages, the first that has one, each compiled when first used, which takes longer than to fill
    it in."""
    found = Environment(
        loader=ChoiceLoader([PackageLoader(name) for name in dict.fromkeys((*packages, HERE))]),
        autoescape=True,
        auto_reload=False,  # they are the package's: else each is looked at again for every page
        finalize=finished,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters.update(
        running=running_html,
        signed=signed,
        plain=plain,
        count=count,
        setting=setting,
        content=content_html,
        rows=rows_html,
        wide=is_wide,
        grid_rows=grid_rows,
        drawn=draw_histogram,
        typeset=typeset,
        kind=kind_of,
        strength=strength,
        provenance=provenance_line,
        widens=widens,
        counted=counted,
    )
    return found


def finished(value: Any) -> Any:
    """What an expression of a template gave: what no filter has made, may come from anywhere."""
    return Markup(page_text(value)) if isinstance(value, str) and not isinstance(value, Markup) else value


@lru_cache(maxsize=4096)  # pages say the same tokens again and again
def token_html(token: str) -> Markup:
    """A token's text, escaped, with whitespace and unprintable characters as marks that styles can dim."""
    return marked_html(pieces(token))


def chip_html(token: str, kind: str = "", note: str = "", named: bool = False) -> Markup:
    """A token as a chip of a kind; ``note``: what a pointer on it tells."""
    look = f"{f' fm-{kind}' if kind else ''}{' fm-named' if named else ''}"
    return Markup(f'<span class="fm-chip{look}" translate="no"{title(note)}>{token_html(token)}</span>')


def running_html(text: str) -> Markup:
    """Running text in the same way, but with its spaces as they are."""
    return marked_html(flowing(text))


def marked_html(parts: Iterable[tuple[str, bool]]) -> Markup:
    return Markup(
        "".join(f'<span class="fm-mark">{escape(text)}</span>' if is_mark else escape(text) for text, is_mark in parts)
    )


# What stands in cells and beside names.

CHIPS = {"special": "special", "adds": "promoted", "takes": "suppressed"}


Links = Mapping[str, Callable[[Any], str]]
"""By the kind of what is shown ("neuron", "token"): the address to which it leads on a page; empty where to none."""
NO_LINKS: Links = MappingProxyType({})


def linked(html: str, leads: tuple[str, Any] | None, links: Links) -> str:
    """What is shown, with a link to where it leads. An "address" leads to itself."""
    if leads is None:
        return html
    kind, value = leads
    address = value if kind == "address" else links[kind](value) if kind in links else ""
    return f'<a href="{page_text(address)}">{html}</a>' if address else html


def span_html(part: Span, links: Links = NO_LINKS) -> str:
    """A run of text in its style, with what a pointer on it tells and where it leads."""
    note, strong = title(part.note), part.style in ("strong", "marked")
    if part.token:
        html = str(chip_html(part.text, CHIPS.get(part.style, ""), part.note, strong))
    elif strong:
        html = f"<b{note}>{running_html(part.text)}</b>"
    elif part.style or note:
        look = f' class="fm-{part.style.replace("special", "soft")}"' if part.style else ""
        html = f"<span{look}{note}>{running_html(part.text)}</span>"
    else:
        html = str(running_html(part.text))
    return linked(html, part.leads or (("token", part.text) if part.token else None), links)


def content_html(value: Content | Context, links: Links = NO_LINKS) -> Markup:
    """What stands beside a name, in a cell of text or as a paragraph."""
    match value:
        case str():
            return running_html(value)
        case Span():
            return Markup(span_html(value, links))
        case Context():
            return context_html(value)
        case Fitting():
            return Markup(f'<span class="fm-chips">{" ".join(content_html(one, links) for one in value.pieces)}</span>')
        case Prompt():
            chips = (
                chip_html(text, "special" if value.bos and not i else "", named=i == value.position)
                for i, text in enumerate(value.tokens)
            )
            return Markup(f'<span class="fm-chips">{" ".join(chips)}</span>')
    if value and isinstance(value[0], Span):
        return Markup("".join(span_html(one, links) for one in value))
    return Markup("<br>".join(content_html(one, links) for one in value))


def heat_html(values: Sequence[float], limit: float, each: str) -> Markup:
    """Shades beside each other."""
    cells = (
        f'<i style="--a: {strength(value, limit)}"{" class=fm-down" if value < 0 else ""}'
        f"{title(f'{each} {i}: {signed(value, 3)}')}></i>"
        for i, value in enumerate(values)
    )
    return Markup(f'<span class="fm-heat">{"".join(cells)}</span>')


def cell_html(one: ShownCell, links: Links = NO_LINKS) -> Markup:
    """A value of a table."""
    column, value = one.column, one.value
    if value is None:
        return Markup("")
    if column.kind in ("text", "context") or is_line(value):
        return content_html(value, links)
    match column.kind:
        case "token":
            return Markup(linked(chip_html(value), (column.leads, value) if column.leads else None, links))
        case "heat":
            return heat_html(value, column.limit or 1.0, column.each or column.name)
        case "bar":
            bar = f'<rect class="fm-plus" x="0" y="7" width="{1000 * share_of(value):.2f}" height="16"></rect>'
            return Markup(f"{BAR}{bar}</svg>")
        case "neuron":
            name = page_text(one.text)  # of a result that was loaded, anything may stand there
            place = f'class="fm-neuron"{title(f"layer {value[0]}, neuron {value[1]}")}'
            tick = links["tick"](value) if "tick" in links else ""
            address = links["neuron"](value) if "neuron" in links else ""
            if address:
                return Markup(f'{tick}<a {place} href="{page_text(address)}">{name}</a>')
            return Markup(f"{tick}<span {place}>{name}</span>")
        case "count":
            return Markup(one.text)
    colour = (
        f' class="fm-number {"fm-adds" if value > 0 else "fm-takes" if value < 0 else ""}"' if column.colour else ""
    )
    filled = f' style="--p:{share_of(value):.4f}"' if column.kind == "probability" else ""
    return Markup(f'<data{colour}{filled} value="{value}">{one.text}</data>')


BAR = '<svg class="fm-bar" viewBox="0 0 1000 30" preserveAspectRatio="none" aria-hidden="true" focusable="false">'


def rows_html(block: Table, links: Links = NO_LINKS) -> Markup:
    """The rows of a table; of a wide one each value with its column's name, for screens without package for columns."""
    names = [title(column.name).replace("title", "data-name", 1) if is_wide(block) else "" for column in block.columns]
    return Markup("\n".join(row_html(block, at, row, names, links) for at, row in enumerate(shown_rows(block))))


def is_wide(block: Table) -> bool:
    """Whether a table is shown as cards on a narrow screen."""
    return block.ruled and (len(block.columns) > 4 or any(column.wraps for column in block.columns))


def row_html(block: Table, at: int, row: Sequence[ShownCell], names: Sequence[str], links: Links) -> str:
    """A row, with the bars of those columns that have some."""
    looks = (
        ["fm-total"] * (at in block.strong) + ["fm-back"] * (at in block.soft) + ["fm-rule"] * (at in block.sections)
    )
    cells = []
    for i, one in enumerate(row):
        html = cell_html(one, links)
        wraps = "fm-wraps" if one.column.wraps and isinstance(one.value, str) else ""
        if i == 0 and one.column.to_left and block.ruled:
            cells.append(f'<th scope="row" class="{wraps}">{html}</th>' if wraps else f'<th scope="row">{html}</th>')
        else:
            left = f' class="{f"fm-left {wraps}".rstrip()}"' if one.column.to_left else ""
            cells.append(f"<td{left}{names[i] if html else ''}>{html}</td>")
        if one.column.bars:
            cells.append(f'<td class="fm-cell">{bar_html(one.bar, one.column.bars == "steps") if one.bar else ""}</td>')
    look = f' class="{" ".join(looks)}"' if looks else ""
    return f"<tr{look}>{''.join(cells)}</tr>"


def bar_html(bar: Bar, step: bool = False) -> str:
    """A bar on a zero line. With ``step``, a waterfall's: lines lead in from the row above and out to the row below."""
    lines = f'<path class="fm-step" d="M{bar.start} 0V7M{bar.end} 23V30"></path>' if step else ""
    look = "fm-plus" if bar.adds else "fm-minus"
    return (
        f'{BAR}<line class="fm-axis" x1="{bar.zero}" x2="{bar.zero}" y1="0" y2="30"></line>{lines}'
        f'<rect class="{look}" x="{bar.x}" y="7" width="{bar.width}" height="16"></rect></svg>'
    )


# A token in its context. Of a shaded one each token is an element of its own, with its number for a pointer.

FAINT = 0.03  # a share that would hardly be seen: the token has its number, and no colour


def context_html(found: Context, widen: str = "") -> Markup:
    """A token where it stands, marked. ``widen``: the id of the checkbox that shows what goes on, where it has one."""
    shades, dots = found.shades, "…"
    if shades is not None:
        cut = f'label class="fm-cut" for="{page_text(widen)}"' if widen else 'span class="fm-cut"'
        dots = f"<{cut}>…</{cut.partition(' ')[0]}>"
    negative = " fm-negative" if found.negative else ""
    word = token_html(found.word) if found.blank else running_html(found.word)
    mark = f'<mark class="fm-fire{negative}" style="--a:{float(found.strength):g}"{title(found.note)}>{word}</mark>'
    lead = running_html(found.lead)
    if shades is None:
        before, after = f"{running_html(found.before)}{lead}", str(running_html(found.after))
    else:
        before = f"{further_html(shades.further_before)}{shades_html(shades.before)}{lead}"
        after = f"{shades_html(shades.after)}{further_html(shades.further_after)}"
    begins, ends = (dots if cut else "" for cut in (found.cut_before, found.cut_after))
    return Markup(f'<bdi class="fm-context" translate="no">{begins}{before}{mark}{after}{ends}</bdi>')


def title(note: str) -> str:
    """The attribute of what a pointer tells, where it tells anything."""
    return f' title="{page_text(note)}"' if note else ""


def shades_html(tokens: Iterable[Shade]) -> Markup:
    """Tokens after each other."""
    return Markup("".join(map(shade_html, tokens)))


def shade_html(one: Shade) -> str:
    """A token; spaces before it have no shade, so that one ends where the next begins."""
    strong = one.strength >= FAINT
    sign = ' class="fm-n"' if one.negative and strong else ""
    style = f' style="--a:{one.strength:g}"' if strong else ""
    word = one.text.lstrip(" ") or one.text
    lead = " " * (len(one.text) - len(word))
    return f"{lead}<i{sign}{style}{title(one.note)}>{running_html(word)}</i>"


def further_html(tokens: Sequence[Shade]) -> Markup:
    """Tokens that are shown on request."""
    return Markup(f'<span class="fm-further">{shades_html(tokens)}</span>') if tokens else Markup("")


def widens(rows: Iterable[Iterable[Any]]) -> bool:
    """Whether some contexts in rows of a table have tokens that are shown on request."""
    found = (one.shades for row in rows for one in row if isinstance(one, Context))
    return any(one is not None and (one.further_before or one.further_after) for one in found)


def typeset(text: str) -> str:
    """A number as :mod:`ffnmem.core.number_text` has it, for a page."""
    return text.replace("-", MINUS)


def plain(value: float, digits: int = 2) -> str:
    """A number with a fixed count of decimals, without a plus sign."""
    return typeset(format_number(value, digits))


def signed(value: float, digits: int = 2) -> str:
    """The same with a plus sign, and none for what rounds to zero."""
    return typeset(format_number(value, digits, sign=True))


def count(value: int) -> str:
    """A whole number with thousands."""
    return f"{value:,}"


def setting(value: Any) -> str:
    """A field of the provenance in words."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return MISSING if value is None else str(value)


def provenance_line(fields: Mapping[str, Any]) -> str:
    """Provenance on one line: ``model atlas · fingerprint … · …``."""
    return " · ".join(f"{name} {setting(value)}" for name, value in fields.items())


# The frame of all that notebooks show: styles that no page around it reaches, and that reach none.
#
# Notebook pages style elements by their names (JupyterLab floats every `dt`, Bootstrap draws every `table`). So the
# frame first takes back whatever styles its elements have from elsewhere, by a selector more specific than a page's
# own, and then sets its own, which all begin with that selector.

NAME = "ffnmem"
ROOT = f".{NAME}:not(#_):not(#_)"
""":not(#_) holds for every element without that id, and counts as much as an id: a page that styles what is in an
element of its own by two ids would still lose."""

RESET = f"""\
{ROOT} {{ all: initial; display: block; color: inherit; color-scheme: inherit; }}
{ROOT} *:where(:not(svg *)), {ROOT} *::before, {ROOT} *::after {{ all: revert; }}
{ROOT} svg * {{ fill: inherit; stroke: none; opacity: 1; filter: none; display: inline; visibility: visible; }}
"""  # not all of what is in drawings: their geometry counts as style, and would be taken back as well


@cache
def styles() -> str:
    """The frame's styles."""
    templates = files(HERE) / "templates"
    own = "".join((templates / f"{sheet}.css").read_text("utf-8") for sheet in ("pieces", "contexts", "notebook"))
    return RESET + own.replace(f".{NAME}", ROOT)


def framed(html: str) -> str:
    """HTML in the frame, with its styles."""
    return f'<div class="{NAME}">\n<style>\n{styles()}</style>\n{html}\n</div>'


# A sheet as HTML: for notebooks in a frame of its own, for pages without it.


def html(sheet: Sheet) -> str:
    """A sheet in the frame that no style of the page around it reaches."""
    return framed(render("sheet.html", sheet=sheet))


@dataclass(frozen=True)
class ShownCell:
    """A value in its column, as it reads, with its bar if the column has bars."""

    column: Column
    value: Any
    text: str
    bar: Bar | None


def shown_rows(block: Table) -> list[list[ShownCell]]:
    """The rows of a table."""
    columns = [column_cells(column, [row[i] for row in block.rows]) for i, column in enumerate(block.columns)]
    return [list(row) for row in zip(*columns, strict=True)]


def column_cells(column: Column, values: list[Any]) -> Iterator[ShownCell]:
    """A column's values as they read, with their bars."""
    numbers = [value for value in values if isinstance(value, int | float)]
    places = column.places_of(numbers)
    axis = Axis.over(list(accumulate(numbers)) if column.bars == "steps" else numbers) if column.bars else None
    total = 0.0
    for value in values:
        drawing = None
        if axis is not None and isinstance(value, int | float):
            drawing = bar(axis, value, total)
            total += value if column.bars == "steps" else 0.0
        text = "" if value is None or is_line(value) else typeset(column.format(value, places))
        yield ShownCell(column, value, text, drawing)


@dataclass(frozen=True)
class GridCell:
    """A cell of a grid: its number as it reads, how strongly it is shaded, and what a pointer on it tells."""

    text: Markup
    strength: str
    negative: bool
    note: str


FEW = 16  # columns of a grid whose cells have room for numbers


def grid_rows(block: Grid, links: Links = NO_LINKS) -> list[list[GridCell]]:
    """The cells of a grid; of one with many columns their numbers are what a pointer tells."""
    names = [[one.text if isinstance(one, Span) else one for one in part] for part in (block.rows, block.columns)]
    found = []
    for row, (values, texts) in enumerate(zip(block.values, block.texts, strict=True)):
        cells = []
        for column, (value, text) in enumerate(zip(values, texts, strict=True)):
            known = value is not None and math.isfinite(value)
            note = f"{names[0][row]}, {visible(names[1][column])}: {typeset(text) or MISSING} {block.unit}".rstrip()
            more = block.notes.get((row, column), "")
            leads = ("cell", block.leads[row, column]) if (row, column) in block.leads else None
            shown = typeset(text) if len(block.columns) <= FEW else ""
            cells.append(
                GridCell(
                    Markup(linked(shown or "&nbsp;", leads, links)) if leads else Markup(shown),
                    strength(value, block.limit) if value is not None else "0",
                    bool(known and value is not None and value < 0),
                    f"{note}; {more}" if more else note,
                )
            )
        found.append(cells)
    return found


@dataclass(frozen=True)
class HistogramDrawing:
    """A histogram as geometry, 1000 wide and 100 high: what is counted per unit, on a logarithmic scale.

    Attributes:
        bars: as they are drawn, each with what a pointer on it tells.
        tens: whole powers of ten, from the top, and ticks: round numbers along the edges, in percent.
        zero: where 0 is; None outside.
    """

    bars: Markup
    tens: list[tuple[float, str]]
    ticks: list[tuple[float, str]]
    zero: float | None


def draw_histogram(block: Histogram) -> HistogramDrawing:
    """The geometry of a histogram."""
    low, high = block.edges[0], block.edges[-1]
    span, total = (high - low) or 1.0, sum(block.counts)
    bins = list(zip(block.edges, block.edges[1:], block.counts, strict=False))
    logs = [math.log10(count / (end - start)) if count and end > start else None for start, end, count in bins]
    known = [log for log in logs if log is not None] or [0.0]
    floor, top = min(known) - 0.4, max(known)
    scale = 100 / max(top - floor, 1e-9)
    bars = "".join(
        f'<rect class="{"fm-plus" if start >= 0 else "fm-minus"}" x="{1000 * (start - low) / span:.6g}" '
        f'y="{100 - (log - floor) * scale:.4g}" width="{1000 * (end - start) / span:.4g}" '
        f'height="{(log - floor) * scale:.4g}"><title>{typeset(f"{start:.4g} to {end:.4g}")}: {count:,} '
        f"{page_text(block.counted)}, {format_probability(count / total)}</title></rect>"
        for (start, end, count), log in zip(bins, logs, strict=True)
        if log is not None
    )
    powers = list(range(math.ceil(floor), math.floor(top) + 1))
    tens = [
        (round(100 - (ten - floor) * scale, 2), f"{10.0**ten:,.9g}" if -3 < ten < 6 else f"1e{ten}")
        for ten in powers[:: 1 if len(powers) < 7 else 2]
    ]
    zero = round(1000 * -low / span, 2) if low <= 0 <= high else None
    ticks = [(round(100 * (x - low) / span, 2), plain(x, places)) for x, places in round_numbers(low, high)]
    return HistogramDrawing(Markup(bars), tens, ticks, zero)


def round_numbers(low: float, high: float) -> list[tuple[float, int]]:
    """Some five round numbers from ``low`` to ``high``, and the decimals that each needs."""
    if not 0 < high - low < math.inf:
        return []
    raw = (high - low) / 5
    ten = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * ten for factor in (1, 2, 5, 10) if factor * ten >= raw)
    places = max(0, -math.floor(math.log10(step)))
    return [(n * step, places) for n in range(math.ceil(low / step), math.floor(high / step) + 1)]


def kind_of(block: Block) -> str:
    """Which block it is: its class."""
    return type(block).__name__


def strength(value: float, limit: float) -> str:
    """A magnitude as a share of the limit; nothing for one that is no number."""
    return f"{share_of_limit(value, limit):.2f}" if value == value else "0"
