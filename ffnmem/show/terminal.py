"""Tables for eyes: tokens with their whitespace visible, numbers with as many digits as mean something.

Token text is untrusted. It only ever enters a table as :class:`rich.text.Text`, never as markup.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rich import box
from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, ConsoleRenderable, Group, RenderableType, RenderHook
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from ..core import sheets
from ..core.token_text import flowing, pieces, printable

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
    """A renderable without anything in its text that would not show: in a file or a pipe, no spaces at the ends of a
    table's lines either."""

    def __init__(self, inner: RenderableType) -> None:
        self.inner = inner

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        segments = [
            Segment(text if control else printable(text, keep="\n"), style, control)
            for text, style, control in console.render(self.inner, options)
        ]
        if console.is_terminal or isinstance(self.inner, Text):  # a text has no other spaces than its own
            yield from segments
        else:
            yield Segment(re.sub(" +\n", "\n", "".join(segment.text for segment in segments if not segment.control)))


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


def origin_text(fields: Mapping[str, Any], width: int) -> Text:
    """Where the numbers come from, dim; where one line would be wider than ``width``, broken between its parts."""
    values = dict(fields)
    bos, version = values.pop("prepend_bos", None), values.pop("ffnmem", None)
    model, run = (
        gap.join(str(values.pop(name)) for name in names if name in values)
        for gap, names in ((" ", ("model", "fingerprint")), (" on ", ("dtype", "device")))
    )
    parts = [
        *(part for part in (model, run) if part),
        *([] if bos is None else ["with BOS" if bos else "no BOS"]),
        *(f"{name} {value}" for name, value in values.items()),
        *([] if version is None else [f"ffnmem {version}"]),
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
        style = "dim" if bos and index == 0 else "bold underline" if index == position else ""
        line.append(" " if index > first else "")
        line.append_text(token(tokens[index], style))
    if last < len(tokens):
        line.append(f" {MORE}", "dim")
    return line


STYLES = {
    "": "",
    "strong": "bold",
    "marked": "bold underline",
    "soft": "dim",
    "adds": ADDS,
    "takes": TAKES,
    "special": "dim",
}
SHADES = " ░▒▓█"
NEGATIVE = "-"
STRIP = 48  # most columns of a strip of shades; of more values the largest of those that share one
BAR, EIGHTHS = "█", " ▏▎▍▌▋▊▉"
GAP = 2  # between columns
BARE = 12  # the fewest columns of what takes the room that is left
STRETCHED = ("bar", "context", "heat")


def show(sheet: sheets.Sheet, out: Console | None = None) -> None:
    """A sheet on standard output, an empty line between its blocks."""
    out = out or console()
    for at, part in enumerate(rendered(sheet, out)):
        if at:
            out.print()
        out.print(part)


def rendered(sheet: sheets.Sheet, out: Console) -> Iterator[RenderableType]:
    """What a sheet's title and blocks are in rich's words."""
    if sheet.title:
        yield user_text(sheet.title, "bold")
    for block in sheet.blocks:
        match block:
            case sheets.Facts():
                paragraphs = Table.grid(padding=(0, 2, 0, 0))
                paragraphs.add_column(style="bold", no_wrap=True)
                paragraphs.add_column(overflow="fold")
                for name, value in block.rows.items():
                    paragraphs.add_row(Text(name), rich_content(value))
                yield Group(user_text(block.title, "bold"), paragraphs) if block.title else paragraphs
            case sheets.Table() | sheets.Grid() | sheets.Histogram():
                table = block if isinstance(block, sheets.Table) else block.table()
                if not table.folded:
                    yield from (with_words(part, out) for part in as_wide_as(table, out.width))
            case sheets.Words():
                yield rich_line(block.line)
            case sheets.Origin():
                yield origin_text(block.fields, out.width)


def rich_line(parts: sheets.Line) -> Text:
    """A line of spans; what would not show is written as an escape."""
    text = Text()
    for part in parts:
        style = STYLES[part.style]
        text.append_text(token(part.text, style, part.limit) if part.token else user_text(part.text, style))
    return text


def rich_content(value: sheets.Content) -> RenderableType:
    """What stands beside a name, or in a cell of text."""
    if isinstance(value, str):
        return user_text(value)
    if isinstance(value, sheets.Span):
        return rich_line((value,))
    if isinstance(value, sheets.Fitting):
        found = [rich_line(piece) for piece in value.pieces]
        return WholeLines(found) if value.whole else OneLine(found)
    if isinstance(value, sheets.Prompt):
        return prompt_line(value.tokens, value.position, value.bos)
    if value and isinstance(value[0], tuple):
        return Text("\n").join(rich_line(one) for one in value if isinstance(one, tuple))
    return rich_line(tuple(part for part in value if isinstance(part, sheets.Span)))


class WholeLines(OneLine):
    """Pieces on as many lines as they need, none of them broken."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        gap, rest = Text("  "), list(self.pieces)
        while rest:
            count = 1
            while count < len(rest) and gap.join(rest[: count + 1]).cell_len <= options.max_width:
                count += 1
            yield gap.join(rest[:count])
            rest = rest[count:]


def as_wide_as(block: sheets.Table, width: int) -> Iterator[sheets.Table]:
    """A table that is wider than ``width`` as several, where it says which columns stand in each; the first one, where
    it says nothing and those that wrap cannot give way far enough."""
    columns = block.columns
    wide = [
        max(cell_len(column.name), *map(width_of, [] if column.wraps else column_texts(block, index)), 0) + GAP
        for index, column in enumerate(columns)
    ]
    if not any(column.stays for column in columns):
        if not block.ruled or len(columns) < 2 or sum(wide) - GAP <= width:
            yield block
            return
        columns = (replace(columns[0], stays=True), *columns[1:])
    room = width + GAP - sum(size for size, column in zip(wide, columns, strict=True) if column.stays)
    rest = [index for index, column in enumerate(columns) if not column.stays]
    title = block.title
    while rest:
        count = 1
        while count < len(rest) and sum(wide[index] for index in rest[: count + 1]) <= room:
            count += 1
        taken, rest = rest[:count], rest[count:]
        shown = [index for index, column in enumerate(columns) if column.stays or index in taken]
        yield replace(
            block,
            columns=tuple(columns[index] for index in shown),
            rows=tuple(tuple(row[index] for index in shown) for row in block.rows),
            title=title,
            caption="" if rest else block.caption,
        )
        title = ""


def with_words(block: sheets.Table, out: Console) -> RenderableType:
    """A table with its title and caption, which are as wide as the terminal: rich breaks its own at the table's
    width."""
    above = [user_text(block.title, "bold")] if block.title else []
    above += [user_text(block.note, "dim")] if block.note and block.title else []
    below = [
        f"{SHADES[-1]} is {one.scale}, {NEGATIVE} below zero"
        if one.kind == "heat"
        else f"bold: at least half of {one.scale}; underlined: a fifth"
        for one in block.columns
        if one.scale and not (one.kind == "context" and is_plain(out))
    ]
    below += [block.caption] if block.caption else []
    shown = rich_table(block, out)
    return Group(*above, shown, *(user_text(words, "dim italic") for words in below)) if above or below else shown


def is_plain(out: Console) -> bool:
    """Whether styles do not show."""
    return out.color_system is None or out.no_color


def rich_table(block: sheets.Table, out: Console) -> Table:
    """A table of typed columns. Where the terminal is too narrow, only those that wrap give way."""
    texts = [column_texts(block, index) for index in range(len(block.columns))]
    for index, column in enumerate(block.columns):
        if column.kind in STRETCHED:
            room = out.width - room_taken(block, texts, index)
            texts[index] = [
                None if row[index] is None else stretched(column, row[index], room, out) for row in block.rows
            ]
    if block.ruled:
        shown = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    else:
        shown = Table.grid(padding=(0, 2, 0, 0))
    for column in block.columns:
        shown.add_column(
            user_text(column.name),
            justify="left" if column.to_left else "right",
            no_wrap=not column.wraps,
            style="dim" if column.soft else "",
            min_width=column.least or None,
        )
    for index in range(len(block.rows)):
        if index in block.sections:
            shown.add_section()
        style = "bold" if index in block.strong else "dim" if index in block.soft else None
        shown.add_row(*("" if column[index] is None else column[index] for column in texts), style=style)
    return shown


def room_taken(block: sheets.Table, texts: Sequence[Sequence[Any]], index: int) -> int:
    """The terminal's columns that all columns of a table but one take."""
    spare = block.columns[index].spare
    if spare is not None:
        return spare
    widths = [
        max(column.least, len(column.name) if block.ruled else 0, *map(width_of, texts[place]))
        for place, column in enumerate(block.columns)
        if place != index
    ]
    return sum(widths) + GAP * len(widths)


def width_of(value: RenderableType | None) -> int:
    return cell_len(value) if isinstance(value, str) else value.cell_len if isinstance(value, Text) else 0


def column_texts(block: sheets.Table, index: int) -> list[RenderableType | None]:
    """A column's values as text; those whose size depends on the others' come later."""
    column = block.columns[index]
    values = [row[index] for row in block.rows]
    if column.kind in STRETCHED:
        return [None] * len(values)
    places = column.places_of(values)
    return [None if value is None else cell_text(column, value, places) for value in values]


def cell_text(column: sheets.Column, value: Any, places: int) -> RenderableType:
    """One value as its column reads it."""
    if column.kind == "text" or sheets.is_line(value):
        return rich_content(value)
    if column.kind == "token":
        return token(value, limit=int(column.limit or 40))
    text = column.format(value, places)
    return Text(text, ADDS if value >= 0 else TAKES) if column.colour and math.isfinite(value) else text


def stretched(column: sheets.Column, value: Any, room: int, out: Console) -> RenderableType:
    """A bar, a strip of shades or a text around a token, in the columns that are left; other text as it is."""
    if column.kind == "heat" and not isinstance(value, str) and not sheets.is_line(value):
        return heat_strip(value, column.limit or 1.0, min(STRIP, max(room, BARE)))
    if isinstance(value, sheets.Context):
        return in_context(value, room, marked=is_plain(out))
    if isinstance(value, str | tuple | sheets.Span | sheets.Fitting | sheets.Prompt):
        return rich_content(value)
    eighths = round(sheets.share_of(value) * max(room, BARE) * 8)
    return BAR * (eighths // 8) + EIGHTHS[eighths % 8].strip()


def heat_strip(values: Sequence[float], limit: float, most: int = STRIP) -> Text:
    """One character a value; of more than ``most`` values the largest of those that share one."""
    size = -(-len(values) // most)
    result = Text()
    for begin in range(0, len(values), size):
        value = max((float(one) for one in values[begin : begin + size]), key=abs)
        level = round(sheets.share_of_limit(value, limit) * (len(SHADES) - 1))
        if value < 0 and level:
            result.append(NEGATIVE, TAKES)
        else:
            result.append(SHADES[level] if level or value != value else "·", ADDS if level else "dim")
    return result


def shade_style(share: float, negative: bool) -> str:
    """Of a token, by its share of the limit."""
    return "" if share < 0.2 else f"{'bold ' if share >= 0.5 else ''}underline {TAKES if negative else ADDS}"


def shaded_running(tokens: Iterable[sheets.Shade]) -> Text:
    """Tokens after each other, each shaded."""
    text = Text(no_wrap=True)
    for one in tokens:
        text.append_text(running(one.text, shade_style(one.strength, one.negative)))
    return text


FIRES = "bold underline"


def in_context(example: sheets.Context, width: int, marked: bool) -> Text:
    """The token in the middle of ``width`` columns of its text; in guillemets where a style would not show."""
    shades = None if marked else example.shades
    style = "" if marked else FIRES if shades is None else f"reverse {shade_style(1.0, example.negative)}"
    middle = token(example.word, style) if example.blank else running(example.word, style)
    middle.truncate(max(width // 3, 8), overflow="ellipsis")
    if marked:
        middle = Text("«").append_text(middle).append("»")
    before = running(example.before, "") if shades is None else shaded_running(shades.before)
    before = before.append_text(running(example.lead, ""))
    after = running(example.after, "") if shades is None else shaded_running(shades.after)
    left = 2 * (width - cell_len(middle.plain)) // 5  # what comes first is often the beginning of a text
    right = width - left - cell_len(middle.plain)
    start = last_columns(before, left, example.cut_before)
    return start.append_text(middle).append_text(first_columns(after, right, example.cut_after))


def running(text: str, style: str) -> Text:
    """Text as it runs, its spaces as they are, with marks for what would not show."""
    line = Text(no_wrap=True)
    for run, mark in flowing(text):
        line.append(run, f"dim {style}" if mark else style)
    return line


def last_columns(text: Text, width: int, cut: bool) -> Text:
    """The end of a text in exactly ``width`` columns; an ellipsis where something is missing."""
    whole = Text(MORE, "dim").append_text(text) if cut else text
    missing = width - cell_len(whole.plain)
    if missing >= 0:
        return Text(" " * missing).append_text(whole)
    start = len(text)
    while start > 0 and cell_len(text.plain[start - 1 :]) <= width - 1:
        start -= 1
    kept = Text(MORE, "dim").append_text(text[start:])
    return Text(" " * (width - cell_len(kept.plain))).append_text(kept)


def first_columns(text: Text, width: int, cut: bool) -> Text:
    """The beginning of a text in at most ``width`` columns; an ellipsis where something is missing."""
    whole = text.copy().append(MORE, "dim") if cut else text
    if cell_len(whole.plain) <= width:
        return whole
    end = len(set_cell_size(text.plain, max(width - 1, 0)).rstrip(" "))
    return text[:end].append(MORE, "dim")
