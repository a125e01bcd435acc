"""The two kinds of FFN as formulas on plain tensors: classic, act(xW_in)W_out, and gated, (act(xW_gate) ⊗ xW_up)W_down.

Matrices stand to the right of the row vectors that they multiply, as in the papers: ``w_in`` is ``[d_model, d_mlp]``,
the transpose of what ``torch.nn.Linear`` stores. Column i of ``w_in`` is the key of neuron i, row i of ``w_out`` its
value; of a gated FFN column i of ``w_up`` is the key and column i of ``w_gate`` the gate.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from jaxtyping import Float
from torch import Tensor

from ..core.errors import InputError, quoted
from .activations import ACTIVATIONS, Activation, activation

GATED: Mapping[str, Activation] = MappingProxyType(
    {
        "glu": ACTIVATIONS["sigmoid"],
        "reglu": ACTIVATIONS["relu"],
        "geglu": ACTIVATIONS["gelu"],
        "geglu_tanh": ACTIVATIONS["gelu_tanh"],
        "swiglu": ACTIVATIONS["silu"],
        "bilinear": ACTIVATIONS["identity"],
    }
)
"""The gated variants, each with the activation of its gate (Shazeer 2020, 2002.05202, eq. 5 and 6)."""


def classic_ffn(
    x: Float[Tensor, "*rows d_model"],
    w_in: Float[Tensor, "d_in d_mlp"],
    w_out: Float[Tensor, "d_mlp_out d_out"],
    b_in: Float[Tensor, " b_mlp"] | None = None,
    b_out: Float[Tensor, " b_model"] | None = None,
    activation: str | Activation = "gelu",
) -> Float[Tensor, "*rows d_model"]:
    """The classic FFN: act(xW_in + b_in)W_out + b_out.

    Args:
        x: inputs, ``[*rows, d_model]``; each row is worked on alone.
        w_in: ``[d_model, d_mlp]``, the keys as columns.
        w_out: ``[d_mlp, d_model]``, the values as rows.
        b_in: ``[d_mlp]``, or None for no bias.
        b_out: ``[d_model]``, or None.
        activation: an activation or its name.

    Returns:
        The outputs, ``[*rows, d_model]``, as ``x`` in dtype and unit.

    Raises:
        InputError: shapes that do not fit, or an unknown activation.

    Source: Vaswani et al. 2017 (1706.03762), eq. 2, with ReLU there.
    """
    m = classic_coefficients(x, w_in, b_in, activation)
    return affine(m, "w_out", w_out, "b_out", b_out, x.shape[-1])


def classic_coefficients(
    x: Float[Tensor, "*rows d_model"],
    w_in: Float[Tensor, "d_in d_mlp"],
    b_in: Float[Tensor, " b_mlp"] | None = None,
    activation: str | Activation = "gelu",
) -> Float[Tensor, "*rows d_mlp"]:
    """How strongly each neuron of a classic FFN fires: m = act(xW_in + b_in), mᵢ = act(kᵢ·x + bᵢ).

    Args: as :func:`classic_ffn`.

    Returns:
        The coefficients, ``[*rows, d_mlp]``.

    Raises:
        InputError: shapes that do not fit, or an unknown activation.

    Source: Geva et al. 2021 (2012.14913), eq. 1.
    """
    return chosen(activation)(affine(x, "w_in", w_in, "b_in", b_in))


def gated_ffn(
    x: Float[Tensor, "*rows d_model"],
    w_gate: Float[Tensor, "d_gate_in d_gate"],
    w_up: Float[Tensor, "d_in d_mlp"],
    w_down: Float[Tensor, "d_mlp_out d_out"],
    variant: str | Activation = "swiglu",
    *,
    b_gate: Float[Tensor, " b_mlp_gate"] | None = None,
    b_up: Float[Tensor, " b_mlp"] | None = None,
    b_down: Float[Tensor, " b_model"] | None = None,
) -> Float[Tensor, "*rows d_model"]:
    """A gated FFN: (act(xW_gate + b_gate) ⊗ (xW_up + b_up))W_down + b_down, ⊗ elementwise.

    Args:
        x: inputs, ``[*rows, d_model]``; each row is worked on alone.
        w_gate: ``[d_model, d_mlp]``, the gates as columns.
        w_up: ``[d_model, d_mlp]``, the keys as columns.
        w_down: ``[d_mlp, d_model]``, the values as rows.
        variant: one of :data:`GATED`: "glu" (σ), "reglu" (ReLU), "geglu" (GELU), "geglu_tanh" (its tanh form, as in
            Gemma), "swiglu" (SiLU, as in Llama and Mistral), "bilinear" (none); or an activation for the gate.
        b_gate, b_up: ``[d_mlp]``, or None for no bias.
        b_down: ``[d_model]``, or None.

    Returns:
        The outputs, ``[*rows, d_model]``, as ``x`` in dtype and unit.

    Raises:
        InputError: shapes that do not fit, or an unknown variant.

    Source: Shazeer 2020 (2002.05202), eq. 6; the gate itself Dauphin et al. 2017 (1612.08083), eq. 1.
    """
    m = gated_coefficients(x, w_gate, w_up, variant, b_gate=b_gate, b_up=b_up)
    return affine(m, "w_down", w_down, "b_down", b_down, x.shape[-1])


def gated_coefficients(
    x: Float[Tensor, "*rows d_model"],
    w_gate: Float[Tensor, "d_gate_in d_gate"],
    w_up: Float[Tensor, "d_in d_mlp"],
    variant: str | Activation = "swiglu",
    *,
    b_gate: Float[Tensor, " b_mlp_gate"] | None = None,
    b_up: Float[Tensor, " b_mlp"] | None = None,
) -> Float[Tensor, "*rows d_mlp"]:
    """How strongly each neuron of a gated FFN fires: mᵢ = act(gᵢ·x)·(uᵢ·x), of either sign even with ReLU.

    Args: as :func:`gated_ffn`.

    Returns:
        The coefficients, ``[*rows, d_mlp]``.

    Raises:
        InputError: shapes that do not fit, or an unknown variant.

    Source: Shazeer 2020 (2002.05202), eq. 5.
    """
    if w_gate.shape != w_up.shape:
        raise InputError(f"w_gate {list(w_gate.shape)} and w_up {list(w_up.shape)} must have one shape")
    gate = find_gate(variant)
    return gate(affine(x, "w_gate", w_gate, "b_gate", b_gate)) * affine(x, "w_up", w_up, "b_up", b_up)


def chosen(name: str | Activation) -> Activation:
    """The activation, by name or as it is."""
    return name if isinstance(name, Activation) else activation(name)


def find_gate(variant: str | Activation) -> Activation:
    """The gate's activation of a variant, by name or as it is."""
    if isinstance(variant, Activation):
        return variant
    if variant not in GATED:
        raise InputError(f"gated variant {quoted(variant)} is unknown: choose {' or '.join(map(repr, GATED))}")
    return GATED[variant]


def affine(
    x: Float[Tensor, "*rows d_in"],
    name: str,
    weight: Float[Tensor, "*shape"],
    bias_name: str,
    bias: Float[Tensor, "*bias_shape"] | None,
    width: int | None = None,
) -> Float[Tensor, "*rows d_out"]:
    """xW + b, which must have ``width`` numbers if that is given; raises InputError for shapes that do not fit."""
    due = [*x.shape[-1:], *([width] if width is not None else weight.shape[1:2] or ["d_mlp"])]
    for part, tensor, shape in ((name, weight, due), (bias_name, bias, due[1:])):
        if tensor is not None and list(tensor.shape) != shape:
            raise InputError(f"{part} {list(tensor.shape)} does not fit {list(x.shape)}, its input: it must be {shape}")
    return x @ weight if bias is None else x @ weight + bias
