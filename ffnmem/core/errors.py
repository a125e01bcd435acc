"""Every error that ffnmem raises on purpose.

FfnmemError
├── InputError           (ValueError)    a prompt, target, position or option that cannot be used
│   └── InputTypeError      (TypeError)           an argument of another type than the one that is due
├── OutOfRangeError      (IndexError)    a layer, neuron or position that the model or the capture does not have
├── ModelError           (ValueError)    a model that cannot be used
│   ├── ModelNotFoundError  (FileNotFoundError)   no such embedded model, folder or hub id
│   └── UnsupportedModelError                     an architecture without FFN layers that we can read
├── HookError            (RuntimeError)  a hook that did not fire, so that the numbers would be wrong
├── FileError            (OSError)       a file that is missing, broken or of another kind
├── WorkerError          (RuntimeError)  a process of a scan that died time and again
└── MissingExtraError    (ImportError)   an optional dependency that is not installed

Beside it stands FfnmemWarning (UserWarning): nothing failed, but the question is likely not what was meant.
"""

from __future__ import annotations

import os
import reprlib
import sys
import warnings
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from math import isnan
from numbers import Real
from operator import index as whole
from pathlib import Path
from typing import Any, SupportsIndex

from .token_text import printable

LONGEST = 1000  # characters of a message
SHOWN = 80  # characters of a value in a message
SEEDS = 1 << 62  # above, two seeds could give the same sample
PACKAGE = str(Path(__file__).parents[1]) + os.sep
SILENT: ContextVar[bool] = ContextVar("ffnmem_silent", default=False)


class FfnmemError(Exception):
    """Base of all errors of ffnmem; the message is one line that says what is wrong and what would be right.

    Whatever a message was made of, what is read of it has no line break, nothing that a terminal would obey, and at
    most LONGEST characters: a longer one loses its middle.
    """

    def __str__(self) -> str:  # KeyError and OSError would quote or number their message
        return bounded(str(self.args[0])) if self.args else ""


class InputError(FfnmemError, ValueError):
    """A prompt, target, position or option that cannot be used."""


class InputTypeError(InputError, TypeError):
    """An argument of another type than the one that is due."""


class OutOfRangeError(FfnmemError, IndexError):
    """A layer, neuron or position that is not there."""


class ModelError(FfnmemError, ValueError):
    """A model that cannot be used."""


class ModelNotFoundError(ModelError, FileNotFoundError):
    """No embedded model, folder or hub id of that name."""


class UnsupportedModelError(ModelError):
    """An architecture that ffnmem cannot read, by name and with the reason."""


class HookError(FfnmemError, RuntimeError):
    """A hook did not fire."""


class FileError(FfnmemError, OSError):
    """A file that is missing, broken or of another kind."""


class WorkerError(FfnmemError, RuntimeError):
    """A process of a scan that died time and again."""


class MissingExtraError(FfnmemError, ImportError):
    """An optional dependency is not installed."""


def one_line(text: str) -> str:
    """A text without line breaks, and with Python's escapes for what would move a cursor, recolour a terminal, turn
    the direction of writing, or not show at all."""
    flat = " ".join(part for line in text.splitlines() if (part := line.strip()))
    return printable(flat)


def bounded(text: str) -> str:
    """:func:`one_line` of at most LONGEST characters: a longer one loses its middle, and keeps what would be right."""
    line, head = one_line(text), LONGEST * 2 // 3
    return line if len(line) <= LONGEST else f"{line[:head]} … {line[head + 3 - LONGEST :]}"


def quoted(value: object) -> str:
    """A user's value for a message: its ``repr`` in one line, of a text and of anything else the first SHOWN
    characters."""
    if isinstance(value, str | bytes):
        return repr(value[:SHOWN]) + "…" * (len(value) > SHOWN)
    text = one_line(Brief().repr(value))
    return text if len(text) <= SHOWN else text[:SHOWN] + "…"


class Brief(reprlib.Repr):
    """A ``repr`` that looks at the first few items of anything, and never fails."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = self.maxlong = SHOWN

    def repr_int(self, value: int, level: int) -> str:
        if value.bit_length() > 4 * SHOWN:  # Python refuses to write the largest ones
            return f"a whole number of some {value.bit_length() * 3 // 10} digits"
        return super().repr_int(value, level)


def check_kind(name: str, value: object, kind: type | tuple[type, ...], due: str) -> None:
    """Raise InputTypeError, which says what is ``due``, for a value of another kind."""
    if not isinstance(value, kind):
        raise InputTypeError(f"{name} must be {due}, not {quoted(value)}")


def check_text(name: str, text: str) -> str:
    """``text`` if it is whole Unicode; raises InputError for half a character, which no tokenizer and no file takes."""
    check_kind(name, text, str, "a text")
    if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
        raise InputError(f"{name} {quoted(text)} has half a character (a lone surrogate)")
    return text


class FfnmemWarning(UserWarning):
    """What was asked for is done, but it is likely not what was meant; the message is one line that says why."""


def warn(message: str) -> None:
    """Warn whoever called into the package, so that Python names their line and shows the warning once for it."""
    if SILENT.get():
        return
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, FfnmemWarning, stacklevel=level)


@contextmanager
def unwarned() -> Iterator[None]:
    """A block in which :func:`warn` says nothing. Python's own filters are every thread's, this is the context's."""
    token = SILENT.set(True)
    try:
        yield
    finally:
        SILENT.reset(token)


def check_whole(name: str, value: Any) -> int:
    """``value`` as an int; raises InputTypeError if it is no whole number, as True and False are none."""
    try:
        if isinstance(value, bool):
            raise TypeError
        return whole(value)
    except TypeError:
        raise InputTypeError(f"{name} must be a whole number, not {quoted(value)}") from None


def check_number(name: str, value: Any) -> float:
    """``value`` as a float, infinities too; raises InputError if it is no number, or one beyond all floats."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InputTypeError(f"{name} must be a number, not {quoted(value)}")
    try:
        number = float(value)
    except OverflowError:
        number = float("nan")
    if isnan(number):
        raise InputError(f"{name} must be a number, not {quoted(value)}")
    return number


def check_index(name: str, value: SupportsIndex, size: int, of: str) -> int:
    """``value`` (an int, or NumPy's from a table) as a non-negative index below ``size``; negatives count from the end.

    Raises OutOfRangeError, naming the thing, its value and the values it takes; InputTypeError if it is no whole
    number.
    """
    index = given = check_whole(name, value)
    index += size if index < 0 else 0
    if not 0 <= index < size:
        raise OutOfRangeError(f"{name} {quoted(given)} is out of range: {of} has {name}s 0 to {size - 1}")
    return index


def check_choice(name: str, value: str, choices: Collection[str]) -> str:
    """``value`` if it is one of ``choices``; raises InputError otherwise."""
    if not isinstance(value, str) or value not in choices:
        kind = InputError if isinstance(value, str) else InputTypeError
        meant = perhaps(value, choices) if isinstance(value, str) else ""
        raise kind(f"{name} {quoted(value)} is unknown{meant}: choose {' or '.join(repr(c) for c in choices)}")
    return value


def perhaps(name: str, known: Iterable[str]) -> str:
    """Which of some names a misspelt one is most like, for a message; empty if it is like none, or one of them."""
    from difflib import get_close_matches

    near = [] if name in (names := list(known)) else get_close_matches(name.lower(), names, 1)
    return f" (perhaps {near[0]!r} was meant)" if near else ""


def check_count(name: str, value: int, least: int = 1, most: int = (1 << 31) - 1) -> int:
    """``value`` if it is at least ``least`` and at most ``most``; raises InputError otherwise."""
    count = check_whole(name, value)
    if count < least:
        raise InputError(f"{name} must be at least {least}, not {quoted(count)}")
    if count > most:
        raise InputError(f"{name} must be at most {most:,}, not {quoted(count)}")
    return count


def check_seed(value: int, name: str = "seed") -> int:
    """``value`` if it is a seed, which is a whole number from 0 to 2⁶² − 1; raises InputError otherwise."""
    return check_count(name, value, 0, SEEDS - 1)


def counted(count: int, noun: str) -> str:
    """How many of something: ``1 neuron``, ``1,024 neurons``."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def listed(items: Sequence[object], limit: int = 8) -> str:
    """The first items of a list as text for a message."""
    shown = ", ".join(str(item) for item in items[:limit])
    return shown + (f", … ({len(items)} in all)" if len(items) > limit else "")
