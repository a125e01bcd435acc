"""Keys as their neurons read them, values as the layers above read them, and the cosine between the two.

The gain of the norm in front of an FFN belongs to the key, and that of a norm behind it (Gemma 2) to the value. A
LayerNorm also removes the mean: the component of a key or value along (1, …, 1) never matters, so that keys and values
are vectors of d_model numbers that live in d_model − 1 dimensions, the number that any null has to use. An RMSNorm
removes nothing: they live in all d_model.

A gated neuron has two keys. What is said of its key is said of the linear one, along which its strength grows; side
"gate" is the other. Turning key and value round together changes nothing that such a neuron does: cosines of the gate
with either have a sign by convention only, that of key and value has not.
"""

from __future__ import annotations

from math import sqrt
from typing import SupportsIndex

import torch
from jaxtyping import Float
from torch import Tensor

from ..models import Model
from ..models.final_norm import at_least_float32
from ..models.writes import passed_on
from ..vocabulary.vectors import everything, key_vectors

SIDES = ("key", "value")
COSINES = {"io": ("key", "value"), "gate_io": ("gate", "value"), "gate_key": ("gate", "key")}
"""The cosines within a neuron, by the name that columns have in front; those of a gate in gated models only."""


def memory_sides(model: Model) -> tuple[str, ...]:
    """What a neuron of a model has: a key and a value, and of a gated one a gate."""
    return (*SIDES, "gate") if model.gated else SIDES


def folded_keys(model: Model, layer: SupportsIndex, side: str = "key") -> Float[Tensor, "d_mlp d_model"]:
    """The keys of a layer as its neurons read the residual stream: kᵢ ⊙ γ, for a LayerNorm less its mean.

    kᵢ·LN(x) = (kᵢ ⊙ γ)·(x − mean x)/σ + kᵢ·β, so what excites a neuron is x along kᵢ ⊙ γ; and since the mean of x is
    removed, the mean of kᵢ ⊙ γ never matters.

    Args:
        model: from :func:`ffnmem.load`. layer: one layer, negatives from the end.
        side: ``"key"``, or ``"gate"`` for the other key of gated neurons.

    Returns:
        One row a neuron, in float32 (float64 of a float64 model), a copy.

    Raises:
        OutOfRangeError: no such layer.
    """
    index = model.layer(layer)
    return key_vectors(model, index, everything(model, index), "folded", side)


def centred_values(model: Model, layer: SupportsIndex) -> Float[Tensor, "d_mlp d_model"]:
    """The values of a layer less their means, which every LayerNorm above removes; as they are under RMSNorms.

    No gain but that of a norm behind the FFN: each reader has its own.

    Args:
        model: from :func:`ffnmem.load`. layer: one layer, negatives from the end.

    Returns:
        One row a neuron, in float32 (float64 of a float64 model), a copy.

    Raises:
        OutOfRangeError: no such layer.
    """
    index = model.layer(layer)
    values = passed_on(model, index, at_least_float32(model.ffn[index].values.detach()))
    return values - values.mean(dim=-1, keepdim=True) if model.centred else values.clone()


def cosines(one: Float[Tensor, "rows d_model"], other: Float[Tensor, "rows d_model"]) -> Float[Tensor, " rows"]:
    """The cosine of each row with the same row of the other, in float64; NaN where either is zero."""
    one, other = one.double(), other.double()
    products = (one * other).sum(dim=-1)
    lengths = one.norm(dim=-1) * other.norm(dim=-1)
    return torch.where(lengths > 0, (products / lengths).clamp(-1.0, 1.0), torch.nan)


def io_cosines(model: Model, layer: SupportsIndex, side: str = "key") -> Float[Tensor, " d_mlp"]:
    """cos(kᵢ, vᵢ) of every neuron of a layer: does it write along what it reads, or against it?

    Of a gated neuron, whose strength is linear in kᵢ·x, the same holds along kᵢ; ``side="gate"`` is cos(gᵢ, vᵢ).

    Between :func:`folded_keys` and :func:`centred_values`, so that the component along (1, …, 1), which nothing reads,
    is left out of both. Near 1 a neuron strengthens the direction that excites it, near −1 it takes it away.

    Args:
        model: from :func:`ffnmem.load`. layer: one layer, negatives from the end. side: ``"key"`` or ``"gate"``.

    Returns:
        One cosine a neuron, in float64; NaN where key (or gate) or value is zero.

    Raises:
        OutOfRangeError: no such layer. InputError: the gates of a model that has none.

    Source: Gurnee et al. 2024 (2401.12181), §4, with the weights processed in the same way (gain folded, writes
        centred); of gated neurons Gerstner and Schütze 2025 (2505.17936).
    """
    return cosines(folded_keys(model, layer, side), centred_values(model, layer))


def gate_key_cosines(model: Model, layer: SupportsIndex) -> Float[Tensor, " d_mlp"]:
    """cos(gᵢ, kᵢ) of every neuron of a layer of a gated model: do its two keys look for the same?

    Its sign is the one that the coefficient act(g·x)·(k·x) has at inputs along the gate.

    Raises OutOfRangeError, and InputError for a model that is not gated.

    Source: Gerstner and Schütze 2025 (2505.17936), cos(w_gate, w_in).
    """
    return cosines(folded_keys(model, layer, "gate"), folded_keys(model, layer))


def memory_rows(model: Model, layer: SupportsIndex, side: str) -> Float[Tensor, "d_mlp dimensions"]:
    """:func:`folded_keys` or :func:`centred_values` in coordinates of the dimensions that they live in.

    Those are d_model − 1 where norms are LayerNorms, and d_model where they are RMSNorms.

    Lengths, cosines, ranks and capacities are the same as before; what is one dimension fewer is the space that random
    vectors are drawn in.
    """
    rows = centred_values(model, layer) if side == "value" else folded_keys(model, layer, side)
    return without_mean_direction(rows) if model.centred else rows


def without_mean_direction(centred: Float[Tensor, "rows d_model"]) -> Float[Tensor, "rows d_less_one"]:
    """Rows of mean zero in an orthonormal basis of the directions across (1, …, 1).

    The Householder reflection that takes (1, …, 1)/√d to the first axis leaves a first coordinate of zero, which goes;
    of the others, each gains x₁/(√d − 1).
    """
    return centred[:, 1:] + centred[:, :1] / (sqrt(centred.shape[1]) - 1.0)


def unit_rows(rows: Float[Tensor, "rows d"]) -> Float[Tensor, "rows d"]:
    """Each row divided by its length; a zero row stays zero."""
    lengths = rows.norm(dim=-1, keepdim=True)
    return torch.where(lengths > 0, rows / lengths, 0.0)
