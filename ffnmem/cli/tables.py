"""Tables for eyes: tokens with their whitespace visible, numbers with as many digits as mean something.

Token text is untrusted. It only ever enters a table as :class:`rich.text.Text`, never as markup.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderableType, RenderHook
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from ..token_text import pieces, printable

WIDEST = 120
"""Lines longer than this are hard to read; a narrower terminal has its own width."""
NARROWEST = 60
MORE = "…"
REST = f"  {MORE}"  # of a list
ADDS, TAKES = "#0087d7", "#d75f00"  # seen on light and on dark terminals


def console() -> Console:
    """Standard output, 80 columns wide where it is no terminal."""
    out = Console(highlight=False, markup=False, emoji=False)
    out.width = max(NARROWEST, min(out.width, WIDEST))
    out.push_render_hook(Printable())
    return out


class Printable(RenderHook):
    """The last thing before the terminal: whatever a text came from, it holds nothing that a terminal obeys."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [PrintableOnly(one) for one in renderables]


class PrintableOnly:
    """A renderable without anything in its text that would not show."""

    def __init__(self, inner: RenderableType) -> None:
        self.inner = inner

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for text, style, control in console.render(self.inner, options):
            yield Segment(text if control else printable(text, keep="\n"), style, control)


def token(text: str, style: str = "", limit: int = 40) -> Text:
    """A token of at most ``limit`` columns; the marks that stand for whitespace are dim."""
    result = Text()
    for run, mark in pieces(text):
        result.append(run, "dim" if mark else style)
    result.truncate(limit, overflow="ellipsis")
    return result


class OneLine:
    """As many whole pieces as fit into one line of its cell, two spaces apart; an ellipsis where some do not."""

    def __init__(self, pieces: Sequence[Text]) -> None:
        self.pieces = pieces

    def fitting(self, width: int) -> Text:
        line = Text(no_wrap=True, overflow="ellipsis")
        last = len(self.pieces) - 1
        for index, piece in enumerate(self.pieces):
            gap = "  " if index else ""
            room = width - (0 if index == last else len(REST))
            if index and line.cell_len + len(gap) + piece.cell_len > room:
                return line.append(REST, "dim")
            line.append(gap).append_text(piece)
        return line

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        yield self.fitting(options.max_width)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(1, min(self.fitting(options.max_width).cell_len, options.max_width))


def token_line(tokens: Iterable[str], bold: Sequence[str] = ()) -> OneLine:
    """Tokens on one line; ``bold`` ones stand out."""
    return OneLine([token(text, "bold" if text in bold else "") for text in tokens])


def decimals(values: Iterable[float], digits: int = 4) -> int:
    """Decimal places that show the largest of some values with ``digits`` significant digits."""
    largest = max((abs(v) for v in values if math.isfinite(v)), default=0.0)
    if largest == 0:
        return digits - 1
    return min(max(digits - 1 - math.floor(math.log10(largest)), 0), 9)


def number(value: float, places: int, sign: bool = False) -> str:
    """A number with fixed places; a dash where there is none."""
    if not math.isfinite(value):
        return "–"
    return f"{value:{'+' if sign else ''}.{places}f}"


def percent(value: float) -> str:
    """A share of a whole, in percent, without a sign where it rounds to nothing; a dash where there is none."""
    return f"{value:z.1%}" if math.isfinite(value) else "–"


def probability(value: float) -> str:
    """A probability in percent; one that rounds to nothing says so."""
    return "<0.1%" if 0 < value < 0.0005 else f"{value:.1%}"


def plain_table(*columns: str, left: Sequence[str] = (), wraps: Sequence[str] = (), title: str = "") -> Table:
    """An empty table with a rule under its header; columns are right-aligned unless named in ``left`` or ``wraps``.

    Where the terminal is too narrow, only the columns in ``wraps`` give way.
    """
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    if title:
        table.title, table.title_justify, table.title_style = Text(title), "left", "bold"
    for name in columns:
        to_left = name in left or name in wraps
        table.add_column(Text(name), justify="left" if to_left else "right", no_wrap=name not in wraps)
    return table


def captioned(table: Table, caption: str) -> Table:
    """The table with words below it, from the left."""
    table.caption, table.caption_justify = Text(caption), "left"
    return table


def explain_negatives(table: Table, coefficients: Iterable[float]) -> None:
    """Say below a table what a negative coefficient means, if it has one."""
    if any(coefficient < 0 for coefficient in coefficients):
        captioned(table, "a negative coefficient writes the opposite of what the value promotes")


def labelled(rows: Mapping[str, RenderableType]) -> Table:
    """Short paragraphs, each with its name before it."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, text in rows.items():
        grid.add_row(Text(name), text)
    return grid


def provenance_line(provenance: Mapping[str, Any], width: int, **more: Any) -> Text:
    """Where the numbers come from, dim; where one line would be wider than ``width``, broken between its parts."""
    values = {**provenance, **more}
    bos, version = values.pop("prepend_bos", None), values.pop("ffnmem")
    parts = [
        f"{values.pop('model')} {values.pop('fingerprint')}",
        f"{values.pop('dtype')} on {values.pop('device')}",
        *([] if bos is None else ["with BOS" if bos else "no BOS"]),
        *(f"{name} {value}" for name, value in values.items()),
        f"ffnmem {version}",
    ]
    line = Text(style="dim")
    column = 0
    for index, part in enumerate(map(user_text, parts)):
        breaks = index > 0 and column + 3 + part.cell_len > width
        line.append("" if index == 0 else "\n" if breaks else " · ").append_text(part)
        column = part.cell_len + (0 if breaks or index == 0 else column + 3)
    return line


def user_text(text: str, style: str = "") -> Text:
    """Text of the user's or of a file, such as a path: spaces stay, what would not show is written as an escape."""
    return Text(printable(text), style)


def prompt_line(tokens: Sequence[str], position: int, bos: bool, limit: int = 24) -> Text:
    """The prompt's tokens up to ``position`` and a few after it, one space apart, that position underlined."""
    first = max(0, min(position + 1 + limit // 6, len(tokens)) - limit)
    last = min(len(tokens), first + limit)
    line = Text()
    if first:
        line.append(f"{MORE} ", "dim")
    for index in range(first, last):
        style = "bold underline" if index == position else ""
        line.append(" " if index > first else "")
        line.append_text(Text("BOS", "dim") if bos and index == 0 else token(tokens[index], style))
    if last < len(tokens):
        line.append(f" {MORE}", "dim")
    return line
