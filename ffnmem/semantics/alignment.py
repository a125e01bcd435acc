"""The input–output cosine of a layer's neurons, beside that of keys and values of different neurons."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from .folding import cosines

SPREAD = (0.05, 0.25, 0.5, 0.75, 0.95)
NULL = (0.025, 0.975)
MISMATCHES = 8


@dataclass(frozen=True)
class Alignment:
    """cos(kᵢ, vᵢ) over a layer's neurons.

    Attributes:
        mean, quantiles: of the neurons, at :data:`SPREAD`.
        null_low, null_high: the 2.5% and 97.5% quantiles of mismatched pairs.
        beyond: the share of neurons outside of these; by chance 5%.
        strengthening, weakening: the shares above and below the thresholds.
    """

    mean: float
    quantiles: tuple[float, ...]
    null_low: float
    null_high: float
    beyond: float
    strengthening: float
    weakening: float


NO_ALIGNMENT = Alignment(np.nan, (np.nan,) * len(SPREAD), *[np.nan] * 5)


def mismatched(
    keys: Float64[Tensor, "rows d"], values: Float64[Tensor, "rows d"], seed: list[int]
) -> Float64[Tensor, " pairs"]:
    """Cosines of each key with the values of up to eight other neurons of the layer; none of a single neuron."""
    partners = derangements(len(keys), MISMATCHES, seed)
    found = [cosines(keys, values[torch.from_numpy(p).to(values.device)]) for p in partners]
    return torch.cat([keys.new_empty(0), *found])


def derangements(n: int, count: int, seed: list[int]) -> Int64[np.ndarray, "count n"]:
    """Permutations of n things without a fixed point, each different at each place: steps round a random circle."""
    circle = np.random.default_rng(seed).permutation(n)
    found = np.empty((max(min(count, n - 1), 0), n), dtype=np.int64)
    for step, row in enumerate(found, start=1):
        row[circle] = np.roll(circle, -step)
    return found


def alignment(
    own: Float64[Tensor, " rows"], null: Float64[Tensor, " pairs"], strengthening: float, weakening: float
) -> Alignment:
    """How a layer's input–output cosines are distributed, and how many chance would not give.

    Args:
        own: of the neurons. null: of mismatched pairs. NaN in either is left out.
        strengthening: above it a neuron strengthens what excites it. weakening: below it, it weakens that.
    """
    found, chance = (part[part.isfinite()].cpu().numpy() for part in (own, null))
    if not len(found) or not len(chance):
        return NO_ALIGNMENT
    low, high = np.quantile(chance, NULL)
    return Alignment(
        float(found.mean()),
        tuple(float(q) for q in np.quantile(found, SPREAD)),
        float(low),
        float(high),
        float(((found < low) | (found > high)).mean()),
        float((found > strengthening).mean()),
        float((found < weakening).mean()),
    )
