"""Activations: their formulas, Hugging Face's functions, and the ends of every dtype."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from ffnmem.core.errors import InputError
from ffnmem.ffn.activations import ACTIVATIONS, ALIASES, Activation, activation, swish

from ..helpers import allclose, refuses

FORMULAS: dict[str, Any] = {
    "relu": lambda x: max(0.0, x),
    "gelu": lambda x: x * 0.5 * (1 + math.erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + math.exp(-x)),
    "relu2": lambda x: max(0.0, x) ** 2,
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
    "identity": lambda x: x,
}


def logistic(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def swish_slope(x: float, beta: float = 1.0) -> float:
    return logistic(beta * x) * (1 + beta * x * logistic(-beta * x))


def tanh_gelu_slope(x: float) -> float:
    t = math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
    return 0.5 * (1 + t) + 0.5 * x * (1 - t**2) * math.sqrt(2 / math.pi) * (1 + 0.134145 * x**2)


GRADIENTS: dict[str, Any] = {
    "relu": lambda x: float(x > 0),
    "gelu": lambda x: 0.5 * (1 + math.erf(x / math.sqrt(2))) + x * math.exp(-(x**2) / 2) / math.sqrt(2 * math.pi),
    "gelu_tanh": tanh_gelu_slope,
    "silu": swish_slope,
    "relu2": lambda x: 2 * max(0.0, x),
    "sigmoid": lambda x: logistic(x) * logistic(-x),
    "identity": lambda x: 1.0,
}
BETAS = (0.0, 0.5, 1.702, 10.0)
ALL = [*ACTIVATIONS.values(), *map(swish, BETAS)]


def grid() -> torch.Tensor:
    return torch.linspace(-12, 12, 481, dtype=torch.float64)


@pytest.mark.parametrize("name", list(ACTIVATIONS))
def test_values_and_gradients_are_the_formulas(name: str) -> None:
    """A name would stand for another function than its own formula says; the grid holds 0, where ReLU has a kink."""
    x, one = grid(), activation(name)
    assert allclose(one(x), [FORMULAS[name](v) for v in x.tolist()], 1e-12)
    assert allclose(one.gradient(x), [GRADIENTS[name](v) for v in x.tolist()], 1e-12)


@pytest.mark.parametrize("beta", BETAS)
def test_gradients_of_swish(beta: float) -> None:
    assert allclose(swish(beta).gradient(grid()), [swish_slope(v, beta) for v in grid().tolist()], 1e-12)


@pytest.mark.parametrize("grad", [torch.no_grad, torch.inference_mode])
def test_gradients_need_no_graph(grad: Any) -> None:
    """Health would be measured only where a graph is kept; the input would be asked for gradients."""
    x = grid()
    with grad():
        found = activation("gelu").gradient(x)
    assert torch.equal(found, activation("gelu").gradient(x))
    assert not found.requires_grad
    assert not x.requires_grad


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("one", [*ALL, swish(1e308)], ids=lambda one: one.title)
def test_no_nan_at_large_inputs(one: Activation, dtype: torch.dtype) -> None:
    """∞·0 in a half-precision model would turn a gradient into NaN."""
    x = torch.tensor([-60000, -1000, -88, -5, 0, 5, 88, 1000, 60000], dtype=dtype)
    for y in (one(x), one.gradient(x)):
        assert y.dtype == dtype
        assert not y.isnan().any()
    inf = math.inf
    for far in (
        torch.tensor([-inf, -1e300, -1e30, 1e30, 1e300, inf], dtype=torch.float64),
        torch.tensor([-3e38, 3e38]),
    ):
        assert not one.gradient(far).isnan().any()


@pytest.mark.parametrize("one", ALL, ids=lambda one: one.title)
def test_half_precision_is_the_rounded_double(one: Activation) -> None:
    """A float16 gradient worked out in float16 would be off by many roundings."""
    x = torch.linspace(-8, 8, 129, dtype=torch.float16)
    for half, exact in ((one(x), one(x.double())), (one.gradient(x), one.gradient(x.double()))):
        assert ((half.double() - exact).abs() <= 1e-3 * exact.abs() + 1e-6).all()


def test_swish_runs_from_a_line_to_relu() -> None:
    """β would not be the dial between x/2 and ReLU."""
    x = grid()
    assert allclose(swish(0.0)(x), x / 2, 0)
    assert allclose(swish(0.0).gradient(x), torch.full_like(x, 0.5), 0)
    assert allclose(swish(1.0)(x), F.silu(x), 1e-15)
    assert allclose(swish(1e4)(x), F.relu(x), 1e-12)
    assert allclose(swish(1e308)(x), F.relu(x), 0)
    away = x[x != 0]
    assert allclose(swish(1e308).gradient(away), (away > 0).double(), 0)


@pytest.mark.parametrize("beta", [math.nan, -1.0, math.inf, -math.inf])
def test_swish_refuses_other_betas(beta: float) -> None:
    """A curve of NaN would be drawn."""
    with refuses(InputError, ValueError, "beta", f"{beta:g}"):
        swish(beta)


@pytest.mark.parametrize("name", [*ALIASES, "quick_gelu"])
def test_every_alias_is_hugging_faces_or_says_why_not(name: str) -> None:
    """An alias would differ from the function of that name by more than the rounding of its constants."""
    from transformers.activations import ACT2FN

    tolerance = 1e-7 if name in ("gelu_fast", "gelu_accurate") else 1e-12
    if name == "relu_squared":  # the name in the Primer paper; Hugging Face says relu2
        assert activation(name) is ACTIVATIONS["relu2"]
    else:
        assert allclose(activation(name)(grid()), ACT2FN[name](grid()), tolerance)


@pytest.mark.parametrize("name", ["gelu_10", "laplace", "mish", "", "GELU"])
def test_other_names_are_refused(name: str) -> None:
    """A clipped or unknown activation would be silently read as GELU."""
    with refuses(InputError, ValueError, repr(name), "gelu_tanh", "quick_gelu", "swish(beta)"):
        activation(name)


def test_whole_numbers_are_refused() -> None:
    """torch's own message would not say which activation it was."""
    with pytest.raises(Exception, match=r"(?i)float"):  # beartype's in the tests, ours outside them
        activation("gelu")(torch.tensor([1, 2]))


def test_the_mapping_is_for_showing() -> None:
    """An activation would be shown under another name, without its source, or could be replaced by a reader."""
    for name, one in ACTIVATIONS.items():
        assert name == one.name
        assert all((one.title, one.formula, one.gradient_formula, one.source))
        assert activation(name) is one
    assert swish(2.0).title == "Swish (β = 2)"
    assert swish(2.0).beta == 2
    with pytest.raises(TypeError):
        ACTIVATIONS["relu"] = swish(1.0)  # type: ignore[index]
