"""How much the keys (or values) of a layer overlap in pairs, beside what chance and anisotropy give by themselves."""

from __future__ import annotations

from dataclasses import dataclass
from math import expm1, log, sqrt

import numpy as np
import torch
from jaxtyping import Float32, Float64, Int64, Num
from scipy import stats
from torch import Tensor

QUANTILES = (0.5, 0.9, 0.99, 0.999)
BLOCK = 512
BINS = 1 << 15
NO_PAIR = (-1, -1)
STEPS = 40
CLOSE = 1e-3  # summed over dimensions, of 1 in all
TINY = 1e-30


@dataclass(frozen=True)
class Overlap:
    """The cosines of all pairs of distinct rows.

    Attributes:
        mean: of the cosine. rms: root of the mean of its square.
        quantiles: of its absolute value, at :data:`QUANTILES`.
        maximum: the cosine of the pair that overlaps most, positive or negative, and which ``pair`` that is.
    """

    mean: float
    rms: float
    quantiles: tuple[float, ...]
    maximum: float
    pair: tuple[int, int] = NO_PAIR


NO_OVERLAP = Overlap(np.nan, np.nan, (np.nan,) * len(QUANTILES), np.nan)


@dataclass(frozen=True)
class Moments:
    """Mean and second moment E[uuᵀ] of unit rows, in float64, and what they say of the cosines of distinct rows."""

    n: int
    mean: Float64[Tensor, " d"]
    second: Float64[Tensor, "d d"]

    @property
    def mean_cosine(self) -> float:
        """(‖Σuᵢ‖² − n)/(n(n − 1)): exact, without a walk over pairs."""
        return (self.n * float(self.mean @ self.mean) - 1.0) / (self.n - 1)

    @property
    def mean_square_cosine(self) -> float:
        """(‖Σuᵢuᵢᵀ‖² − n)/(n(n − 1)), likewise: it is a matter of the second moment alone."""
        return max((self.n * float((self.second * self.second).sum()) - 1.0) / (self.n - 1), 0.0)


def moments(units: Num[Tensor, "rows d"]) -> Moments:
    """The moments of unit rows."""
    rows = units.double()
    return Moments(len(rows), rows.mean(dim=0), rows.T @ rows / len(rows))


def row_interference(units: Num[Tensor, "rows d"], second: Float64[Tensor, "d d"]) -> Float64[Tensor, " rows"]:
    """Per row, the root mean square of its cosines with all other rows, from their second moment in O(n d²)."""
    rows = units.double()
    squares = len(rows) * ((rows @ second) * rows).sum(dim=-1)
    return ((squares - 1.0) / max(len(rows) - 1, 1)).clamp(min=0.0).sqrt()


def overlap(units: Num[Tensor, "rows d"], found: Moments | None = None, block: int = BLOCK) -> Overlap:
    """The cosines of all pairs of distinct unit rows, walked in blocks: nothing of n² numbers is ever held.

    Args:
        units: ``[n, d]``, each row of length 1. found: their moments, if known.
        block: rows at a time.

    Returns:
        An :class:`Overlap`. Mean and rms are exact, from moments in float64; the maximum is that of float32 products;
        quantiles (the least value that a share q of pairs does not exceed) are to within 2⁻¹⁵.
    """
    n = len(units)
    if n < 2:
        return NO_OVERLAP
    found = moments(units) if found is None else found
    counts = torch.zeros(BINS, dtype=torch.int64, device=units.device)
    largest, cosine, pair = -1.0, np.nan, NO_PAIR
    for first in range(0, n, block):
        products = units[first : first + block] @ units[first:].T
        size = len(products)
        below = torch.ones(size, size, dtype=torch.bool, device=units.device).tril()
        products[:, :size].masked_fill_(below, 0.0)
        sizes = products.abs()
        at = int(sizes.argmax())
        row, column = divmod(at, sizes.shape[1])
        if float(sizes[row, column]) > largest and column > row:
            largest, cosine, pair = (
                float(sizes[row, column]),
                float(products[row, column]),
                (first + row, first + column),
            )
        bins = sizes.mul_(BINS).clamp_(max=BINS - 1).int().flatten()
        counts += torch.bincount(bins, minlength=BINS)
        counts[0] -= int(below.sum())  # what was filled with zeros
    return Overlap(
        found.mean_cosine,
        sqrt(found.mean_square_cosine),
        tuple(float(q) for q in binned_quantiles(counts.cpu().numpy(), QUANTILES)),
        min(max(cosine, -1.0), 1.0),
        pair,
    )


def binned_quantiles(counts: Int64[np.ndarray, " bins"], quantiles: tuple[float, ...]) -> Float64[np.ndarray, " q"]:
    """Quantiles of numbers in [0, 1] counted in equal bins: linear within the bin that the quantile falls into."""
    ends = counts.cumsum()
    ranks = np.asarray(quantiles) * ends[-1]
    bins = np.searchsorted(ends, ranks)
    before = ends[bins] - counts[bins]
    return (bins + (ranks - before) / counts[bins]) / len(counts)


def isotropic_overlap(dimensions: int, pairs: int) -> Overlap:
    """What independent directions without any preferred one give, whatever the rows' lengths, in closed form.

    The cosine of two random directions in d dimensions has cos² ~ Beta(½, (d − 1)/2): mean 0, rms 1/√d. The maximum is
    the median of the largest of ``pairs`` absolute values, taken as independent (the cosines are so in pairs).
    """
    if pairs < 1 or dimensions < 2:
        return NO_OVERLAP
    square = stats.beta(0.5, (dimensions - 1) / 2)
    return Overlap(
        0.0,
        1.0 / sqrt(dimensions),
        tuple(float(q) for q in np.sqrt(square.ppf(QUANTILES))),
        sqrt(float(square.isf(-expm1(log(0.5) / pairs)))),
    )


def matched_units(found: Moments, seed: list[int]) -> Float32[Tensor, "rows d"]:
    """As many random unit rows, of Gaussian vectors whose unit rows have the mean and second moment of the given ones.

    So they are as anisotropic, with no more overlap in pairs than that brings. Two corrections make it so. The second
    moment that n rows show is more uneven than the one they were drawn from (‖·‖²_F by 1/n), so mean and covariance
    are shrunk, the covariance towards an even one, until the mean and mean square of the cosine of two drawn rows are
    expected to be those of the given. And dividing rows by their lengths evens them out, so the Gaussian is fitted.
    Hence rms cannot tell such rows from the real ones; the quantiles far out and the maximum can.

    Returns:
        ``[n, d]`` on the CPU, the same for the same ``seed``.
    """
    n, d = found.n, len(found.mean)
    mean, second = found.mean.cpu(), found.second.cpu()
    mean = mean * sqrt(max(found.mean_cosine, 0.0) / max(float(mean @ mean), torch.finfo(mean.dtype).tiny))
    common = mean.outer(mean)
    even = max(float(second.trace() - common.trace()), 0.0) / d * torch.eye(d, dtype=mean.dtype)
    uneven = second - common - even
    base = common + even
    share = largest_root(
        float((uneven**2).sum()), 2 * float((base * uneven).sum()), float((base**2).sum()) - found.mean_square_cosine
    )
    variances, directions = torch.linalg.eigh(even + share * uneven)
    drawn = torch.from_numpy(np.random.default_rng(seed).standard_normal((n, d), dtype=np.float32))
    rows = fitted(drawn, (mean @ directions).float(), variances.clamp(min=0.0).float())
    return rows @ directions.T.float()


def fitted(
    drawn: Float32[Tensor, "rows d"], mean: Float32[Tensor, " d"], variances: Float32[Tensor, " d"]
) -> Float32[Tensor, "rows d"]:
    """Standard normal rows shifted and stretched, then divided by their lengths, so that each coordinate of these has
    the given mean and variance: a fixed point, from one draw."""
    shift, stretch = mean.clone(), variances.sqrt()
    wanted = variances + mean**2
    for _ in range(STEPS):
        rows = shift + drawn * stretch
        weights = 1.0 / rows.square().sum(dim=-1).clamp(min=TINY)
        averages = weights.sqrt() @ rows / len(rows)
        squares = weights @ rows.square() / len(rows)
        if float((squares - wanted).abs().sum()) < CLOSE:
            break
        shift = shift + mean - averages
        stretch = stretch * (variances / (squares - averages**2).clamp(min=TINY)).sqrt()
        scale = (shift.square() + stretch.square()).sum().sqrt().clamp(min=TINY)  # only directions count
        shift, stretch = shift / scale, stretch / scale
    return rows * weights.sqrt().unsqueeze(-1)


def largest_root(a: float, b: float, c: float) -> float:
    """The larger root of ax² + bx + c within [0, 1]; 0 where there is none, as for rows as even as chance."""
    root = b * b - 4 * a * c
    return min(max((-b + sqrt(root)) / (2 * a), 0.0), 1.0) if root > 0 and a > 0 else 0.0
