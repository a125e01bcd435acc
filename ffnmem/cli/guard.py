"""How a command's process runs: its failures are one line on standard error, signals end it, garbage waits."""

from __future__ import annotations

import gc
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

import click

from ..core.errors import FfnmemError, FfnmemWarning, bounded

MISTAKE = 2
INTERRUPTED = 130
WIDTH = 80  # of every help text, whatever the terminal, so that the manual reads the same everywhere


class Command(click.Command):
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
        """Run and exit: 0, 1 when the reader went away, 2 after a mistake, 130 after Ctrl-C, 143 after SIGTERM."""
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        write_what_the_stream_can()
        received: list[int] = []
        try:
            with warnings_as_notes(), ended_by_signals(received):
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
            sys.exit(128 + received[0] if received else INTERRUPTED)
        except MemoryError:
            fail("the memory of this machine does not suffice: ask for less at a time")
        sys.exit(status if isinstance(status, int) else 0)


class CommandGroup(Command, click.Group):
    """The group of all commands."""

    command_class = Command


@contextmanager
def ended_by_signals(received: list[int]) -> Iterator[None]:
    """Inside, SIGTERM and SIGHUP end the work as Ctrl-C does, so that all is left as it should be; a second one ends
    it at once. Those received are appended to the list. What the parent has told us to ignore (nohup) stays so."""

    def interrupt(number: int, _frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        received.append(number)
        raise KeyboardInterrupt

    mine = threading.current_thread() is threading.main_thread()
    names = [name for name in ("SIGTERM", "SIGHUP") if mine and hasattr(signal, name)]
    caught = [number for name in names if signal.getsignal(number := getattr(signal, name)) is signal.SIG_DFL]
    for number in caught:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number in caught:
            signal.signal(number, signal.SIG_DFL)


def fail(message: str, context: click.Context | None = None) -> NoReturn:
    """Say what is wrong on one line of standard error and exit with status 2; a context adds where to look it up."""
    line = bounded(message)
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
    click.echo(f"ffnmem: {bounded(message)}", err=True)


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


def write_what_the_stream_can() -> None:
    """Let a stream that is not UTF-8 show ``?`` for what it cannot write instead of failing; data is always UTF-8."""
    for stream in (sys.stdout, sys.stderr):
        encoding = getattr(stream, "encoding", None) or "utf-8"
        if encoding.lower().replace("-", "") != "utf8" and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


# How often the process looks for garbage. Of half a million objects that torch and transformers make as they are
# imported none is garbage, and looking through them again and again, and once more at the end, would be a quarter of a
# short command's time.

USUAL = gc.get_threshold()
SELDOM = (10_000, 10, 10)
"""After so many new objects, where Python itself waits for 700."""


@contextmanager
def seldom_collected() -> Iterator[None]:
    """A whole process: searches are seldom until :func:`set_up`, and what is left at the end is left to the system."""
    gc.set_threshold(*SELDOM)
    try:
        yield
    finally:
        set_up()
        gc.freeze()


def set_up() -> None:
    """What the process works with is there: from here on it is left out, and searches are as usual.

    Does nothing outside :func:`seldom_collected`.
    """
    if gc.get_threshold() == SELDOM:
        gc.freeze()
        gc.set_threshold(*USUAL)
