"""What other libraries raise, as one line and one error of ours: the only place that catches everything. And what they
hold for the whole process, changed for a while."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import update_wrapper

from .errors import FfnmemError

PASSED = (FfnmemError, KeyboardInterrupt, SystemExit, GeneratorExit)
LONGEST = 200  # characters of another library's message
PLAIN = (OSError, ValueError, RuntimeError)
"""Kinds of Python's own whose message says by itself what is wrong; of others, such as a KeyError, the kind is said."""


@contextmanager
def foreign(kind: type[FfnmemError], what: str, more: Callable[[], str] | None = None) -> Iterator[None]:
    """Whatever the calls inside raise becomes ``kind``: "what: the first line of their message, and ``more``".

    Around calls of other libraries and nothing else, so that a mistake of ours keeps its traceback. Errors of ours
    pass as they are, Ctrl-C and an exit too; that memory ran out is said as any other reason. A panic in Rust, which
    is no Exception, is caught.

    Args:
        kind: of the error. what: the thing that could not be used, by name. more: what else is known, asked for only
            when something was raised; it begins with its own space or punctuation.
    """
    try:
        yield
    except PASSED:
        raise
    except BaseException as error:  # noqa: BLE001 (other libraries raise anything)
        raise kind(f"{what}: {reason_of(error)}{more() if more is not None else ''}") from None


def reason_of(error: BaseException) -> str:
    """One line for what another library raised."""
    if isinstance(error, MemoryError):
        return "there is not enough memory"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    line, kind = first_line(error), type(error)
    plain = issubclass(kind, PLAIN) or kind.__module__ != "builtins" or line == kind.__name__
    return line if plain else f"{kind.__name__}: {line}"


def first_line(error: BaseException) -> str:
    """The first line of an error's message that says something; the next one too where that one ends in a colon."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    said = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
    whole = said[:LONGEST].rpartition(". ")[0] or said[:LONGEST]  # sentences, where there are any
    return said if len(said) <= LONGEST else f"{whole}…"


class Shared:
    """A block that changes something of another library's for the whole process, whichever threads are inside of it:
    the first to enter makes the change, the last to leave undoes it.

    Args:
        change: makes a block that does so for one thread.
    """

    def __init__(self, change: Callable[[], AbstractContextManager[None]]) -> None:
        self.change = change
        self.lock, self.inside, self.undo = threading.Lock(), 0, ExitStack()
        update_wrapper(self, change)

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with self.lock:
            if not self.inside:
                self.undo.enter_context(self.change())
            self.inside += 1
        try:
            yield
        finally:
            with self.lock:
                self.inside -= 1
                if not self.inside:
                    self.undo.close()
