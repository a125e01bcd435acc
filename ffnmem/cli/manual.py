"""The help of a command as plain text: usage, description, and two columns of options."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cyclopts.help import HelpEntry, HelpPanel
    from rich.console import Console, ConsoleOptions

WIDTH = 80  # of every help text, whatever the terminal, so that the manual reads the same everywhere
LEFT = 32  # columns for the names of options, at most


class PlainHelp:
    """A formatter for cyclopts: text without frames, colours and markup, at most ``WIDTH`` columns wide."""

    def render_usage(self, console: Console, options: ConsoleOptions, usage: Any) -> None:
        """``Usage: ffnmem attribute [OPTIONS] PROMPT``."""
        words = re.sub(r"\bCOMMAND (?=\S)", "[COMMAND] ", plain_text(usage).removeprefix("Usage: "))
        write_lines(console, [f"Usage: {words}", ""])

    def render_description(self, console: Console, options: ConsoleOptions, description: Any) -> None:
        """Paragraphs filled to the width; lines that stand further in, such as examples, stay as they are."""
        for paragraph in plain_text(description).split("\n\n"):
            write_lines(console, [*fill_paragraph(paragraph), ""])

    def __call__(self, console: Console, options: ConsoleOptions, panel: HelpPanel) -> None:
        """One group of arguments, options or commands."""
        rows = [(", ".join(entry.display_labels_with_metavar), describe_entry(entry)) for entry in panel.entries]
        if rows:
            left = min(LEFT, max(len(name) for name, _ in rows) + 4)
            write_lines(console, [f"{panel.title}:", *(line for row in rows for line in two_columns(*row, left)), ""])


def plain_text(rendered: Any) -> str:
    """The text of what cyclopts has made of a usage or a docstring."""
    text = getattr(rendered, "primary_renderable", rendered)
    return getattr(text, "plain", str(text or "")).strip("\n")


def fill_paragraph(paragraph: str) -> list[str]:
    """The lines of a paragraph of at most ``WIDTH`` columns."""
    lines = paragraph.split("\n")
    if any(line.startswith(" ") for line in lines):
        return [f"  {line}" if line else "" for line in lines]
    return textwrap.wrap(" ".join(lines), WIDTH, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)


def describe_entry(entry: HelpEntry) -> str:
    """What an option does, which values it takes, and its default."""
    words = " ".join(plain_text(entry.description).split())
    default = None if entry.default in ("True", "False", "[]", "()") else entry.default
    notes = [
        *([f"choices: {', '.join(entry.choices)}"] if entry.choices else []),
        *([f"default: {default}"] if default is not None else []),
        *(["required"] if entry.required and entry.names else []),
    ]
    return f"{words} [{'; '.join(notes)}]" if notes else words


def two_columns(name: str, words: str, left: int) -> Iterable[str]:
    """An option's names and what it does; names that are too long have a line of their own."""
    lines = textwrap.wrap(words, WIDTH - left, break_on_hyphens=False) or [""]
    if len(name) + 4 > left:
        return [f"  {name}", *(" " * left + line for line in lines if line)]
    return [f"{'  ' + name:<{left}}{lines[0]}".rstrip(), *(" " * left + line for line in lines[1:])]


def write_lines(console: Console, lines: Iterable[str]) -> None:
    console.file.write("".join(f"{line.rstrip()}\n" for line in lines))
