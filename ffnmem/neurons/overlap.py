"""How crowded keys (or values) are: dimensions used, overlap in pairs, and what norms fold into weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import expm1, log, sqrt

import numpy as np
import torch
from jaxtyping import Float, Float32, Float64, Int64, Num
from scipy import stats
from torch import Tensor

from ..core.neuron_names import LayerName
from ..models.model import Model
from ..models.norms import at_least_float32
from ..models.residual import passed_on
from ..vocabulary.vectors import everything, side_vectors

# Keys as their neurons read them, values as the layers above read them, and the cosine between the two.
#
# The gain of the norm in front of an FFN belongs to the key, and that of a norm behind it (Gemma 2) to the value. A
# LayerNorm also removes the mean: the component of a key or value along (1, …, 1) never matters, so that keys and
# values are vectors of d_model numbers that live in d_model − 1 dimensions, the number that any null has to use. An
# RMSNorm removes nothing: they live in all d_model.
#
# A gated neuron has two keys. What is said of its key is said of the linear one, along which its strength grows; side
# "gate" is the other. Turning key and value round together changes nothing that such a neuron does: cosines of the gate
# with either have a sign by convention only, that of key and value has not.

SIDES = ("key", "value")
COSINES = {"io": ("key", "value"), "gate_io": ("gate", "value"), "gate_key": ("gate", "key")}
"""The cosines within a neuron, by the name that columns have in front; those of a gate in gated models only.

"io" is cos(kᵢ, vᵢ): does a neuron write along what it reads, or against it? Near 1 it adds to the direction that
excites it, near −1 it takes it away. Of a gated neuron, whose strength is linear in kᵢ·x, the same holds along kᵢ;
"gate_io" is cos(gᵢ, vᵢ). "gate_key" is cos(gᵢ, kᵢ): do its two keys look for the same? Its sign is the one that the
coefficient act(g·x)·(k·x) has at inputs along the gate.

Source: Gurnee et al. 2024 (2401.12181), §4, with the weights processed in the same way (gain folded, writes centred);
of gated neurons Gerstner and Schütze 2025 (2505.17936).
"""


def memory_sides(model: Model) -> tuple[str, ...]:
    """What a neuron of a model has: a key and a value, and of a gated one a gate."""
    return (*SIDES, "gate") if model.gated else SIDES


def folded_keys(model: Model, layer: LayerName, side: str = "key") -> Float[Tensor, "d_mlp d_model"]:
    """The keys (or gates) of a layer as its neurons read the residual stream: kᵢ ⊙ γ, for a LayerNorm less its mean.

    kᵢ·LN(x) = (kᵢ ⊙ γ)·(x − mean x)/σ + kᵢ·β, so what excites a neuron is x along kᵢ ⊙ γ; and since the mean of x is
    removed, the mean of kᵢ ⊙ γ never matters. In float32 (float64 of a float64 model), a copy.
    """
    index = model.layer(layer)
    return side_vectors(model, index, everything(model, index), side, "folded")


def centred_values(model: Model, layer: LayerName) -> Float[Tensor, "d_mlp d_model"]:
    """The values of a layer less their means, which every LayerNorm above removes; as they are under RMSNorms.

    No gain but that of a norm behind the FFN: each reader has its own. In float32 (float64 of a float64 model), a copy.
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


def neuron_cosines(sides: Mapping[str, Float[Tensor, "rows d"]]) -> dict[str, Float64[np.ndarray, " rows"]]:
    """The :data:`COSINES` that these sides of neurons have, row by row; NaN where a row is zero."""
    return {
        name: cosines(sides[one], sides[other]).cpu().numpy()
        for name, (one, other) in COSINES.items()
        if one in sides and other in sides
    }


def side_rows(model: Model, layer: LayerName, side: str) -> Float[Tensor, "d_mlp d_model"]:
    """:func:`centred_values` or :func:`folded_keys`."""
    return centred_values(model, layer) if side == "value" else folded_keys(model, layer, side)


def memory_rows(model: Model, layer: LayerName, side: str) -> Float[Tensor, "d_mlp dimensions"]:
    """:func:`folded_keys` or :func:`centred_values` in coordinates of the dimensions that they live in.

    Those are d_model − 1 where norms are LayerNorms, and d_model where they are RMSNorms.

    Lengths, cosines, ranks and capacities are the same as before; what is one dimension fewer is the space that random
    vectors are drawn in.
    """
    rows = side_rows(model, layer, side)
    return without_mean_direction(rows) if model.centred else rows


def without_mean_direction(centred: Float[Tensor, "rows d_model"]) -> Float[Tensor, "rows d_less_one"]:
    """Rows of mean zero in an orthonormal basis of the directions across (1, …, 1).

    The Householder reflection that takes (1, …, 1)/√d to the first axis leaves a first coordinate of zero, which goes;
    of the others, each gains x₁/(√d − 1).
    """
    return centred[:, 1:] + centred[:, :1] / (sqrt(centred.shape[1]) - 1.0)


def unit_rows(rows: Float[Tensor, "*shape d"]) -> Float[Tensor, "*shape d"]:
    """Each row divided by its length; a zero row stays zero."""
    lengths = rows.norm(dim=-1, keepdim=True)
    return torch.where(lengths > 0, rows / lengths, 0.0)


# How many dimensions the keys (or values) of a layer use, and how much of one each memory has to itself.


def gram(rows: Num[Tensor, "rows d"]) -> Float64[Tensor, "d d"]:
    """KᵀK in float64."""
    wide = rows.double()
    return wide.T @ wide


def ranks(gram: Float64[Tensor, "d d"]) -> dict[str, float]:
    """Effective ranks of K from KᵀK: how many dimensions its rows use, all at most its rank; NaN of a zero matrix.

    Returns:
        ``entropy_rank``: exp of the entropy of the singular values as shares of their sum. ``participation_rank``:
        (Σλ)²/Σλ² of the eigenvalues λ of the Gram matrix, the singular values' squares. ``stable_rank``: Σλ/λ₁ =
        ‖K‖²_F/‖K‖²₂, which the largest direction decides.

    Source: Roy and Vetterli 2007, "The effective rank", EUSIPCO, definition 1.
    """
    names = ("entropy_rank", "participation_rank", "stable_rank")
    eigenvalues = torch.linalg.eigvalsh(gram).clamp(min=0.0)
    total = float(eigenvalues.sum())
    if total == 0:
        return dict.fromkeys(names, np.nan)
    singular = eigenvalues.sqrt()
    shares = singular / singular.sum()
    entropy = float(torch.special.entr(shares).sum().exp())
    found = (entropy, total**2 / float((eigenvalues**2).sum()), total / float(eigenvalues[-1]))
    return dict(zip(names, found, strict=True))


def capacities(rows: Num[Tensor, "rows d"], gram: Float64[Tensor, "d d"]) -> Float64[Tensor, " rows"]:
    """The share of a dimension that each row has to itself: Cᵢ = (kᵢ·kᵢ)²/Σⱼ(kᵢ·kⱼ)².

    1 where no other row overlaps with it, 1/2 of each of two equal rows; the sum over rows is at most the rank. With
    Σⱼ(kᵢ·kⱼ)² = kᵢᵀ(KᵀK)kᵢ it costs O(n d²), not O(n² d). Elhage's dimensions of a feature,
    Dᵢ = ‖kᵢ‖²/Σⱼ(k̂ᵢ·kⱼ)², are the same number: pull ‖kᵢ‖² out of the sum below. A zero row has none, 0.

    Source: Scherlis et al. 2022 (2210.01892), eq. 3; Elhage et al. 2022 (2209.10652), "feature dimensionality".
    """
    wide = rows.double()
    squares = (wide * wide).sum(dim=-1)
    overlaps = ((wide @ gram) * wide).sum(dim=-1)
    return torch.where(squares > 0, (squares * squares / overlaps).clamp(max=1.0), 0.0)


def features(rows: Num[Tensor, "rows d"]) -> dict[str, float]:
    """How many features the rows represent, if each row is the direction of one feature: an estimate, a proxy.

    Elhage et al. count features as ‖W‖²_F, where a represented feature's row has length 1 and another's 0. Rows of a
    real model have no such unit, so it is taken from them: W is scaled so that the length² of a row, weighted by
    length², averages 1. Then ‖W‖²_F = (Σ‖kᵢ‖²)²/Σ‖kᵢ‖⁴: n for n rows of one length, and what is short counts little.
    Equal rows count each. It reads no activations: how many meanings one neuron has, weights do not say.

    Returns:
        ``features``, that count, ``features_per_neuron`` and ``features_per_dimension`` (Elhage's m/‖W‖²_F, dimensions
        per feature, is the inverse of the last); zeros of a zero matrix.

    Source: Elhage et al. 2022 (2209.10652), "the geometry of superposition"; the scaling is ours.
    """
    squares = rows.double().square().sum(dim=-1)
    total = float(squares.sum())
    count = 0.0 if total == 0 else total**2 / float((squares**2).sum())
    n, d = rows.shape
    return {"features": count, "features_per_neuron": count / n, "features_per_dimension": count / d}


def isotropic_rows(
    lengths: Float64[np.ndarray, " rows"], dimensions: int, seed: list[int]
) -> Float64[np.ndarray, "rows d"]:
    """Random rows of given lengths without any preferred direction: the null of ranks and capacities."""
    drawn = np.random.default_rng(seed).standard_normal((len(lengths), dimensions), dtype=np.float32)
    rows = drawn.astype(np.float64)
    return rows * (lengths / np.linalg.norm(rows, axis=1))[:, None]


# How much the keys (or values) of a layer overlap in pairs, beside what chance and anisotropy give by themselves.

QUANTILES = {"q50": 0.5, "q90": 0.9, "q99": 0.99, "q999": 0.999}
BLOCK = 512
BINS = 1 << 15
STEPS = 40
CLOSE = 1e-3  # summed over dimensions, of 1 in all
TINY = 1e-30


NO_OVERLAP = dict.fromkeys(("mean", "rms", *QUANTILES, "max"), np.nan)
"""The columns of the cosines of all pairs of distinct rows: mean, root of the mean square, :data:`QUANTILES` of the
absolute value, and the cosine of the pair that overlaps most, positive or negative."""


@dataclass(frozen=True)
class UnitMoments:
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


def unit_moments(units: Num[Tensor, "rows d"]) -> UnitMoments:
    """The moments of unit rows."""
    rows = units.double()
    return UnitMoments(len(rows), rows.mean(dim=0), rows.T @ rows / len(rows))


def row_interference(units: Num[Tensor, "rows d"], second: Float64[Tensor, "d d"]) -> Float64[Tensor, " rows"]:
    """Per row, the root mean square of its cosines with all other rows, from their second moment in O(n d²)."""
    rows = units.double()
    squares = len(rows) * ((rows @ second) * rows).sum(dim=-1)
    return ((squares - 1.0) / max(len(rows) - 1, 1)).clamp(min=0.0).sqrt()


def overlap(
    units: Num[Tensor, "rows d"], moments: UnitMoments | None = None, block: int = BLOCK
) -> tuple[dict[str, float], tuple[int, int]]:
    """The cosines of all pairs of distinct unit rows, walked in blocks: nothing of n² numbers is ever held.

    Args:
        units: ``[n, d]``, each row of length 1, n at least 2. moments: theirs, if known. block: rows at a time.

    Returns:
        The columns of :data:`NO_OVERLAP`, and the pair of the maximum. Mean and rms are exact, from moments in float64;
        the maximum is that of float32 products; quantiles (the least value that a share q of pairs does not exceed) are
        to within 2⁻¹⁵.
    """
    moments = unit_moments(units) if moments is None else moments
    counts = torch.zeros(BINS, dtype=torch.int64, device=units.device)
    largest, cosine, pair = -1.0, np.nan, (-1, -1)
    for first in range(0, len(units), block):
        products = units[first : first + block] @ units[first:].T
        size = len(products)
        below = torch.ones(size, size, dtype=torch.bool, device=units.device).tril()
        products[:, :size].masked_fill_(below, 0.0)
        sizes = products.abs()
        row, column = divmod(int(sizes.argmax()), sizes.shape[1])
        if float(sizes[row, column]) > largest and column > row:
            largest, cosine = float(sizes[row, column]), float(products[row, column])
            pair = (first + row, first + column)
        bins = sizes.mul_(BINS).clamp_(max=BINS - 1).int().flatten()
        counts += torch.bincount(bins, minlength=BINS)
        counts[0] -= int(below.sum())  # what was filled with zeros
    quantiles = binned_quantiles(counts.cpu().numpy(), tuple(QUANTILES.values()))
    numbers = (moments.mean_cosine, sqrt(moments.mean_square_cosine), *quantiles, min(max(cosine, -1.0), 1.0))
    return dict(zip(NO_OVERLAP, map(float, numbers), strict=True)), pair


def binned_quantiles(counts: Int64[np.ndarray, " bins"], quantiles: tuple[float, ...]) -> Float64[np.ndarray, " q"]:
    """Quantiles of numbers in [0, 1] counted in equal bins: linear within the bin that the quantile falls into."""
    ends = counts.cumsum()
    ranks = np.asarray(quantiles) * ends[-1]
    bins = np.searchsorted(ends, ranks)
    before = ends[bins] - counts[bins]
    return (bins + (ranks - before) / counts[bins]) / len(counts)


def isotropic_overlap(dimensions: int, pairs: int) -> dict[str, float]:
    """What independent directions without any preferred one give, whatever the rows' lengths, in closed form.

    The cosine of two random directions in d dimensions has cos² ~ Beta(½, (d − 1)/2): mean 0, rms 1/√d. The maximum is
    the median of the largest of ``pairs`` absolute values, taken as independent (the cosines are so in pairs).
    """
    if pairs < 1 or dimensions < 2:
        return NO_OVERLAP
    square = stats.beta(0.5, (dimensions - 1) / 2)
    quantiles = np.sqrt(square.ppf(tuple(QUANTILES.values())))
    numbers = (0.0, 1.0 / sqrt(dimensions), *quantiles, sqrt(float(square.isf(-expm1(log(0.5) / pairs)))))
    return dict(zip(NO_OVERLAP, map(float, numbers), strict=True))


def matched_units(found: UnitMoments, seed: list[int]) -> Float32[Tensor, "rows d"]:
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
    rows = fit_rows(drawn, (mean @ directions).float(), variances.clamp(min=0.0).float())
    return rows @ directions.T.float()


def fit_rows(
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
