"""The activation functions of FFNs with their gradients."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from ..core.errors import InputError, check_number, quoted

# The activation functions of FFNs, each with its gradient, so that both can be shown and compared.

GELU_PAPER = "Hendrycks and Gimpel 2016, Gaussian Error Linear Units (1606.08415)"
SWISH_PAPER = "Ramachandran et al. 2017, Searching for Activation Functions (1710.05941)"

FAR = 1e3


@dataclass(frozen=True)
class Activation:
    """One activation function: its names and formulas for people, its value and gradient for tensors.

    Calling it is ``value``. ``value`` and ``gradient`` work elementwise, keep shape and dtype, and are finite wherever
    the true number is one of the dtype: a float16 or bfloat16 input is worked out in float32. At a kink the gradient
    is torch's, ReLU′(0) = 0.

    Attributes:
        name: what :func:`activation` takes.
        title: the name for people.
        formula: f(x) in plain Unicode.
        gradient_formula: f′(x) in plain Unicode; Φ and φ are the normal distribution and its density, σ the logistic
            function.
        source: the paper.
        value: f.
        beta: β of a Swish, else None.
    """

    name: str
    title: str
    formula: str
    gradient_formula: str
    source: str
    value: Callable[[Tensor], Tensor] = field(repr=False, compare=False)
    beta: float | None = None

    def __call__(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """f(x), elementwise; raises InputError for a tensor of whole numbers."""
        if not x.is_floating_point():
            raise InputError(f"{self.title} takes a tensor of floating point, not {x.dtype}")
        return self.value(x)

    def gradient(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """f′(x), elementwise, by autograd."""
        z = widened(x)
        slope = self.slope(z)
        if bool((lost := slope.isnan() & ~z.isnan()).any()):  # ∞·0; so far out every gradient is at its limit
            slope = torch.where(lost, self.slope(z.clamp(-FAR, FAR)), slope)
        return slope.to(x.dtype)

    def slope(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """What autograd gives for f′(x)."""
        with torch.inference_mode(False), torch.enable_grad():
            z = x.clone().detach().requires_grad_()
            return torch.autograd.grad(self.value(z), z, torch.ones_like(z))[0]


def widened(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """``x`` in at least float32, where the squares and products of large float16 numbers are still finite."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def compute_swish(x: Float[Tensor, "*shape"], beta: float) -> Float[Tensor, "*shape"]:
    """xσ(βx). Beyond ±FAR σ is 0 or 1 in float64 too; with βx held to it, no product in the gradient becomes ∞·0."""
    z = widened(x)
    steepness = min(beta, torch.finfo(z.dtype).max)  # so that β·0 stays 0
    return (z * torch.sigmoid((steepness * z).clamp(-FAR, FAR))).to(x.dtype)


def swish(beta: float) -> Activation:
    """Swish with β, xσ(βx): between the line x/2 (β = 0) and ReLU (β → ∞); β = 1 is SiLU, β = 1.702 the "quick GELU".

    Args:
        beta: β, at least 0 and finite.

    Returns:
        The activation, named ``"swish"``, with its ``beta``.

    Raises:
        InputError: a β that is NaN, negative or infinite.

    Source: Ramachandran et al. 2017 (1710.05941), §4.
    """
    beta = check_number("beta", beta)
    if not 0 <= beta < math.inf:
        raise InputError(f"beta must be at least 0 and finite, not {beta:g}")
    return Activation(
        "swish",
        f"Swish (β = {beta:g})",
        f"xσ({beta:g}x)",
        f"σ({beta:g}x) + {beta:g}xσ({beta:g}x)(1 − σ({beta:g}x))",
        SWISH_PAPER,
        partial(compute_swish, beta=beta),
        beta,
    )


def list_activations() -> tuple[Activation, ...]:
    """The activations by name, in the order to show them."""
    return (
        Activation(
            "relu",
            "ReLU",
            "max(0, x)",
            "1 if x > 0, else 0",
            "Nair and Hinton 2010, Rectified Linear Units; in the FFN: Vaswani et al. 2017 (1706.03762)",
            torch.relu,
        ),
        Activation("gelu", "GELU", "xΦ(x)", "Φ(x) + xφ(x)", GELU_PAPER, F.gelu),
        Activation(
            "gelu_tanh",
            "GELU (tanh)",
            "½x(1 + tanh(√(2/π)(x + 0.044715x³)))",
            "½(1 + tanh u) + ½x(1 − tanh²u)u′, u = √(2/π)(x + 0.044715x³), u′ = √(2/π)(1 + 0.134145x²)",
            GELU_PAPER,
            partial(F.gelu, approximate="tanh"),
        ),
        Activation(
            "silu",
            "SiLU",
            "xσ(x)",
            "σ(x) + xσ(x)(1 − σ(x))",
            "Elfwing et al. 2017, Sigmoid-Weighted Linear Units (1702.03118)",
            F.silu,
        ),
        Activation(
            "relu2",
            "ReLU²",
            "max(0, x)²",
            "2·max(0, x)",
            "So et al. 2021, Primer (2109.08668)",
            lambda x: torch.relu(x).square(),
        ),
        Activation(
            "sigmoid",
            "Sigmoid",
            "σ(x) = 1/(1 + e⁻ˣ)",
            "σ(x)(1 − σ(x))",
            "Dauphin et al. 2017, Gated Convolutional Networks (1612.08083), as the gate of GLU",
            torch.sigmoid,
        ),
        Activation(
            "identity",
            "Identity",
            "x",
            "1",
            "Shazeer 2020, GLU Variants (2002.05202), as the bilinear layer",
            lambda x: x,
        ),
    )


ACTIVATIONS: Mapping[str, Activation] = MappingProxyType({one.name: one for one in list_activations()})
"""The activations by name, in the order to show them. A Swish with another β than SiLU's 1 is made by :func:`swish`."""

ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "gelu_new": "gelu_tanh",
        "gelu_pytorch_tanh": "gelu_tanh",
        "gelu_fast": "gelu_tanh",
        "gelu_accurate": "gelu_tanh",
        "gelu_python_tanh": "gelu_tanh",
        "gelu_python": "gelu",
        "swish": "silu",
        "relu_squared": "relu2",
        "linear": "identity",
    }
)
"""Other names of the same functions, Hugging Face's ``hidden_act`` above all."""

QUICK_GELU_BETA = 1.702


def clamped_swish(beta: float, limit: float) -> Activation:
    """Swish of what is clamped above: z·σ(βz), z = min(x, limit); of the gates of GPT-OSS."""

    def value(x: Tensor) -> Tensor:
        z = x.clamp(max=limit)
        return z * torch.sigmoid(beta * z)

    return Activation(
        f"clamped_swish({beta:g}, {limit:g})",
        f"Clamped Swish (β = {beta:g}, at most {limit:g})",
        f"z·σ({beta:g}z), z = min(x, {limit:g})",
        f"σ({beta:g}x) + {beta:g}x·σ({beta:g}x)(1 − σ({beta:g}x)) below {limit:g}, else 0",
        SWISH_PAPER,
        value,
        beta,
    )


CLAMPED_SWISH = re.compile(r"clamped_swish\(([\d.]+), ([\d.]+)\)")


def activation(name: str) -> Activation:
    """The activation of a name: ours, or Hugging Face's for the same function.

    Args:
        name: one of :data:`ACTIVATIONS`; or ``"gelu_new"``, ``"gelu_pytorch_tanh"``, ``"gelu_fast"``,
            ``"gelu_accurate"``, ``"gelu_python_tanh"`` (tanh GELU), ``"gelu_python"`` (GELU), ``"swish"`` (SiLU),
            ``"quick_gelu"`` (Swish with β = 1.702), ``"relu_squared"`` (ReLU²), ``"linear"`` (identity);
            ``"clamped_swish(1.702, 7)"``.

    Returns:
        The activation.

    Raises:
        InputError: another name.
    """
    if name == "quick_gelu":
        return swish(QUICK_GELU_BETA)
    if isinstance(name, str) and (numbers := CLAMPED_SWISH.fullmatch(name)):
        return clamped_swish(float(numbers[1]), float(numbers[2]))
    found = ACTIVATIONS.get(ALIASES.get(name, name)) if isinstance(name, str) else None
    if found is None:
        names = ", ".join([*ACTIVATIONS, *ALIASES, "quick_gelu"])
        raise InputError(f"activation {quoted(name)} is unknown: there are {names}, and swish(beta)")
    return found
