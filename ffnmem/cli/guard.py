"""How a command's process runs: its failures are one line on standard error, signals end it, garbage waits."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from cyclopts import CycloptsError
from cyclopts.exceptions import MissingArgumentError, UnknownCommandError, UnusedCliTokensError

from ..core.errors import FfnmemError, FfnmemWarning, InputError, bounded, perhaps, quoted
from ..core.progress import log
from .table import COMMANDS

READER_GONE = 1
MISTAKE = 2
INTERRUPTED = 130


def run_guarded(app: Callable[[Sequence[str]], Any], tokens: Sequence[str]) -> int:
    """Run an app on what was typed and give the exit status: 0 or what the command returns, 1 when the reader of a
    pipe went away, 2 after a mistake, 130 after Ctrl-C, 143 after SIGTERM."""
    show_what_streams_can()
    received: list[int] = []
    try:
        with logged_as_notes(), warnings_as_notes(), ended_by_signals(received):
            check_unicode(tokens)
            status = app(tokens)
            sys.stdout.flush()
        return status if isinstance(status, int) else 0
    except CycloptsError as error:
        return fail(explain(error))
    except FfnmemError as error:
        return fail(str(error))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left is flushed at the exit
        return READER_GONE
    except OSError as error:  # a full disk
        return fail(f"cannot write the output: {error.strerror or error}")
    except KeyboardInterrupt:
        return 128 + received[0] if received else INTERRUPTED
    except MemoryError:
        return fail("the memory of this machine does not suffice: ask for less at a time")


def check_unicode(tokens: Sequence[str]) -> None:
    """Raise InputError for what is no UTF-8: a shell can pass such bytes, and no tokenizer and no file takes them."""
    for token in tokens:
        try:
            token.encode("utf-8")
        except UnicodeEncodeError:
            shown = quoted(token.encode("utf-8", "backslashreplace").decode())
            raise InputError(f"{shown} is no UTF-8 text: type it in another way") from None


def explain(error: CycloptsError) -> str:
    """The message of a usage error, with what would be right and where to look it up."""
    message = str(error).partition(" Available commands:")[0]
    if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
        message = f"Unexpected argument {quoted(error.unused_tokens[0])}: put quotes around a text with spaces."
    if isinstance(error, MissingArgumentError) and error.argument is not None:
        message = f"{error.argument.name} is missing"
    chain = error.command_chain or ()
    if isinstance(error, UnknownCommandError) and error.unused_tokens:  # which cyclopts likens to listed ones alone
        name = error.unused_tokens[0]
        message = f"Unknown command {quoted(name)}{perhaps(name, COMMANDS)}"
    stop = "" if message.endswith((".", "?")) else "."
    return f"{message}{stop} See '{' '.join(['ffnmem', *chain, '--help'])}'."


def fail(message: str) -> int:
    """Say what is wrong in one line on standard error; gives the exit status."""
    note(f"error: {message}")
    return MISTAKE


def note(message: str) -> None:
    """Tell the user something beside the result, on standard error."""
    sys.stderr.write(f"ffnmem: {bounded(message)}\n")


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


class Notes(logging.Handler):
    """Shows as notes what the library says."""

    def emit(self, record: logging.LogRecord) -> None:
        note(record.getMessage())


@contextmanager
def logged_as_notes() -> Iterator[None]:
    """A block in which what the library says is noted."""
    handler, before = Notes(), (log.level, log.propagate)
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.level, log.propagate = before


@contextmanager
def warnings_as_notes() -> Iterator[None]:
    """A block in which our warnings are notes, each once; those of others stay what they are."""
    noted: set[str] = set()
    shown = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        if not issubclass(category, FfnmemWarning):
            shown(message, category, *place, **more)
        elif str(message) not in noted:
            noted.add(str(message))
            note(f"warning: {message}")

    with warnings.catch_warnings():
        warnings.simplefilter("always", FfnmemWarning)
        warnings.showwarning = show
        yield


def show_what_streams_can() -> None:
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
    """A whole process: searches are seldom until :func:`collect_as_usual`, and what is left at the end is left to the
    system."""
    gc.set_threshold(*SELDOM)
    try:
        yield
    finally:
        collect_as_usual()
        gc.freeze()


def collect_as_usual() -> None:
    """What the process works with is there: from here on it is left out, and searches are as usual.

    Does nothing outside :func:`seldom_collected`.
    """
    if gc.get_threshold() == SELDOM:
        gc.freeze()
        gc.set_threshold(*USUAL)
