"""The check at the door: every public function has it, and says what was expected."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, SupportsIndex

import numpy as np
import pytest
import torch
from jaxtyping import Float
from torch import Tensor

import ffnmem as fm
from ffnmem.core.errors import InputError, InputTypeError
from ffnmem.core.types import Count, Range, Seed, checked, kinds_by_argument

from ..helpers import public_things, refuses

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def doors() -> Iterator[tuple[str, Any]]:
    """Every public function, and every method of a public class, as it is called."""
    for name, thing in public_things().items():
        if inspect.isfunction(thing):
            yield name, thing
        elif not issubclass(thing, Exception):
            for key, member in vars(thing).items():
                plain = getattr(member, "__func__", member)
                if inspect.isfunction(plain) and (key == "__init__" or not key.startswith("_")):
                    yield f"{name}.{key}", plain


def test_every_public_function_has_the_check() -> None:
    """`'NoneType' object has no attribute 'model'` would be all that a user hears of a wrong argument.

    Reading the rules also shows that there is none of its annotations that cannot be checked.
    """
    without = [name for name, door in doors() if not hasattr(door, "behind")]
    assert without == []
    for name, door in doors():
        assert set(kinds_by_argument(door.behind)) <= set(inspect.signature(door).parameters), name


@dataclass
class Model:
    name: str = "tiny"


Many = SupportsIndex | Iterable[SupportsIndex] | None
Half = Annotated[float, Range(above=0, below=1)]


@checked
def taking(
    model: Model,
    prompt: str | Sequence[str] = "",
    positions: Many = None,
    *extra: int,
    weight: float = 0,
    flag: bool = False,
    path: str | Path = "",
    table: Mapping[str, Any] | None = None,
    call: Callable[..., Any] | None = None,
    vectors: Float[Tensor, "n d"] | None = None,
    ax: Axes | None = None,
    anything: Any = None,
    seed: Seed = 0,
    k: Count | None = None,
    ks: Sequence[Count] = (),
    share: Half = 0.5,
    least: Annotated[float, Range(least=0)] = 0,
    basis: Literal["folded", "raw"] = "raw",
    layer: Literal["best"] | int | None = None,
    shard: tuple[int, int] = (0, 1),
    neuron: Annotated[str | Sequence[int], 'a neuron ("3.17")'] = "",
) -> dict[str, Any]:
    """What is checked."""
    return dict(locals())


@pytest.mark.parametrize(
    "given",
    [
        {"prompt": ["a", "b"], "weight": 1, "k": 1, "ks": range(1, 10**9), "share": 0.5, "layer": "best"},
        {"prompt": ("a",), "positions": [0, np.int64(1)], "flag": True, "layer": 3, "shard": [1, 2], "neuron": "3.1"},
        {"positions": torch.tensor([1, 2]), "vectors": torch.zeros(3), "anything": b"1", "path": Path("x")},
        {"positions": iter([1, 2]), "table": {}, "call": len, "layer": None, "least": float("inf"), "neuron": (3, 1)},
        {"positions": np.array([1, 2]), "prompt": np.array(["a"]), "seed": (1 << 62) - 1},
        {"positions": range(3), "path": "\ud800"},  # paths have a check of their own
    ],
)
def test_what_fits_arrives_as_it_is(given: dict[str, Any]) -> None:
    """What has always worked would be refused; or a list copied, or an iterator used up, by the check."""
    arrived = taking(Model(), **given)
    assert all(arrived[name] is value for name, value in given.items())
    if isinstance(given.get("positions"), Iterator):
        assert list(given["positions"]) == [1, 2]


def test_numbers_of_numpy_arrive_as_pythons() -> None:
    """JSON takes no others, and a generator's seed is no ``np.int64``."""
    numbers = {"positions": np.array(1), "weight": np.float32(0.5), "flag": np.bool_(True), "seed": torch.tensor(3)}
    arrived = taking(Model(), **numbers)
    assert [arrived[name] for name in numbers] == [1, 0.5, True, 3]
    assert [type(arrived[name]) for name in numbers] == [int, float, bool, int]


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"model": None}, "taking: model must be a Model (from fm.load), not None"),
        ({"prompt": b"abc"}, "taking: prompt must be a text or a list of texts, not b'abc'"),
        ({"prompt": iter(["a"])}, "prompt must be a text or a list of texts"),
        ({"prompt": ["a", 5]}, "taking: prompt[1] must be a text, not 5"),
        ({"positions": b"1"}, "positions must be a whole number, a list of whole numbers or None, not b'1'"),
        ({"positions": True}, "not True"),
        ({"positions": np.array(1.5)}, "positions must be a whole number"),
        ({"weight": True}, "weight must be a number"),
        ({"flag": 1}, "flag must be True or False, not 1"),
        ({"path": b"x"}, "path must be a text or a path"),
        ({"table": []}, "table must be a dict or None"),
        ({"call": 5}, "call must be a function or None"),
        ({"vectors": [1.0]}, "vectors must be a Tensor or None"),
        ({"ax": 5}, "ax must be an Axes or None"),
        ({"seed": "a"}, "seed must be a whole number, not 'a'"),
        ({"basis": 5}, "basis must be 'folded' or 'raw', not 5"),
        ({"layer": 0.5}, "layer must be 'best', a whole number or None, not 0.5"),
        ({"shard": []}, "shard must be (a whole number, a whole number), not []"),
        ({"shard": (0, "b")}, "shard[1] must be a whole number, not 'b'"),
        ({"neuron": 5}, 'neuron must be a neuron ("3.17"), not 5'),
    ],
)
def test_the_wrong_kind_is_refused(given: dict[str, Any], named: str) -> None:
    """A text's letters or a byte's number would be taken for positions, or the error come from deep inside."""
    with refuses(InputTypeError, TypeError, named):
        taking(**{"model": Model(), **given})


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"prompt": ["a", "\ud800"]}, "prompt[1] '\\ud800' has half a character"),
        ({"seed": 10**30}, "seed must be at most 4,611,686,018,427,387,903, not 1000000"),
        ({"seed": -1}, "seed must be at least 0, not -1"),
        ({"k": 0}, "taking: k must be at least 1, not 0"),
        ({"ks": [1, 0]}, "ks[1] must be at least 1, not 0"),
        ({"ks": range(10**12)}, "must be at least 1, not 0"),
        ({"share": 1}, "share must be below 1, not 1"),
        ({"share": float("nan")}, "share must be a number, not nan"),
        ({"share": 10**400}, "share must be below 1, not a whole number of some 398 digits"),
        ({"least": -0.5}, "least must be at least 0, not -0.5"),
        ({"basis": "row"}, "basis 'row' is unknown (perhaps 'raw' was meant): choose 'folded' or 'raw'"),
        ({"layer": "last"}, "layer 'last' is unknown"),
    ],
)
def test_the_wrong_value_is_refused(given: dict[str, Any], named: str) -> None:
    """Half a character would end in a UnicodeEncodeError of the tokenizer's, 10**30 in an OverflowError of torch's."""
    with refuses(InputError, ValueError, named):
        taking(Model(), **given)


def test_extra_arguments_and_names() -> None:
    """What is behind a star would pass unseen, and a manual show the wrapper's signature."""
    assert taking(Model(), "", None, 1, 2)["extra"] == (1, 2)
    with refuses(InputTypeError, TypeError, "extra must be a whole number"):
        taking(Model(), "", None, 1, "2")  # type: ignore[arg-type]
    assert taking.__doc__ == "What is checked."
    assert list(inspect.signature(taking).parameters)[:2] == ["model", "prompt"]
    door: Any = taking
    with pytest.raises(TypeError, match="missing 1 required"):
        door()


def test_numbers_that_no_memory_holds(tiny: fm.Model) -> None:
    """They would end in another library's error, or not at all."""
    with refuses(InputError, ValueError, "at most"):
        fm.capture(tiny, range(10**12))
