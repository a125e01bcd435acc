"""What values do to the vocabulary, from weights alone: moments of cos(W_U, vᵢ), and the near-null space."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import no_type_check

import numpy as np
import torch
from jaxtyping import Float, Float64
from numba import njit
from torch import Tensor

from ..core.errors import InputError, check_choice, check_count
from ..core.neuron_names import LayerName
from ..models.model import Model
from ..models.norms import at_least_float32
from ..models.residual import FinalNorm
from ..vocabulary.scoring import in_threads
from ..vocabulary.vectors import BASES
from .overlap import centred_values


# no_type_check keeps the tests' import hook from wrapping what numba has to compile. Sums may be taken in any order,
# which lets compilers use vector instructions; they are taken in float64, so it does not show. Each thread works on the
# rows `first` to `last`, so sums do not depend on how many there are.
@njit(nogil=True, cache=True, fastmath={"reassoc", "nsz", "contract"})
@no_type_check
def power_sums(scores: np.ndarray, shifts: np.ndarray, first: int, last: int, sums: np.ndarray) -> None:
    """Add Σ(x − shift)¹…⁴ of each row of ``scores`` [rows, n] to ``sums`` [rows, 4], in float64."""
    for r in range(first, last):
        row, shift = scores[r], shifts[r]
        s1 = s2 = s3 = s4 = 0.0
        for j in range(row.shape[0]):
            x = np.float64(row[j]) - shift
            square = x * x
            s1 += x
            s2 += square
            s3 += square * x
            s4 += square * square
        sums[r, 0] += s1
        sums[r, 1] += s2
        sums[r, 2] += s3
        sums[r, 3] += s4


# The papers behind it process the weights first, as TransformerLens does when it loads a model, and so do we
# (`basis="folded"`): the final norm's gain is folded into W_U, W_U is centred over d_model (LayerNorm removes the mean)
# and over the vocabulary (softmax does not see a constant), and values are centred over d_model. An RMSNorm removes no
# mean, so under it nothing is centred over d_model, and (1, …, 1) is a direction like any other. Logits are those
# before a soft cap, which is monotone.

ROWS, TOKENS = 2048, 4096  # a block of cosines: 33 MB in float32
GRAM = 8192  # tokens added to the Gram matrix at once
NULL_DRAWS = 1000
NULL_QUANTILE = 0.999


@dataclass(frozen=True, eq=False)
class Unembedding:
    """W_U, one row a token, processed (folded) or as it is (raw). Made by :func:`read_unembedding`.

    ``centred``: whether norms take the mean out of what values write, so that (1, …, 1) is no direction of theirs.
    """

    tokens: Float[Tensor, "vocab d_model"]
    basis: str
    centred: bool = True

    @cached_property
    def units(self) -> Float[Tensor, "some d_model"]:
        """Rows of length 1; tokens whose row is zero are left out, since they have no cosine."""
        lengths = self.tokens.norm(dim=-1)
        kept = self.tokens if bool((lengths > 0).all()) else self.tokens[lengths > 0]
        if not len(kept):
            raise InputError("the unembedding is zero, so values have no cosine with it")
        return kept / lengths[lengths > 0].unsqueeze(-1)

    @cached_property
    def gram(self) -> Float64[Tensor, "d_model d_model"]:
        """Σ over tokens of u uᵀ, in float64."""
        width = self.tokens.shape[1]
        total = torch.zeros(width, width, dtype=torch.float64, device=self.tokens.device)
        for start in range(0, len(self.tokens), GRAM):
            rows = self.tokens[start : start + GRAM].double()
            total += rows.T @ rows
        return total


def read_unembedding(model: Model, basis: str = "folded") -> Unembedding:
    """W_U as the roles' statistics take it: if folded W_U ⊙ γ_f, centred over d_model (not under an RMSNorm) and over
    the vocabulary; if raw as it is. The model stays as it is. Raises InputError for an unknown basis.
    """
    check_choice("basis", basis, BASES)
    tokens = at_least_float32(model.unembedding.detach())
    if basis == "folded":
        tokens = FinalNorm(model).norm.pull(tokens)
        tokens -= tokens.mean(dim=0, keepdim=True)
    return Unembedding(tokens, basis, model.centred)


def read_values(model: Model, layer: LayerName, basis: str) -> Float[Tensor, "d_mlp d_model"]:
    """The values of a layer; if folded, with the gain of a norm behind the FFN, and centred over d_model where norms
    centre."""
    if basis == "folded":
        return centred_values(model, layer)
    return at_least_float32(model.ffn[model.layer(layer)].values.detach()).contiguous()


def cosine_moments(
    vectors: Float[Tensor, "rows d_model"], units: Float[Tensor, "vocab d_model"]
) -> dict[str, Float64[np.ndarray, " rows"]]:
    """``mean``, ``variance``, ``skew`` and ``kurtosis`` over the vocabulary of every vector's cosine with the tokens;
    NaN where a vector is zero.

    The kurtosis is the fourth standardised moment, 3 of a normal distribution, as the paper's program has it. The
    variance is what Stolfo et al. 2024 call LogitVar. The product is taken in the vectors' type, block by block: no
    ``[rows, vocab]`` is made; its power sums in float64 about the mean, which is known beforehand. ``units`` are token
    rows of length 1.

    Source: Gurnee et al. 2024 (2401.12181), §5.2; Stolfo et al. 2024 (2406.16254), eq. 3.
    """
    lengths = vectors.double().norm(dim=-1)
    directions = (vectors.double() / lengths.clamp_min(torch.finfo(torch.float64).tiny).unsqueeze(-1)).to(units.dtype)
    shifts = (directions.double() @ units.mean(dim=0, dtype=torch.float64)).cpu().numpy()
    sums = np.zeros((len(vectors), 4))
    buffer = torch.empty(min(ROWS, len(vectors)) * TOKENS, dtype=units.dtype, device=units.device)
    for start in range(0, len(vectors), ROWS):
        rows = directions[start : start + ROWS]
        for token in range(0, len(units), TOKENS):
            block = units[token : token + TOKENS]
            scores = buffer[: len(rows) * len(block)].view(len(rows), len(block))
            torch.mm(rows, block.T, out=scores)
            add_powers(scores, shifts[start : start + ROWS], sums[start : start + ROWS])
    found = central_moments(sums / len(units))
    found[0] += shifts
    found[:, (lengths == 0).cpu().numpy()] = np.nan
    return dict(zip(("mean", "variance", "skew", "kurtosis"), found, strict=True))


def add_powers(
    scores: Float[Tensor, "rows n"], shifts: Float64[np.ndarray, " rows"], sums: Float64[np.ndarray, "rows 4"]
) -> None:
    """Add a block's power sums about the shifts."""
    if scores.device.type == "cpu":
        array = scores.numpy()
        in_threads(lambda first, last: power_sums(array, shifts, first, last, sums), len(array))
    else:
        sums += device_power_sums(scores, torch.from_numpy(shifts).to(scores.device)).cpu().numpy()


def device_power_sums(scores: Float[Tensor, "rows n"], shifts: Float64[Tensor, " rows"]) -> Float64[Tensor, "rows 4"]:
    """What :func:`power_sums` adds, by torch on any device."""
    x = scores.double() - shifts.unsqueeze(-1)
    square = x * x
    return torch.stack([x.sum(-1), square.sum(-1), (square * x).sum(-1), (square * square).sum(-1)], dim=-1)


def central_moments(raw: Float64[np.ndarray, "rows 4"]) -> Float64[np.ndarray, "4 rows"]:
    """Mean, variance, skew and kurtosis (3 of a normal distribution) from the means of the first four powers; NaN where
    nothing varies."""
    m, s2, s3, s4 = raw.T
    variance = s2 - m**2
    third = s3 - 3 * m * s2 + 2 * m**3
    fourth = s4 - 4 * m * s3 + 6 * m**2 * s2 - 3 * m**4
    with np.errstate(divide="ignore", invalid="ignore"):
        spread = np.where(variance > 0, variance, np.nan)
        return np.stack([m, variance, third / spread**1.5, fourth / spread**2])


def variance_null(unembedding: Unembedding, seed: int = 0) -> float:
    """The 99.9% quantile of the variances of random directions' cosines: about 1/d_model, or more where W_U has main
    directions.
    """
    drawn = torch.from_numpy(
        np.random.default_rng([seed, 1]).standard_normal((NULL_DRAWS, unembedding.tokens.shape[1]))
    )
    if unembedding.basis == "folded" and unembedding.centred:
        drawn -= drawn.mean(dim=-1, keepdim=True)
    return float(
        np.quantile(cosine_moments(drawn.to(unembedding.tokens), unembedding.units)["variance"], NULL_QUANTILE)
    )


@dataclass(frozen=True, eq=False)
class NullSpace:
    """The directions that move logits least: W_U's last singular vectors; without (1, …, 1) where LayerNorm removes it.

    Attributes:
        basis: orthonormal columns.
        largest: the largest of their singular values. median: the median one of W_U, to compare.
    """

    basis: Float64[Tensor, "d_model k"]
    largest: float
    median: float

    def share(self, vectors: Float[Tensor, "rows d_model"]) -> Float64[np.ndarray, " rows"]:
        """ρ = ‖V₀ᵀv‖/‖v‖ of each vector (centred under LayerNorm), 0 to 1; NaN where it is zero."""
        wide = vectors.double()
        lengths = wide.norm(dim=-1)
        inside = (wide @ self.basis).norm(dim=-1)
        return torch.where(lengths > 0, inside / lengths, torch.nan).cpu().numpy()


def null_dimension(d_model: int) -> int:
    """How many singular vectors count as near-null: d_model/64, which is Stolfo et al.'s 12 for GPT-2 small."""
    return max(1, round(d_model / 64))


def null_space(unembedding: Unembedding, dimension: int) -> NullSpace:
    """The last ``dimension`` singular vectors of a folded W_U, from the eigenvectors of its Gram matrix in float64.

    Under LayerNorm a folded W_U is centred, so (1, …, 1) is an exact null direction of it; but no centred value has a
    part along it, and counting it would only use up a dimension. Under RMSNorm it is neither, and all directions count.

    Raises InputError if there are not that many directions.

    Source: Stolfo et al. 2024 (2406.16254), §3.2.
    """
    gram = unembedding.gram
    width = len(gram)
    kept = width - int(unembedding.centred)
    if check_count("null_dimension", dimension) > kept:
        raise InputError(f"null_dimension must be at most {kept}, not {dimension}")
    if unembedding.centred:
        ones = torch.full((width, 1), width**-0.5, dtype=gram.dtype, device=gram.device)
        gram = gram + 2 * gram.trace() * (ones @ ones.T)  # (1, …, 1) becomes the largest
    values, vectors = torch.linalg.eigh(gram)
    singular = values[:kept].clamp_min(0).sqrt()
    return NullSpace(vectors[:, :dimension], float(singular[dimension - 1]), float(singular.median()))
