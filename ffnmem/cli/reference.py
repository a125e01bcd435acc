"""The manual of the commands: ``python -m ffnmem.cli.reference docs/cli.md`` writes it, ``--check`` compares."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from cyclopts import App

from ..core.errors import FileError
from . import app, run_captured
from .guard import note, run_guarded
from .table import COMMANDS

BEGIN, END = "<!-- cli:begin -->", "<!-- cli:end -->"


def manual() -> str:
    """A table of the commands with the first line of their help, then a section with each one's ``--help``."""
    helps = {name: help_text(name) for name in every_command()}
    rows = "\n".join(
        f"| [`ffnmem {name}`](#ffnmem-{name.replace(' ', '-')}) | {summary(text)} |" for name, text in helps.items()
    )
    sections = "\n\n".join(f"## ffnmem {name}\n\n```text\n{text}\n```" for name, text in helps.items())
    return f"| command | what it prints |\n|---|---|\n{rows}\n\n{sections}"


def every_command() -> Iterator[str]:
    """The commands in the manual's order, each followed by its subcommands: ``"evaluate"``, ``"evaluate sweep"``."""
    for name in COMMANDS:
        yield name
        yield from (f"{name} {inner}" for inner in app[name] if not inner.startswith("-"))


def help_text(name: str) -> str:
    """What ``ffnmem NAME --help`` prints."""
    return run_captured([*name.split(), "--help"])[1].strip()


def summary(text: str) -> str:
    """The first paragraph under the usage."""
    return " ".join(text.split("\n\n")[1].split())


def with_block(text: str, file: str, marks: tuple[str, str], body: str) -> str:
    """A text with what stands between two marks replaced; raises FileError unless each is there once, in that order."""
    first, last = marks
    before, begin, rest = text.partition(first)
    _, end, after = rest.partition(last)
    if not begin or not end or first in after or last in after or last in before:
        raise FileError(f"{file} needs one line {first} and, after it, one line {last}")
    return f"{before}{first}\n{body}\n{last}{after}"


def reference(file: str, /, *, check: bool = False) -> int:
    """Write the manual of every ffnmem command into a page, between its cli:begin and cli:end lines.

    Args:
        file: The page.
        check: Change nothing; exit with status 1 if the block is out of date.
    """
    path = Path(file)
    old = path.read_text("utf-8")
    new = with_block(old, file, (BEGIN, END), manual())
    if new != old and check:
        note(f"{file}: the manual is out of date; python -m ffnmem.cli.reference {file} writes it")
        return 1
    if new != old:
        path.write_text(new, "utf-8")
    return 0


if __name__ == "__main__":
    page = App(name="python -m ffnmem.cli.reference", exit_on_error=False, print_error=False)
    page.default(reference)
    sys.exit(run_guarded(lambda tokens: page(tokens, result_action="return_value"), sys.argv[1:]))
