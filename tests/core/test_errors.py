"""One tree of errors, each also what Python users would catch, each one line."""

from __future__ import annotations

import inspect
import pickle
from contextvars import Context
from typing import Any

import numpy as np
import pytest
import torch

from ffnmem.core import errors
from ffnmem.core.errors import FileError, InputError, check_count

from ..helpers import refuses

TREE = {
    errors.InputError: ValueError,
    errors.InputTypeError: TypeError,
    errors.OutOfRangeError: IndexError,
    errors.ModelError: ValueError,
    errors.ModelNotFoundError: FileNotFoundError,
    errors.UnsupportedModelError: ValueError,
    errors.HookError: RuntimeError,
    errors.BusyError: RuntimeError,
    errors.FileError: OSError,
    errors.WorkerError: RuntimeError,
    errors.EndpointError: ConnectionError,
    errors.MissingExtraError: ImportError,
}


def test_the_tree_is_complete() -> None:
    """An error outside the tree is one that `except FfnmemError` misses; one not drawn is one that nobody finds."""
    found = {cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, Exception)}
    assert found == {*TREE, errors.FfnmemError, errors.FfnmemWarning}
    assert all(cls.__name__ in (errors.__doc__ or "") for cls in found)


@pytest.mark.parametrize(("kind", "builtin"), TREE.items())
def test_each_is_ours_and_the_builtin(kind: type[Exception], builtin: type[Exception]) -> None:
    """`except ValueError` (or OSError …) in a user's code would miss it, or its message come out quoted or numbered."""
    assert issubclass(kind, errors.FfnmemError)
    assert issubclass(kind, builtin)
    assert str(kind("layer 7 is out of range")) == "layer 7 is out of range"
    assert str(kind()) == ""
    assert str(pickle.loads(pickle.dumps(kind("from a worker")))) == "from a worker"


def test_warnings_name_the_line_that_called() -> None:
    """Python shows a warning once for a line: with a line of ours, the second call's would stay unsaid."""
    with pytest.warns(errors.FfnmemWarning, match="odd") as said:
        errors.warn("odd")
    assert not said[0].filename.startswith(errors.PACKAGE)


def test_silence_is_the_contexts_own() -> None:
    """Two threads that silenced warnings by Python's own filters could leave them off for ever."""
    with errors.unwarned():
        errors.warn("odd")  # would be an error here
        with pytest.warns(errors.FfnmemWarning, match="elsewhere"):
            Context().run(errors.warn, "elsewhere")
    with pytest.warns(errors.FfnmemWarning, match="odd"):
        errors.warn("odd")


def test_models_not_found_are_model_errors() -> None:
    """`except ModelError` must cover everything that is wrong with a model."""
    assert issubclass(errors.ModelNotFoundError, errors.ModelError)
    assert issubclass(errors.UnsupportedModelError, errors.ModelError)


@pytest.mark.parametrize("kind", [int, np.int64, torch.tensor])
def test_check_index(kind: type) -> None:
    """Negatives would not count from the end, or a number out of a table would not be taken as a number."""
    assert [errors.check_index("layer", kind(i), 3, "tiny") for i in (0, 2, -1, -3)] == [0, 2, 2, 0]
    for outside in (3, -4, 10**9):
        with refuses(errors.OutOfRangeError, IndexError, f"layer {outside}", "tiny", "0 to 2"):
            errors.check_index("layer", kind(outside), 3, "tiny")


def test_an_index_is_one_whole_number() -> None:
    """Two positions given as one would end in a message of torch's."""
    with refuses(errors.InputError, ValueError, "position", "whole number", "tensor"):
        errors.check_index("position", torch.tensor([1, 2]), 3, "this prompt")


def test_check_choice_and_count() -> None:
    """A misspelt option would pass, or its message not list the right ones."""
    assert errors.check_choice("basis", "raw", ("folded", "raw")) == "raw"
    with refuses(errors.InputError, ValueError, "basis", "'row'", "'folded'", "'raw'"):
        errors.check_choice("basis", "row", ("folded", "raw"))
    assert errors.check_count("k", 1) == 1
    assert errors.check_count("k", 0, least=0) == 0
    with refuses(errors.InputError, ValueError, "k", "at least 1", "0"):
        errors.check_count("k", 0)


@pytest.mark.parametrize("value", ["3", None, True, float("nan")])
def test_a_number_is_a_number(value: Any) -> None:
    """A text from the command line would end in a message of NumPy's, and NaN in comparisons that never hold."""
    assert errors.check_number("share", np.float32(0.5)) == 0.5
    with refuses(errors.InputError, ValueError, "share", "number", repr(value)):
        errors.check_number("share", value)


def test_counted() -> None:
    """A reader stumbles over 1 neurons."""
    assert [errors.counted(n, "neuron") for n in (0, 1, 1024)] == ["0 neurons", "1 neuron", "1,024 neurons"]


def test_perhaps() -> None:
    """Who spelled a name right would be told to write the same again, or another."""
    known = ["gpt2", "gpt2-xl"]
    assert [errors.perhaps(name, known) for name in ("gtp2", "gpt2", "falcon")] == [
        " (perhaps 'gpt2' was meant)",
        "",
        "",
    ]


def test_listed() -> None:
    """A message over a thousand items would fill the screen, or hide that there are more."""
    assert errors.listed([1, 2]) == "1, 2"
    assert errors.listed(range(100), limit=3) == "0, 1, 2, … (100 in all)"


@pytest.mark.parametrize("value", [2.5, "3", None, True])
def test_a_count_is_a_whole_number(value: Any) -> None:
    """A table would be cut at two and a half rows."""
    with pytest.raises(InputError, match="whole number"):
        inspect.unwrap(check_count)("top", value)


HOSTILE = "a \r\n b\x1b[31mc\u202ed\u200be\n"


def test_a_message_is_one_line_that_no_terminal_obeys() -> None:
    """A token or the name of a folder could move the cursor, recolour the screen or turn the writing round."""
    plain = r"a b\x1b[31mc\u202ed\u200be"
    assert errors.one_line(HOSTILE) == plain
    assert str(FileError(HOSTILE)) == plain
    assert str(InputError("über 日本 ✓")) == "über 日本 ✓"
    assert errors.one_line(" " * 100_000 + "x") == "x"


def test_a_message_is_bounded_and_keeps_both_ends() -> None:
    """A text of a megabyte given for a name would fill the screen, or hide what would be right."""
    message = str(InputError(f"{'x' * 100_000} is no name: give another"))
    assert len(message) == errors.LONGEST
    assert message.startswith("xxx")
    assert message.endswith("xxx is no name: give another")


def test_quoted() -> None:
    """A value would be shown whole, over several lines, or break the message that was to show it."""
    assert errors.quoted("Paris") == "'Paris'"
    assert errors.quoted("x" * 100_000) == repr("x" * 80) + "…"
    assert errors.quoted(b"x" * 100) == repr(b"x" * 80) + "…"
    assert errors.quoted(17) == "17"
    assert errors.quoted(10**5000) == "a whole number of some 4983 digits"
    for value in (torch.zeros(50, 50), [["x" * 1000] * 1000] * 10, Broken(), {1: {2: {3: {4: {5: {6: {7: 8}}}}}}}):
        assert len(errors.quoted(value)) <= 81
        assert "\n" not in errors.quoted(value)


class Broken:
    def __repr__(self) -> str:
        raise ZeroDivisionError


def test_check_kind_and_text() -> None:
    """`'NoneType' object has no attribute 'model'` would be all that a user hears."""
    errors.check_kind("model", 5, int, "a Model")
    with refuses(errors.InputTypeError, TypeError, "model must be a Model (from fm.load)", "None"):
        errors.check_kind("model", None, int, "a Model (from fm.load)")
    assert errors.check_text("prompt", "日本") == "日本"
    with refuses(InputError, ValueError, "prompt", r"'a\ud800'", "surrogate"):
        errors.check_text("prompt", "a\ud800")


@pytest.mark.parametrize("value", [-1, 1 << 62, 10**30])
def test_a_seed_has_a_range(value: int) -> None:
    """NumPy takes it and torch does not, or it comes back as another one."""
    assert [errors.check_seed(seed) for seed in (0, np.int64(7), (1 << 62) - 1)] == [0, 7, (1 << 62) - 1]
    with refuses(InputError, ValueError, "seed must be at", str(value)):
        errors.check_seed(value)


@pytest.mark.parametrize("value", [True, 1.0, "a", None])
def test_a_seed_is_a_whole_number(value: Any) -> None:
    """`seed="a"` would be taken where nothing is drawn, and end in a message of NumPy's where something is."""
    with refuses(errors.InputTypeError, TypeError, "seed", "whole number"):
        inspect.unwrap(errors.check_seed)(value)


def test_a_count_has_an_end() -> None:
    """A number that no memory holds would end in a MemoryError, or in one of NumPy's."""
    with refuses(InputError, ValueError, "k must be at most 2,147,483,647", "99999999999"):
        check_count("k", 99999999999)
    with refuses(InputError, ValueError, "k must be at most 100"):
        check_count("k", 101, most=100)


def test_numbers_beyond_all_floats_are_none() -> None:
    """10**400 would end in an OverflowError."""
    with refuses(InputError, ValueError, "weight must be a number", "400 digits"):
        errors.check_number("weight", 10**402)
