"""Every error that ffnmem raises on purpose.

FfnmemError
├── InputError           (ValueError)    a prompt, target, position or option that cannot be used
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

import sys
import warnings
from collections.abc import Collection, Sequence
from math import isnan
from numbers import Real
from operator import index as whole
from pathlib import Path
from typing import Any, SupportsIndex

PACKAGE = str(Path(__file__).parent)


class FfnmemError(Exception):
    """Base of all errors of ffnmem; the message is one line that says what is wrong and what would be right."""

    def __str__(self) -> str:  # KeyError and OSError would quote or number their message
        return str(self.args[0]) if self.args else ""


class InputError(FfnmemError, ValueError):
    """A prompt, target, position or option that cannot be used."""


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


class FfnmemWarning(UserWarning):
    """What was asked for is done, but it is likely not what was meant; the message is one line that says why."""


def warn(message: str) -> None:
    """Warn whoever called into the package, so that Python names their line and shows the warning once for it."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, FfnmemWarning, stacklevel=level)


def check_whole(name: str, value: Any) -> int:
    """``value`` as an int; raises InputError if it is no whole number, as True and False are none."""
    try:
        if isinstance(value, bool):
            raise TypeError
        return whole(value)
    except TypeError:
        raise InputError(f"{name} must be a whole number, not {value!r}") from None


def check_number(name: str, value: Any) -> float:
    """``value`` as a float, infinities too; raises InputError if it is no number."""
    if isinstance(value, bool) or not isinstance(value, Real) or isnan(value):
        raise InputError(f"{name} must be a number, not {value!r}")
    return float(value)


def check_index(name: str, value: SupportsIndex, size: int, of: str) -> int:
    """``value`` (an int, or NumPy's from a table) as a non-negative index below ``size``; negatives count from the end.

    Raises OutOfRangeError, naming the thing, its value and the values it takes; InputError if it is no whole number.
    """
    index = check_whole(name, value)
    index += size if index < 0 else 0
    if not 0 <= index < size:
        raise OutOfRangeError(f"{name} {value} is out of range: {of} has {name}s 0 to {size - 1}")
    return index


def check_choice(name: str, value: str, choices: Collection[str]) -> str:
    """``value`` if it is one of ``choices``; raises InputError otherwise."""
    if value not in choices:
        raise InputError(f"{name} {value!r} is unknown: choose {' or '.join(repr(c) for c in choices)}")
    return value


def check_count(name: str, value: int, least: int = 1) -> int:
    """``value`` if it is at least ``least``; raises InputError otherwise."""
    count = check_whole(name, value)
    if count < least:
        raise InputError(f"{name} must be at least {least}, not {count}")
    return count


def listed(items: Sequence[object], limit: int = 8) -> str:
    """The first items of a list as text for a message."""
    shown = ", ".join(str(item) for item in items[:limit])
    return shown + (f", … ({len(items)} in all)" if len(items) > limit else "")
