"""One tree of errors, each one line that no terminal obeys; what other libraries raise becomes one of them."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import Context
from typing import Any

import numpy as np
import pytest
import torch

from ffnmem.core import errors
from ffnmem.core.errors import FileError, InputError, InputTypeError, ModelError, OutOfRangeError
from ffnmem.core.foreign import LONGEST, Shared, first_line, foreign

from ..helpers import refuses

TREE: dict[type[Exception], type[Exception]] = {
    errors.InputError: ValueError,
    errors.InputTypeError: TypeError,
    errors.OutOfRangeError: IndexError,
    errors.ModelError: ValueError,
    errors.ModelNotFoundError: FileNotFoundError,
    errors.UnsupportedModelError: ValueError,
    errors.HookError: RuntimeError,
    errors.FileError: OSError,
    errors.WorkerError: RuntimeError,
    errors.MissingExtraError: ImportError,
}


def test_each_of_the_tree_is_ours_and_the_builtin() -> None:
    """`except FfnmemError` or `except OSError` in a user's code would miss it, or its message come out quoted."""
    found = {cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, Exception)}
    assert found == {*TREE, errors.FfnmemError, errors.FfnmemWarning}
    assert issubclass(errors.ModelNotFoundError, errors.ModelError)
    assert issubclass(errors.UnsupportedModelError, errors.ModelError)
    for kind, builtin in TREE.items():
        assert issubclass(kind, errors.FfnmemError)
        assert issubclass(kind, builtin)
        assert str(kind()) == ""
        assert str(pickle.loads(pickle.dumps(kind("layer 7 is out")))) == "layer 7 is out"


HOSTILE = "a \r\n b\x1b[31mc\u202ed\u200be\n"


def test_a_message_is_one_bounded_line_that_no_terminal_obeys() -> None:
    """A token or a folder's name could move the cursor or turn the writing round, a text of a megabyte fill screens."""
    assert str(FileError(HOSTILE)) == r"a b\x1b[31mc\u202ed\u200be"
    assert str(InputError("über 日本 ✓")) == "über 日本 ✓"
    message = str(InputError(f"{'x' * 100_000} is no name: give another"))
    assert len(message) == errors.LONGEST
    assert message.startswith("xxx")
    assert message.endswith("xxx is no name: give another")


class Broken:
    def __repr__(self) -> str:
        raise ZeroDivisionError


def test_values_in_messages_are_short() -> None:
    assert errors.quoted("Paris") == "'Paris'"
    assert errors.quoted("x" * 80) == repr("x" * 80)
    assert errors.quoted(b"x" * 100) == repr(b"x" * 80) + "…"
    assert errors.quoted(17) == "17"
    assert errors.quoted(10**5000) == "a whole number of some 4983 digits"
    for value in (torch.zeros(50, 50), [["x" * 1000] * 1000] * 10, Broken()):
        assert 10 < len(errors.quoted(value)) <= 81
        assert "\n" not in errors.quoted(value)
    assert [errors.counted(n, "neuron") for n in (0, 1, 1024)] == ["0 neurons", "1 neuron", "1,024 neurons"]
    assert errors.listed([1, 2], limit=2) == "1, 2"
    assert errors.listed(range(100), limit=3) == "0, 1, 2, … (100 in all)"
    known = ["gpt2", "gpt2-xl"]
    assert [errors.perhaps(name, known) for name in ("GTP2", "gpt2", "falcon")] == [
        " (perhaps 'gpt2' was meant)",
        "",
        "",
    ]


def test_a_warning_names_the_line_that_called_and_silence_is_the_contexts() -> None:
    """Python shows a warning once for a line of the user's; silence by its own filters would be every thread's."""
    with pytest.warns(errors.FfnmemWarning, match="odd") as said:
        errors.warn("odd")
    assert not said[0].filename.startswith(errors.PACKAGE)
    with errors.unwarned():
        errors.warn("odd")  # would be an error here
        with pytest.warns(errors.FfnmemWarning, match="elsewhere"):
            Context().run(errors.warn, "elsewhere")
    with pytest.warns(errors.FfnmemWarning, match="odd"):
        errors.warn("odd")


def unchecked(check: Any) -> Any:
    """A check without that of its types at run time, which the tests may have on."""
    return inspect.unwrap(check)


def test_what_fits_comes_back() -> None:
    for kind in (int, np.int64, torch.tensor):  # a number out of a table is a number
        assert [errors.check_index("layer", kind(i), 3, "tiny") for i in (0, 2, -1, -3)] == [0, 2, 2, 0]
    assert errors.check_choice("basis", "raw", ("folded", "raw")) == "raw"
    assert [errors.check_count("k", 1), errors.check_count("k", 0, least=0), errors.check_count("k", 9, most=9)] == [
        1,
        0,
        9,
    ]
    assert errors.check_number("share", np.float32(0.5)) == 0.5
    assert [errors.check_seed(seed) for seed in (0, (1 << 62) - 1)] == [0, (1 << 62) - 1]
    assert errors.check_text("prompt", "日本") == "日本"
    errors.check_kind("model", 5, int, "a Model")


@pytest.mark.parametrize(
    ("call", "kind", "says"),
    [
        (lambda: errors.check_index("layer", 3, 3, "tiny"), OutOfRangeError, ("layer 3", "tiny", "0 to 2")),
        (lambda: errors.check_index("layer", np.int64(-4), 3, "tiny"), OutOfRangeError, ("layer -4",)),
        (lambda: errors.check_index("position", torch.tensor([1, 2]), 3, "it"), InputTypeError, ("whole number",)),
        (lambda: errors.check_choice("basis", "row", ("folded", "raw")), InputError, ("'row'", "'folded' or 'raw'")),
        (lambda: unchecked(errors.check_choice)("basis", 5, ("raw",)), InputTypeError, ("basis 5 is unknown: choose",)),
        (lambda: errors.check_count("k", 0), InputError, ("k must be at least 1, not 0",)),
        (lambda: errors.check_count("k", 101, most=100), InputError, ("k must be at most 100",)),
        (lambda: errors.check_count("k", 1 << 31), InputError, ("k must be at most 2,147,483,647",)),
        *(
            (lambda v=value: unchecked(errors.check_count)("top", v), InputTypeError, ("top", "whole number"))
            for value in (2.5, "3", None, True)
        ),
        *(
            (lambda v=value: errors.check_number("share", v), InputError, ("share", "number", repr(value)))
            for value in ("3", None, True, float("nan"))
        ),
        (lambda: errors.check_number("weight", 10**402), InputError, ("weight must be a number", "400 digits")),
        (lambda: errors.check_seed(-1), InputError, ("seed must be at least 0",)),
        (lambda: errors.check_seed(1 << 62), InputError, ("seed must be at most",)),
        (
            lambda: errors.check_kind("model", None, int, "a Model (from fm.load)"),
            InputTypeError,
            ("a Model (", "None"),
        ),
        (lambda: errors.check_text("prompt", "a\ud800"), InputError, ("prompt", r"'a\ud800'", "surrogate")),
    ],
)
def test_what_does_not_fit_is_named(call: Callable[[], Any], kind: type[Exception], says: tuple[str, ...]) -> None:
    with refuses(kind, TREE[kind], *says):
        call()


# -- what other libraries raise ---------------------------------------------------------------------------------------


class Panic(BaseException):
    """As a panic in Rust comes to Python: no Exception."""


@pytest.mark.parametrize(
    ("raised", "says"),
    [
        (OSError("no such file\nand much advice"), "the file: no such file (and more)"),
        (KeyError("field"), "KeyError: 'field'"),
        (RecursionError("maximum recursion depth exceeded"), "nested too deeply"),
        (MemoryError(), "not enough memory"),
        (StopIteration(), "the file: StopIteration"),
        (Panic("called `Option::unwrap()`"), "the file: called `Option"),
    ],
)
def test_whatever_is_raised_is_one_line(raised: BaseException, says: str) -> None:
    with refuses(ModelError, ValueError, says), foreign(ModelError, "the file", lambda: " (and more)"):
        raise raised


@pytest.mark.parametrize("raised", [KeyboardInterrupt(), SystemExit(3), InputError("ours")], ids=repr)
def test_what_passes(raised: BaseException) -> None:
    """Ctrl-C would be taken for a broken file, and an error of ours be said twice."""
    with pytest.raises(type(raised)) as caught, foreign(ModelError, "the file", lambda: pytest.fail("asked")):
        raise raised
    assert caught.value is raised


def test_the_first_line_that_says_something() -> None:
    assert first_line(ValueError("\n  \n second \n third")) == "second"
    assert first_line(ValueError("Validation error for field 'n':\n    TypeError: not an int\n")).endswith("not an int")
    assert first_line(ValueError()) == "ValueError"
    assert len(first_line(ValueError("x" * 10_000))) == LONGEST + 1
    assert first_line(ValueError(f"No such kind. There are {'a, ' * 100}")) == "No such kind…"


def test_a_change_lasts_until_the_last_leaves() -> None:
    """Two threads that each put back what they found would leave the first one's change for good."""
    loud = [True]

    @Shared
    @contextmanager
    def quiet() -> Iterator[None]:
        before = loud[0]
        loud[0] = False
        yield
        loud[0] = before

    with pytest.raises(KeyError), quiet(), quiet():
        raise KeyError(loud)
    assert loud == [True]
    with ExitStack() as first:
        first.enter_context(quiet())
        second = first.pop_all()
        with quiet():
            second.close()
            assert loud == [False]
    assert loud == [True]
