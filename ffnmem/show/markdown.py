"""A sheet as Markdown, for notes, issues and pull requests; all text is escaped, so that it can neither format nor link
anything."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ..core import sheets
from ..core.number_text import MISSING
from ..core.token_text import flowing, printable, visible
from .notebook import MINUS, ShownCell, provenance_line, shown_rows, strength

SPECIAL = re.compile(r"([\\`*_{}\[\]()#+\-.!|~>$:@^=])")
ENTITIES = {"&": "&amp;", "<": "&lt;"}


def markdown(sheet: sheets.Sheet) -> str:
    """A sheet's title as a heading, then its blocks."""
    parts = [f"## {escaped(sheet.title)}"] if sheet.title else []
    for block in sheet.blocks:
        match block:
            case sheets.Facts():
                parts += [f"**{escaped(block.title)}**"] if block.title else []
                rows = (f"- **{escaped(name)}** {content_text(value)}" for name, value in block.rows.items())
                parts.append("\n".join(rows))
            case sheets.Table():
                parts += [] if block.folded else table_parts(block)
            case sheets.Grid() | sheets.Histogram():
                parts += table_parts(block.table())
            case sheets.Words():
                parts.append(line_text(block.line))
            case sheets.Origin():
                parts.append(f"*{escaped(provenance_line(block.fields))}*")
    return "\n\n".join([*parts, ""])


def table_parts(block: sheets.Table) -> list[str]:
    """Title, table and what stands below it."""
    parts = [f"**{escaped(block.title)}** {escaped(block.note)}".rstrip()] if block.title else []
    if block.rows:
        head = [escaped(column.name) for column in block.columns]
        body = [[cell_text(one) for one in row] for row in shown_rows(block)]
        parts.append("\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *body)))
    legends = [f"1.00 is {column.scale}" for column in block.columns if column.scale]
    return [*parts, *map(escaped, [*legends, *([block.caption] if block.caption else [])])]


def cell_text(one: ShownCell) -> str:
    """A cell as it reads. Numbers have the minus sign of a keyboard, as those in running text have."""
    if one.value is None:
        return ""
    if sheets.is_line(one.value):
        return line_text(one.value)
    match one.column.kind:
        case "text" | "context":
            return content_text(one.value)
        case "token":
            return quoted([one.value])
        case "heat":
            return " ".join(strength(value, one.column.limit or 1.0) for value in one.value)
        case "bar":
            return escaped("█" * round(20 * sheets.share_of(one.value)))
        case _:
            return escaped(one.text.replace(MINUS, "-"))


def content_text(value: sheets.Content | sheets.Context) -> str:
    if isinstance(value, str):
        return escaped(value)
    if isinstance(value, sheets.Span):
        return line_text((value,))
    if isinstance(value, sheets.Context):
        return context_text(value)
    if isinstance(value, sheets.Fitting):
        return ", ".join(line_text(piece) for piece in value.pieces) or MISSING
    if isinstance(value, sheets.Prompt):
        return " ".join(
            f"**{quoted([token])}**" if i == value.position else quoted([token]) for i, token in enumerate(value.tokens)
        )
    if value and isinstance(value[0], tuple):
        return "<br>".join(line_text(one) for one in value if isinstance(one, tuple))
    return line_text(tuple(part for part in value if isinstance(part, sheets.Span)))


def line_text(parts: sheets.Line) -> str:
    return "".join(
        quoted([part.text])
        if part.token
        else f"**{escaped(part.text)}**"
        if part.style == "strong"
        else escaped(part.text)
        for part in parts
    )


def context_text(found: sheets.Context) -> str:
    before, after = running(found.before + found.lead), running(found.after)
    word = escaped(visible(found.word)) if found.blank else running(found.word)
    text = f"{'…' if found.cut_before else ''}{before}<b>{word}</b>{after}{'…' if found.cut_after else ''}"
    return text.strip()


def quoted(found: Iterable[str]) -> str:
    """Tokens in quotes, so that their spaces can be seen."""
    return ", ".join(f"“{escaped(visible(token))}”" for token in found) or MISSING


def running(text: str) -> str:
    return escaped("".join(part for part, _ in flowing(text)))


def escaped(text: str) -> str:
    """Text that Markdown and HTML leave as it is."""
    return "".join(ENTITIES.get(char, char) for char in SPECIAL.sub(r"\\\1", printable(text)))
