"""The command line: parse, call the library, print. Every command says the same words as the library.

Nothing here imports torch before a command needs it, so that ``--help`` is quick; a command's module is imported when
the command is asked for.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from io import BytesIO, TextIOWrapper
from typing import Any

from cyclopts import App, Group, Parameter

from .._version import __version__
from .guard import run_guarded, seldom_collected
from .manual import PlainHelp
from .operations import short
from .table import GROUPS, OPERATIONS, SELDOM

SECTIONS = [Group(title, sort_key=at) for at, title in enumerate(GROUPS)]


def make_app(listed: bool = False) -> App:
    """The command line; ``listed``: with a line on each command, and nothing else of them."""
    made = App(
        name="ffnmem",
        help=f"""Read the key-value memories in a language model's feed-forward networks.

        Tables are for reading; --json and --csv print data, and nothing else, on standard output. A mistake is one line
        on standard error and exit status 2.

        Begin with
          ffnmem report "The Eiffel Tower is located in the city of"
          ffnmem COMMAND --help

        Besides those below there are {", ".join(sorted(SELDOM)[:-1])} and {max(SELDOM)}.
        """,
        version=f"ffnmem {__version__}",
        help_flags=("--help", "-h"),
        help_format="plaintext",
        help_formatter=PlainHelp(),
        default_parameter=Parameter(negative_bool=(), negative_iterable=()),
        exit_on_error=False,
        print_error=False,
        suppress_keyboard_interrupt=False,
        result_action="return_value",
    )
    for group, commands in zip(SECTIONS, GROUPS.values(), strict=True):
        for name, path in commands.items():
            held, words = ("commands", short(path) if listed else None) if name in OPERATIONS else (path, None)
            made.command(f"{__name__}.{held}:{name}", name=name, group=group, help=words, show=name not in SELDOM)
            if listed and words is None:
                _ = made[name]
    return made


app = make_app()


def run(tokens: Sequence[str]) -> int:
    """Run a command line, such as ``["facts", "--json"]``, and give its exit status; mistakes are one line on standard
    error."""

    def call(tokens: Sequence[str]) -> Any:
        listed = not tokens or tokens[0] in app.help_flags
        return (make_app(listed) if listed else app)(tokens)

    return run_guarded(call, tokens)


def run_captured(tokens: Sequence[str]) -> tuple[int, str, str]:
    """The exit status of a command line, and what it writes to standard output and to standard error."""
    streams = [TextIOWrapper(BytesIO(), "utf-8", newline="") for _ in range(2)]
    with redirect_stdout(streams[0]), redirect_stderr(streams[1]):
        status = run(tokens)
    for stream in streams:
        stream.seek(0)
    return status, streams[0].read(), streams[1].read()


def main() -> None:
    """The entry point ``ffnmem``."""
    # Before torch is imported. Threads of OpenMP that wait busily for one that another program keeps from its core take
    # most of the time: on two cores that were busy, loading a model and a few prompts took 28 s in place of 12.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    with seldom_collected():
        sys.exit(run(sys.argv[1:]))


__all__ = ["app", "main", "run", "run_captured"]
