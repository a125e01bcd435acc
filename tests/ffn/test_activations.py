"""Activations and tables of them: their formulas, Hugging Face's functions, and the ends of every dtype."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from ffnmem.core.errors import InputError
from ffnmem.ffn.activation_tables import compare_activations, curves
from ffnmem.ffn.activations import (
    ACTIVATIONS,
    ALIASES,
    Activation,
    activation,
    swish,
)

from ..helpers import allclose, refuses


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def clamped(x: float) -> float:
    return min(x, 1.5) * sigmoid(1.702 * min(x, 1.5))


FORMULAS: dict[str, Callable[[float], float]] = {
    "relu": lambda x: max(0.0, x),
    "gelu": lambda x: x * 0.5 * (1 + math.erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x * sigmoid(x),
    "relu2": lambda x: max(0.0, x) ** 2,
    "sigmoid": sigmoid,
    "identity": lambda x: x,
    "clamped_swish(1.702, 1.5)": clamped,
}
SWISHES = {f"swish({beta})": swish(beta) for beta in (0.0, 0.5, 1.702, 10.0)}


def grid() -> torch.Tensor:
    return torch.linspace(-12, 12, 480, dtype=torch.float64)  # beside the kinks at 0 and 1.5


@pytest.mark.parametrize("name", [*FORMULAS, *SWISHES])
def test_values_and_gradients_are_the_formulas(name: str) -> None:
    """Gradients by central differences, and wanted where no graph is kept too."""
    one, x, h = SWISHES.get(name) or activation(name), grid(), 1e-5
    f = FORMULAS.get(name, lambda x: x * sigmoid(one.beta * x))
    assert allclose(one(x), [f(v) for v in x.tolist()], 1e-12)
    with torch.inference_mode():
        assert allclose(one.gradient(x), [(f(v + h) - f(v - h)) / (2 * h) for v in x.tolist()], 1e-9)
    assert name not in FORMULAS or one.name == name
    assert allclose(swish(1e308)(x), F.relu(x), 0)
    assert allclose(swish(1e308).gradient(x), (x > 0).double(), 0)


@pytest.mark.parametrize("one", [*ACTIVATIONS.values(), *SWISHES.values(), swish(1e308)], ids=lambda one: one.title)
def test_every_dtype_to_its_ends(one: Activation) -> None:
    """∞·0 would turn a gradient into NaN, and a float16 gradient worked out in float16 be off by many roundings."""
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        x = torch.tensor([-60000, -1000, -88, -5, 0, 5, 88, 1000, 60000], dtype=dtype)
        for y in (one(x), one.gradient(x)):
            assert y.dtype == dtype
            assert not y.isnan().any()
    for far in (torch.tensor([-math.inf, -1e300, 1e30, math.inf]).double(), torch.tensor([-3e38, 3e38])):
        assert not one.gradient(far).isnan().any()
    x = torch.linspace(-8, 8, 128, dtype=torch.float16)
    for half, exact in ((one(x), one(x.double())), (one.gradient(x), one.gradient(x.double()))):
        assert ((half.double() - exact).abs() <= 1e-3 * exact.abs() + 1e-6).all()


@pytest.mark.parametrize("name", [*ALIASES, "quick_gelu"])
def test_every_alias_is_hugging_faces(name: str) -> None:
    from transformers.activations import ACT2FN

    theirs = ACT2FN["relu2" if name == "relu_squared" else name]  # the name in the Primer paper
    assert allclose(activation(name)(grid()), theirs(grid()), 1e-7 if name in ("gelu_fast", "gelu_accurate") else 1e-12)


def test_the_table_is_of_values_and_gradients() -> None:
    assert [one.name for one in curves(["gelu_new", "relu"])] == ["gelu_tanh", "relu"]
    assert curves(["swish"], 4) == [swish(4)]
    assert curves(["gelu", "gelu_python", "gelu"]) == [ACTIVATIONS["gelu"]]
    names = ["relu", "gelu", "gelu_tanh", "silu", "swish", "relu2", "sigmoid", "identity"]
    found, shown = compare_activations(at=[-1, 0.5], beta=3), curves(beta=3)
    frame = found.to_frame()
    assert [one.name for one in shown] == names
    assert frame["name"].tolist() == [name for name in names for _ in range(2)]
    assert frame["x"].tolist() == [-1, 0.5] * 8
    x = torch.tensor([-1, 0.5], dtype=torch.float64)
    assert allclose(frame["value"].to_numpy(), torch.cat([one(x) for one in shown]), 0)
    assert allclose(frame["gradient"].to_numpy(), torch.cat([one.gradient(x) for one in shown]), 0)
    assert frame["beta"].dropna().tolist() == [3, 3]
    for table, column in ((found.values, "value"), (found.gradients, "gradient")):
        assert table["activation"].tolist() == [one.title for one in shown]
        assert table["-1"].tolist() == frame[column][::2].tolist()
        assert table["0.5"].tolist() == frame[column][1::2].tolist()


@pytest.mark.parametrize(
    ("call", "says"),
    [
        *((lambda b=beta: swish(b), ("beta", f"{beta:g}")) for beta in (math.nan, -1.0, math.inf)),
        *(
            (lambda n=name: activation(n), (repr(name), "quick_gelu", "swish(beta)"))
            for name in ("gelu_10", "", "GELU")
        ),
        (lambda: curves(["mish"]), ("'mish'", "gelu")),
        (lambda: curves([]), ("no activation", "relu")),
        (lambda: compare_activations(at=[math.inf]), ("finite",)),
        (lambda: compare_activations(at=[]), ("at least one",)),
    ],
)
def test_mistakes(call: Callable[[], Any], says: tuple[str, ...]) -> None:
    with refuses(InputError, ValueError, *says):
        call()
