"""Whether the tokens that a value writes belong together: how alike their unembeddings are, against what chance gives.

Tokens of like frequency resemble each other, and tokens that one direction selects have that direction in common. So a
value is compared with random directions, each by what its tokens have beyond tokens of the same frequencies.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float32, Float64, Int, Int64, Real
from torch import Tensor

from ..core.errors import InputError
from ..core.neuron_names import LayerName
from ..models.model import Model
from ..models.norms import at_least_float32
from ..vocabulary.nulls import gaussian
from ..vocabulary.scoring import BLOCK, Scorer
from ..vocabulary.vectors import everything, ready, side_tokens, side_vectors
from .overlap import unit_rows
from .verdicts import Estimate, interval, p_values

K = 20
DRAWS = 200
CHANCE = 128  # random directions, each with two ends
GATHERED = 256  # neurons whose tokens' rows are held at once: 16 MB for GPT-2 small
STRATUM = 64  # tokens of like frequency, at least
ROWS = 8192  # of the vocabulary at once


@dataclass(frozen=True, eq=False)
class Frequencies:
    """Tokens by frequency, and how alike those of two strata are on average.

    Attributes:
        stratum: of each token, 0 the most frequent. cosine: mean cosine of two different tokens of two strata, NaN of a
            stratum of one token with itself.
    """

    stratum: Int64[np.ndarray, " vocab"]
    cosine: Float64[np.ndarray, "strata strata"]

    def expected(self, ids: Int[np.ndarray, "n k"]) -> Float64[np.ndarray, " n"]:
        """The mean pairwise cosine of random tokens of the same strata: exact, no draws."""
        held = np.zeros((len(ids), len(self.cosine)))
        np.add.at(held, (np.arange(len(ids))[:, None], self.stratum[ids]), 1.0)
        pairs = np.nan_to_num(self.cosine)
        k = ids.shape[1]
        return (((held @ pairs) * held).sum(1) - held @ pairs.diagonal()) / (k * (k - 1))


def value_coherence(
    model: Model,
    layer: LayerName,
    counts: Real[np.ndarray, " vocab"],
    *,
    k: int = K,
    seed: int = 0,
    draws: int = DRAWS,
) -> dict[str, Estimate]:
    """How alike the k tokens are that a value promotes most, and those that it suppresses most.

    The mean pairwise cosine of their unembeddings, (‖Σûᵢ‖² − k)/(k(k − 1)). The null is the mean of tokens of the same
    frequencies, exact, plus what random directions have beyond that; p is how often random directions have as much.
    Compared with tokens of the same frequencies alone, any direction looks coherent, since it selects what has it in
    common.

    Args:
        counts: how often each token id occurs, from the store's corpus.
        k: tokens at each end, of the folded projection (:func:`ffnmem.project`).
        seed: of the bootstrap, which draws among the k tokens, and of the random directions.
        draws: of the bootstrap.

    Returns:
        By sign of the coefficient, "positive" (promoted tokens) and "negative" (suppressed ones, which a negative
        coefficient promotes), an :class:`Estimate`; NaN for a value of length 0. Its interval is over tokens.

    Raises:
        InputError: counts of another number than the vocabulary, too few tokens.

    Source: Geva et al. 2022 (2203.14680) for reading values by their top tokens; the measure and its null are ours.
    """
    index = model.layer(layer)
    tokens = side_tokens(model, "value")
    if len(counts) != len(tokens):
        raise InputError(f"counts must name each of the {len(tokens)} tokens of {model.name}, not {len(counts)}")
    if k > len(tokens):
        raise InputError(f"k must be at most {len(tokens)}, the tokens of {model.name}, not {k}")
    neurons = everything(model, index)
    frequencies = strata(tokens, counts)
    scorer = Scorer(tokens, k, rows=len(neurons) + CHANCE)
    again = np.random.default_rng([seed, 6]).multinomial(k, np.full(k, 1 / k), draws)
    random = ready(model, index, "value", gaussian(tokens.float().cpu()[:1], CHANCE, seed).to(tokens.device), "folded")
    ids = np.concatenate(list(scorer.extremes(random)[0].swapaxes(0, 1)))
    chance = mean_cosine(token_units(tokens, ids)) - frequencies.expected(ids)  # beyond like frequency
    parts = []
    for start in range(0, len(neurons), BLOCK):
        vectors = side_vectors(model, index, neurons[start : start + BLOCK], "value", "folded")
        parts.append(both_ends(scorer, vectors, tokens, frequencies, again))
    found = np.concatenate(parts, axis=2)
    result = {}
    for (value, low, high, expected), sign in zip(found, ("positive", "negative"), strict=True):
        p = p_values(value - expected, chance[None])
        result[sign] = Estimate(value, low, high, expected + chance.mean(), p)
    return result


def strata(tokens: Tensor, counts: Real[np.ndarray, " vocab"]) -> Frequencies:
    """Tokens whose counts agree to a factor of two, at least :data:`STRATUM` together; tokens that never occur are
    one stratum if there are that many."""
    octave = np.floor(np.log2(counts.astype(np.float64) + 1))
    order = np.argsort(-octave, kind="stable")
    stratum, number, size = np.empty(len(counts), np.int64), 0, 0
    for place, token in enumerate(order.tolist()):
        if size >= STRATUM and octave[token] < octave[order[place - 1]] and len(order) - place >= STRATUM:
            number, size = number + 1, 0
        stratum[token] = number
        size += 1
    sums = torch.zeros(number + 1, tokens.shape[1], dtype=torch.float64)
    for start in range(0, len(tokens), ROWS):
        part = torch.from_numpy(token_units(tokens, np.arange(start, min(start + ROWS, len(tokens))))).double()
        sums.index_add_(0, torch.from_numpy(stratum[start : start + ROWS]), part)
    n = np.bincount(stratum).astype(np.float64)
    products = (sums @ sums.T).numpy()
    cosine = products / np.outer(n, n)
    with np.errstate(divide="ignore", invalid="ignore"):
        own = np.where(n > 1, (products.diagonal() - n) / (n * (n - 1)), np.nan)
    np.fill_diagonal(cosine, own)
    return Frequencies(stratum, cosine)


def token_units(tokens: Tensor, ids: Int[np.ndarray, "*shape"]) -> Float32[np.ndarray, "*shape d_model"]:
    """The unembeddings of some tokens, each of length 1; one of length 0 stays."""
    return unit_rows(at_least_float32(tokens[torch.from_numpy(ids).to(tokens.device)]).cpu()).float().numpy()


def both_ends(
    scorer: Scorer,
    vectors: Tensor,
    tokens: Tensor,
    frequencies: Frequencies,
    again: Int64[np.ndarray, "draws k"],
) -> Float64[np.ndarray, "2 4 n"]:
    """For promoted and suppressed tokens: coherence, its interval, and that of tokens of the same frequencies."""
    ids_of_ends, _ = scorer.extremes(vectors)
    there = vectors.any(dim=-1).cpu().numpy()
    result = np.empty((2, 4, len(vectors)))
    for end, ids in enumerate(ids_of_ends.swapaxes(0, 1)):
        for start in range(0, len(ids), GATHERED):
            part = slice(start, start + GATHERED)
            value, low, high = coherence(token_units(tokens, ids[part]), again)
            expected = frequencies.expected(ids[part])
            result[end, :, part] = np.where(there[part], np.stack([value, low, high, expected]), np.nan)
    return result


def coherence(
    units: Float32[np.ndarray, "n k d_model"], again: Int64[np.ndarray, "draws k"]
) -> tuple[Float64[np.ndarray, " n"], Float64[np.ndarray, " n"], Float64[np.ndarray, " n"]]:
    """Mean pairwise cosine of k unit rows, in one pass, and its interval: tokens drawn again with replacement, of which
    one drawn twice is no pair with itself."""
    k = units.shape[1]
    value = mean_cosine(units)
    rows = torch.from_numpy(units)
    products = torch.bmm(rows, rows.transpose(1, 2)).double().numpy()
    products[:, range(k), range(k)] = 0.0
    weights = again.astype(np.float64)
    pairs = weights[:, :, None] * weights[:, None, :]
    with np.errstate(divide="ignore", invalid="ignore"):
        drawn = (products.reshape(-1, k * k) @ pairs.reshape(-1, k * k).T) / (k**2 - (weights**2).sum(1))
    low, high = interval(np.where(np.isfinite(drawn), drawn, np.nan))
    return value, np.fmin(low, value), np.fmax(high, value)


def mean_cosine(units: Float32[np.ndarray, "n k d_model"]) -> Float64[np.ndarray, " n"]:
    """(‖Σûᵢ‖² − Σ‖ûᵢ‖²)/(k(k − 1)): all pairs, without a walk over them (Pach 2025)."""
    k = units.shape[1]
    wide = units.astype(np.float64)
    whole = wide.sum(1)
    return ((whole**2).sum(-1) - (wide**2).sum((1, 2))) / (k * (k - 1))
