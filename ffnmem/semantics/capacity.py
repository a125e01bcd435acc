"""How many dimensions the keys (or values) of a layer use, and how much of one each memory has to itself."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float64, Num
from torch import Tensor


@dataclass(frozen=True)
class Ranks:
    """Effective ranks of a matrix: how many dimensions its rows use, by three measures, all at most its rank.

    Attributes:
        entropy: exp of the entropy of the singular values as shares of their sum (Roy and Vetterli 2007).
        participation: (Σλ)²/Σλ² of the eigenvalues λ of the Gram matrix, the singular values' squares.
        stable: Σλ/λ₁ = ‖K‖²_F/‖K‖²₂, which the largest direction decides.
    """

    entropy: float
    participation: float
    stable: float


@dataclass(frozen=True)
class Features:
    """An estimate from weights alone of how many features a layer's rows represent; see :func:`features`."""

    count: float
    per_neuron: float
    per_dimension: float


def gram(rows: Num[Tensor, "rows d"]) -> Float64[Tensor, "d d"]:
    """KᵀK in float64."""
    wide = rows.double()
    return wide.T @ wide


def ranks(gram: Float64[Tensor, "d d"]) -> Ranks:
    """Effective ranks of K from KᵀK; NaN of a zero matrix.

    Source: Roy and Vetterli 2007, "The effective rank", EUSIPCO, definition 1.
    """
    eigenvalues = torch.linalg.eigvalsh(gram).clamp(min=0.0)
    total = float(eigenvalues.sum())
    if total == 0:
        return Ranks(np.nan, np.nan, np.nan)
    singular = eigenvalues.sqrt()
    shares = singular / singular.sum()
    return Ranks(
        float(torch.special.entr(shares).sum().exp()),
        total**2 / float((eigenvalues**2).sum()),
        total / float(eigenvalues[-1]),
    )


def capacities(rows: Num[Tensor, "rows d"], gram: Float64[Tensor, "d d"]) -> Float64[Tensor, " rows"]:
    """The share of a dimension that each row has to itself: Cᵢ = (kᵢ·kᵢ)²/Σⱼ(kᵢ·kⱼ)².

    1 where no other row overlaps with it, 1/2 of each of two equal rows; the sum over rows is at most the rank. With
    Σⱼ(kᵢ·kⱼ)² = kᵢᵀ(KᵀK)kᵢ it costs O(n d²), not O(n² d). Elhage's dimensions of a feature,
    Dᵢ = ‖kᵢ‖²/Σⱼ(k̂ᵢ·kⱼ)², are the same number: pull ‖kᵢ‖² out of the sum below. A zero row has none, 0.

    Args:
        rows: ``[n, d]`` keys or values. gram: theirs, from :func:`gram`.

    Returns:
        ``[n]`` in float64.

    Source: Scherlis et al. 2022 (2210.01892), eq. 3; Elhage et al. 2022 (2209.10652), "feature dimensionality".
    """
    wide = rows.double()
    squares = (wide * wide).sum(dim=-1)
    overlaps = ((wide @ gram) * wide).sum(dim=-1)
    return torch.where(squares > 0, (squares * squares / overlaps).clamp(max=1.0), 0.0)


def features(rows: Num[Tensor, "rows d"]) -> Features:
    """How many features the rows represent, if each row is the direction of one feature: an estimate, a proxy.

    Elhage et al. count features as ‖W‖²_F, where a represented feature's row has length 1 and another's 0. Rows of a
    real model have no such unit, so it is taken from them: W is scaled so that the length² of a row, weighted by
    length², averages 1. Then ‖W‖²_F = (Σ‖kᵢ‖²)²/Σ‖kᵢ‖⁴: n for n rows of one length, and what is short counts little.
    Equal rows count each. It reads no activations: how many meanings one neuron has, weights do not say.

    Returns:
        That count, and it divided by the rows and by the dimensions (Elhage's m/‖W‖²_F, dimensions per feature, is
        the inverse of the last); zeros of a zero matrix.

    Source: Elhage et al. 2022 (2209.10652), "the geometry of superposition"; the scaling is ours.
    """
    squares = rows.double().square().sum(dim=-1)
    total = float(squares.sum())
    count = 0.0 if total == 0 else total**2 / float((squares**2).sum())
    return Features(count, count / rows.shape[0], count / rows.shape[1])


def isotropic_rows(
    lengths: Float64[np.ndarray, " rows"], dimensions: int, seed: list[int]
) -> Float64[np.ndarray, "rows d"]:
    """Random rows of given lengths without any preferred direction: the null of ranks and capacities."""
    drawn = np.random.default_rng(seed).standard_normal((len(lengths), dimensions), dtype=np.float32)
    rows = drawn.astype(np.float64)
    return rows * (lengths / np.linalg.norm(rows, axis=1))[:, None]
