"""Text around a firing token, cut to the width of a terminal."""

from __future__ import annotations

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from ..reports.examples import Example
from ..token_text import flowing
from .tables import MORE, token

FIRES = "bold underline"


def in_context(example: Example, width: int, marked: bool) -> Text:
    """The token in the middle of ``width`` columns of its text; in guillemets where a style would not show."""
    style = "" if marked else FIRES
    middle = token(example.word, style) if example.blank else running(example.word, style)
    middle.truncate(max(width // 3, 8), overflow="ellipsis")
    if marked:
        middle = Text("«").append_text(middle).append("»")
    before = running(example.before + example.lead, "")
    left = 2 * (width - cell_len(middle.plain)) // 5  # what comes first is often the beginning of a text
    right = width - left - cell_len(middle.plain)
    line = last_columns(before, left, example.cut_before)
    return line.append_text(middle).append_text(first_columns(running(example.after, ""), right, example.cut_after))


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
