"""Keys as their neurons read them, values as the layers above read them, and the cosine between the two.

Every norm of the residual stream that we read is a LayerNorm: it removes the mean and multiplies by its gain. So the
component of a key or value along (1, …, 1) never matters, and the gain in front of the FFN belongs to the key. Keys and
values are vectors of d_model numbers that live in d_model − 1 dimensions, the number that any null has to use.
"""

from __future__ import annotations

from math import sqrt
from typing import SupportsIndex

import torch
from jaxtyping import Float
from torch import Tensor

from ..models import Model
from ..models.final_norm import at_least_float32
from ..vocabulary.vectors import everything, key_vectors

SIDES = ("key", "value")


def folded_keys(model: Model, layer: SupportsIndex) -> Float[Tensor, "d_mlp d_model"]:
    """The keys of a layer as its neurons read the residual stream: kᵢ ⊙ γ less its mean.

    kᵢ·LN(x) = (kᵢ ⊙ γ)·(x − mean x)/σ + kᵢ·β, so what excites a neuron is x along kᵢ ⊙ γ; and since the mean of x is
    removed, the mean of kᵢ ⊙ γ never matters.

    Args:
        model: from :func:`ffnmem.load`. layer: one layer, negatives from the end.

    Returns:
        One row a neuron, in float32 (float64 of a float64 model), a copy.

    Raises:
        OutOfRangeError: no such layer.
    """
    index = model.layer(layer)
    return key_vectors(model, index, everything(model, index), "folded")


def centred_values(model: Model, layer: SupportsIndex) -> Float[Tensor, "d_mlp d_model"]:
    """The values of a layer less their means, which every norm above removes. No gain: each reader has its own.

    Args:
        model: from :func:`ffnmem.load`. layer: one layer, negatives from the end.

    Returns:
        One row a neuron, in float32 (float64 of a float64 model), a copy.

    Raises:
        OutOfRangeError: no such layer.
    """
    values = at_least_float32(model.ffn[model.layer(layer)].values.detach())
    return values - values.mean(dim=-1, keepdim=True)


def cosines(one: Float[Tensor, "rows d_model"], other: Float[Tensor, "rows d_model"]) -> Float[Tensor, " rows"]:
    """The cosine of each row with the same row of the other, in float64; NaN where either is zero."""
    one, other = one.double(), other.double()
    products = (one * other).sum(dim=-1)
    lengths = one.norm(dim=-1) * other.norm(dim=-1)
    return torch.where(lengths > 0, (products / lengths).clamp(-1.0, 1.0), torch.nan)


def io_cosines(model: Model, layer: SupportsIndex) -> Float[Tensor, " d_mlp"]:
    """cos(kᵢ, vᵢ) of every neuron of a layer: does it write along what it reads, or against it?

    Between :func:`folded_keys` and :func:`centred_values`, so that the component along (1, …, 1), which nothing reads,
    is left out of both. Near 1 a neuron strengthens the direction that excites it, near −1 it takes it away.

    Args:
        model: from :func:`ffnmem.load`. layer: one layer, negatives from the end.

    Returns:
        One cosine a neuron, in float64; NaN where key or value is zero.

    Raises:
        OutOfRangeError: no such layer.

    Source: Gurnee et al. 2024 (2401.12181), §4, with the weights processed in the same way (gain folded, writes
        centred).
    """
    return cosines(folded_keys(model, layer), centred_values(model, layer))


def memory_rows(model: Model, layer: SupportsIndex, side: str) -> Float[Tensor, "d_mlp d_less_one"]:
    """:func:`folded_keys` or :func:`centred_values` in coordinates of the d_model − 1 dimensions that they span.

    Lengths, cosines, ranks and capacities are the same as before; what is one dimension fewer is the space that random
    vectors are drawn in.
    """
    rows = folded_keys(model, layer) if side == "key" else centred_values(model, layer)
    return without_mean_direction(rows)


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
