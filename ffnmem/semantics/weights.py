"""Per neuron, what weights alone say: how much of a dimension its key has to itself, and how others disturb it."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from ..models import Model
from . import capacity, interference
from .estimates import Estimate, p_values
from .folding import memory_rows, unit_rows


def key_estimates(model: Model, layer: int, seed: int = 0) -> dict[str, Estimate]:
    """``capacity`` and ``interference`` of a layer's keys, as :func:`ffnmem.geometry` has them.

    They are exact, so their intervals are the value itself. The null is random keys of the same lengths; p is of as
    little capacity, and of as much interference.

    Args:
        model: from :func:`ffnmem.load`. layer: an index. seed: of the random keys.
    """
    rows = memory_rows(model, layer, "key").cpu()
    lengths = rows.double().norm(dim=-1).numpy()
    chance = torch.from_numpy(capacity.isotropic_rows(lengths, rows.shape[1], [seed, layer, 7]))
    own, null = by_neuron(rows), by_neuron(chance)
    directions = {"capacity": "less", "interference": "greater"}
    return {name: exact(own[name], null[name], direction) for name, direction in directions.items()}


def by_neuron(rows: Tensor) -> dict[str, Float64[np.ndarray, " rows"]]:
    """Capacity and interference of each row; NaN of a zero row."""
    living = rows.double().norm(dim=-1) > 0
    units = unit_rows(rows[living])
    disturbed = torch.full((len(rows),), torch.nan, dtype=torch.float64)
    if len(units) > 1:
        disturbed[living] = interference.row_interference(units, interference.moments(units).second)
    own = torch.where(living, capacity.capacities(rows, capacity.gram(rows)), torch.nan)
    return {"capacity": own.numpy(), "interference": disturbed.numpy()}


def exact(value: Float64[np.ndarray, " n"], null: Float64[np.ndarray, " n"], direction: str) -> Estimate:
    """A number without error, against those of random keys, which all neurons of the layer share."""
    mean = np.nanmean(null) if np.isfinite(null).any() else np.nan
    return Estimate(value, value, value, np.full(len(value), mean), p_values(value, null[None], direction))
