"""Activations: the published reference values, torch's own functions, autograd, and the ends of every dtype."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ffnmem.core.errors import InputError
from ffnmem.ffn.activations import ACTIVATIONS, ALIASES, Activation, activation, swish

from ..helpers import allclose, refuses

POINTS = (-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0)
VALUES = {
    "relu": (0, 0, 0, 0, 0.5, 1, 2),
    "gelu": (-0.046, -0.159, -0.154, 0, 0.346, 0.841, 1.954),
    "silu": (-0.238, -0.269, -0.189, 0, 0.311, 0.731, 1.762),
}
GRADIENTS = {
    "relu": (0, 0, 0, 0, 1, 1, 1),
    "gelu": (-0.085, -0.083, 0.133, 0.5, 0.867, 1.083, 1.085),
    "silu": (-0.091, 0.072, 0.260, 0.5, 0.740, 0.928, 1.091),
}
TORCH: dict[str, Any] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "relu2": lambda x: F.relu(x) ** 2,
    "sigmoid": torch.sigmoid,
    "identity": nn.Identity(),
}
FORMULAS: dict[str, Any] = {
    "relu": lambda x: max(0.0, x),
    "gelu": lambda x: x * 0.5 * (1 + math.erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + math.exp(-x)),
    "relu2": lambda x: max(0.0, x) ** 2,
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
    "identity": lambda x: x,
}
ALL = [*ACTIVATIONS.values(), swish(0.0), swish(0.5), swish(1.702), swish(10.0)]


def grid() -> torch.Tensor:
    return torch.linspace(-12, 12, 481, dtype=torch.float64)


@pytest.mark.parametrize("name", VALUES)
def test_the_reference_values(name: str) -> None:
    """The printed values of the manual would not be ours."""
    x = torch.tensor(POINTS, dtype=torch.float64)
    one = activation(name)
    assert [abs(round(v, 3)) if v == 0 else round(v, 3) for v in one(x).tolist()] == list(VALUES[name])
    assert [round(v, 3) for v in one.gradient(x).tolist()] == list(GRADIENTS[name])


@pytest.mark.parametrize("name", list(ACTIVATIONS))
def test_values_are_torchs_and_the_formulas(name: str) -> None:
    """A name would stand for another function than in torch, or than its own formula says."""
    x = grid()
    assert allclose(activation(name)(x), TORCH[name](x), 1e-12)
    assert allclose(activation(name)(x), [FORMULAS[name](v) for v in x.tolist()], 1e-12)


@pytest.mark.parametrize("one", ALL, ids=lambda one: one.title)
def test_gradients_are_autograds(one: Activation) -> None:
    """A closed form would not be the derivative; the grid holds 0, so that the kink follows torch too."""
    x = grid().requires_grad_()
    (expected,) = torch.autograd.grad(one(x).sum(), x)
    assert allclose(one.gradient(x.detach()), expected, 1e-12)


@pytest.mark.parametrize("one", [one for one in ALL if one.name != "relu"], ids=lambda one: one.title)
def test_gradcheck(one: Activation) -> None:
    """Value or gradient would not be differentiable as torch sees them, so that no model could train through them."""
    x = torch.tensor([-3.1, -0.7, 0.2, 1.9], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(one.value, x)
    if one.name != "identity":
        assert torch.autograd.gradcheck(one.gradient, x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("one", [*ALL, swish(1e308)], ids=lambda one: one.title)
def test_no_nan_at_large_inputs(one: Activation, dtype: torch.dtype) -> None:
    """∞·0 in a half-precision model would turn a gradient into NaN."""
    x = torch.tensor([-60000, -1000, -88, -5, 0, 5, 88, 1000, 60000], dtype=dtype)
    for y in (one(x), one.gradient(x)):
        assert y.dtype == dtype
        assert not y.isnan().any()
    far = torch.tensor([-1e30, 1e30], dtype=torch.float64)
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


@pytest.mark.parametrize(
    "name", ["gelu_new", "gelu_pytorch_tanh", "gelu_python", "quick_gelu", "silu", "swish", "relu2"]
)
def test_hugging_faces_names_are_its_functions(name: str) -> None:
    """A model's activation would be read as another one."""
    from transformers.activations import ACT2FN

    x = grid()
    assert allclose(activation(name)(x), ACT2FN[name](x), 1e-12)


@pytest.mark.parametrize("name", [*ALIASES, "quick_gelu"])
def test_every_alias_is_hugging_faces_or_says_why_not(name: str) -> None:
    """An alias would differ from the function of that name by more than the rounding of its constants."""
    from transformers.activations import ACT2FN

    if name == "relu_squared":  # the name in the Primer paper; Hugging Face says relu2
        assert activation(name) is ACTIVATIONS["relu2"]
    else:
        assert allclose(activation(name)(grid()), ACT2FN[name](grid()), 1e-7)


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
