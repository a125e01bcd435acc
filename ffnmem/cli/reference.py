"""The manual of the commands: ``python -m ffnmem.cli.reference docs/cli.md`` writes it, ``--check`` compares."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from ..core.errors import FileError
from . import cli
from .guard import WIDTH, Command, note

BEGIN, END = "<!-- cli:begin -->", "<!-- cli:end -->"


def manual() -> str:
    """A table of the commands with their summaries, then a section with each one's ``--help``."""
    rows = "\n".join(
        f"| [`ffnmem {name}`](#ffnmem-{name}) | {command.get_short_help_str(WIDTH)} |" for name, command in commands()
    )
    sections = "\n\n".join(section(name, command) for name, command in commands())
    return f"| command | what it prints |\n|---|---|\n{rows}\n\n{sections}"


def commands() -> Iterator[tuple[str, click.Command]]:
    yield from cli.commands.items()


def section(name: str, command: click.Command) -> str:
    return f"## ffnmem {name}\n\n```text\n{help_text(name, command)}\n```"


def help_text(name: str, command: click.Command) -> str:
    """What ``ffnmem NAME --help`` prints."""
    parent = click.Context(cli, info_name="ffnmem", **cli.context_settings)
    context = click.Context(command, info_name=name, parent=parent, **command.context_settings)
    return "\n".join(line.rstrip() for line in command.get_help(context).strip().splitlines())


def with_manual(text: str, file: str) -> str:
    """A page with the manual's block replaced."""
    return with_block(text, file, (BEGIN, END), manual())


def with_block(text: str, file: str, marks: tuple[str, str], body: str) -> str:
    """A text with what stands between two marks replaced; raises FileError unless each is there once, in that order."""
    first, last = marks
    before, begin, rest = text.partition(first)
    _, end, after = rest.partition(last)
    if not begin or not end or first in after or last in after or last in before:
        raise FileError(f"{file} needs one line {first} and, after it, one line {last}")
    return f"{before}{first}\n{body}\n{last}{after}"


@click.command(cls=Command)
@click.argument("file", metavar="PAGE")
@click.option("--check", is_flag=True, help="Change nothing; exit with status 1 if the block is out of date.")
def reference(file: str, check: bool) -> None:
    """Write the manual of every ffnmem command into PAGE, between its cli:begin and cli:end lines.

    \b
    Examples
      python -m ffnmem.cli.reference docs/cli.md
      python -m ffnmem.cli.reference --check docs/cli.md
    """
    path = Path(file)
    try:
        old = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"{file} cannot be read: {error}") from None
    new = with_manual(old, file)
    if new == old:
        return
    if check:
        note(f"{file}: the manual is out of date; python -m ffnmem.cli.reference {file} writes it")
        sys.exit(1)
    path.write_text(new, "utf-8")


if __name__ == "__main__":
    reference(prog_name="python -m ffnmem.cli.reference")
