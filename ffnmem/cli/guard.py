"""Commands whose failures are one line on standard error, and the one place that says so."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import click

from ..errors import FfnmemError, FfnmemWarning

MISTAKE = 2
INTERRUPTED = 130
WIDTH = 80  # of every help text, whatever the terminal, so that the manual reads the same everywhere


class Guarded(click.Command):
    """A command that ends with one line, not with a traceback, when its user made a mistake."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        settings = {"help_option_names": ["-h", "--help"], "terminal_width": WIDTH, "max_content_width": WIDTH}
        kwargs["context_settings"] = {**settings, **kwargs.get("context_settings", {})}
        super().__init__(*args, **kwargs)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run and exit: 0, 1 when the reader went away, 2 after a mistake, 130 after Ctrl-C."""
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        write_what_the_stream_can()
        try:
            with warnings_as_notes():
                status = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        except click.UsageError as error:
            fail(explained(error), error.ctx)
        except click.ClickException as error:
            fail(error.format_message())
        except FfnmemError as error:
            fail(str(error))
        except OSError as error:  # a full disk; click itself deals with a reader that went away
            fail(f"cannot write the output: {error.strerror or error}")
        except click.Abort:  # click makes Ctrl-C this
            sys.exit(INTERRUPTED)
        sys.exit(status if isinstance(status, int) else 0)


class Command(Guarded):
    """One command."""


class Group(Guarded, click.Group):
    """The group of all commands."""

    command_class = Command


def fail(message: str, context: click.Context | None = None) -> NoReturn:
    """Say what is wrong on one line of standard error and exit with status 2; a context adds where to look it up."""
    line = one_line(message)
    if context is not None:
        stop = "" if line.endswith((".", "?")) else "."
        line = f"{line}{stop} See '{context.command_path} --help'."
    click.echo(f"ffnmem: error: {line}", err=True)
    sys.exit(MISTAKE)


def explained(error: click.UsageError) -> str:
    """click's message, with what would be right where it does not say so."""
    message = error.format_message()
    if "unexpected extra argument" in message:
        return f"{message}: put quotes around a text with spaces."
    return message


def note(message: str) -> None:
    """Tell the user something beside the result, on standard error."""
    click.echo(f"ffnmem: {one_line(message)}", err=True)


@contextmanager
def warnings_as_notes() -> Iterator[None]:
    """A block in which our warnings are notes, each once; those of others stay what they are."""
    said: set[str] = set()
    shown = warnings.showwarning

    def say(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        if not issubclass(category, FfnmemWarning):
            shown(message, category, *place, **more)
        elif str(message) not in said:
            said.add(str(message))
            note(f"warning: {message}")

    with warnings.catch_warnings():
        warnings.simplefilter("always", FfnmemWarning)
        warnings.showwarning = say
        yield


def one_line(message: str) -> str:
    """A message without line breaks, and without characters that would move the cursor or recolour the terminal."""
    flat = re.sub(r"\s*[\r\n]\s*", " ", message.strip())
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in flat)


def write_what_the_stream_can() -> None:
    """Let a stream that is not UTF-8 show ``?`` for what it cannot write instead of failing; data is always UTF-8."""
    for stream in (sys.stdout, sys.stderr):
        encoding = getattr(stream, "encoding", None) or "utf-8"
        if encoding.lower().replace("-", "") != "utf8" and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
