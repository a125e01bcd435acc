"""What other libraries raise becomes one line of ours, and nothing else does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from ffnmem.core.errors import InputError, ModelError
from ffnmem.core.foreign import LONGEST, Shared, first_line, foreign, reason_of

from ..helpers import refuses


class Panic(BaseException):
    """As a panic in Rust comes to Python: no Exception."""


@pytest.mark.parametrize(
    ("raised", "named"),
    [
        (OSError("no such file\nand much advice"), "no such file"),
        (KeyError("field"), "KeyError: 'field'"),
        (AttributeError("'int' object has no attribute 'x'"), "AttributeError: 'int'"),
        (RecursionError("maximum recursion depth exceeded"), "nested too deeply"),
        (MemoryError(), "not enough memory"),
        (Exception("bare"), "bare"),
        (StopIteration(), "StopIteration"),
        (Panic("called `Option::unwrap()`"), "called `Option"),
        (ImportError("needs sentencepiece"), "ImportError: needs sentencepiece"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_whatever_is_raised_is_one_line(raised: BaseException, named: str) -> None:
    """A kind that nobody thought of would be a traceback."""
    with refuses(ModelError, ValueError, "the file:", named), foreign(ModelError, "the file"):
        raise raised


@pytest.mark.parametrize("raised", [KeyboardInterrupt(), SystemExit(3), InputError("ours")], ids=repr)
def test_what_passes(raised: BaseException) -> None:
    """Ctrl-C would be taken for a broken file, and an error of ours be said twice."""
    with pytest.raises(type(raised)) as caught, foreign(ModelError, "the file"):
        raise raised
    assert caught.value is raised


def test_more_is_asked_for_only_after_an_error() -> None:
    """Reading a file again to say what is wrong with it would slow every load."""
    asked: list[bool] = []

    def more() -> str:
        asked.append(True)
        return " (and more)"

    with foreign(ModelError, "the file", more):
        pass
    assert not asked
    with refuses(ModelError, ValueError, "the file: x (and more)"), foreign(ModelError, "the file", more):
        raise ValueError("x")


def test_the_first_line_that_says_something() -> None:
    """A message would be empty, end in a colon, or fill screens."""
    assert first_line(ValueError("\n  \n second \n third")) == "second"
    assert first_line(ValueError("Validation error for field 'n':\n    TypeError: not an int\n")).endswith("not an int")
    assert first_line(ValueError()) == "ValueError"
    assert len(first_line(ValueError("x" * 10_000))) == LONGEST + 1
    assert first_line(ValueError(f"No such kind. There are {'a, ' * 100}")) == "No such kind…"
    assert reason_of(ZeroDivisionError("by zero")) == "ZeroDivisionError: by zero"


def test_a_change_lasts_until_the_last_leaves() -> None:
    """Two threads that each put back what they found would leave the first one's change for good."""
    loud = [True]

    @Shared
    @contextmanager
    def quiet() -> Iterator[None]:
        before = loud[0]
        loud[0] = False
        try:
            yield
        finally:
            loud[0] = before

    first, second = quiet(), quiet()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert loud == [False]
    with pytest.raises(KeyError), quiet():
        raise KeyError
    assert loud == [False]
    second.__exit__(None, None, None)
    assert loud == [True]
    with quiet():
        assert loud == [False]
    assert loud == [True]


def test_a_change_that_fails_can_be_tried_again() -> None:
    def broken() -> Any:
        raise OSError("no")

    block = Shared(broken)
    for _ in range(2):
        with pytest.raises(OSError, match="no"), block():
            pass
    assert block.inside == 0
