"""Trigger tokens: how many token types a neuron's examples amount to, against what chance would give.

The effective number of types is exp(H), H the entropy of the examples' activations by token type: 1 where all
activation is at one token, k where k tokens share it evenly. A few examples of frequent tokens repeat by chance; the
null says how much.
"""

from __future__ import annotations

from typing import no_type_check

import numpy as np
from jaxtyping import Float, Float64, Int, Int64, Real
from numba import njit

from ..core.errors import InputError
from ..vocabulary.scoring import in_threads
from .verdicts import Estimate, interval, p_values, unseen_number

DRAWS = 200
BLOCK = 2048  # neurons at once: 2 × 3.3 MB of draws
TIED = 1e-9  # relative: sums of the same numbers in another order differ by rounding, and must count as equal


def trigger_tokens(
    tokens: Int[np.ndarray, "n k"],
    weights: Float[np.ndarray, "n k"],
    unigram: Real[np.ndarray, " vocab"],
    *,
    seed: int = 0,
    draws: int = DRAWS,
) -> Estimate:
    """The effective number of trigger tokens of each neuron; small is notable.

    The interval is from a bootstrap over examples, each of which comes from a sequence of its own. Drawing examples
    again with replacement loses types, so draws lie too low as a whole; their spread around their median, in
    proportion, is what is taken, and room for a type that none of them shows. The null puts tokens of the corpus's own
    frequencies under the same activations.

    Args:
        tokens: the token at each example. weights: its activation, at least 0; NaN behind the last one.
        unigram: how often each token id occurs as content, or its share; only ratios matter.
        seed: of the draws, which all neurons share: a neuron's result does not depend on which others are asked for.
        draws: of the bootstrap and of the null.

    Returns:
        An :class:`Estimate`; NaN where a neuron has no example with activation above 0. The value is between 1 and k.

    Raises:
        InputError: a unigram without counts.

    Source: Hill 1973 for exp(H) as an effective number; Phipson and Smyth 2010 for p.
    """
    there = np.isfinite(weights)
    types = local_types(np.where(there, tokens.astype(np.int64), -1))
    mass, counts = np.where(there, weights.astype(np.float64), 0.0), there.sum(axis=1)
    random = np.random.default_rng([seed, 0])
    places = random.random((draws, tokens.shape[1]))
    chance = local_types(random.choice(len(unigram), (draws, tokens.shape[1]), p=shares(unigram)))
    n = len(tokens)
    value, low, high, null, p = (np.full(n, np.nan) for _ in range(5))
    drawn = np.empty((min(BLOCK, n), draws))
    by_chance = np.empty_like(drawn)
    for start in range(0, n, BLOCK):
        part = slice(start, min(start + BLOCK, n))
        block = (types[part], mass[part], counts[part], places, chance, value[part], drawn, by_chance)
        in_threads(lambda first, last, block=block: effective(*block, first, last), part.stop - start)  # type: ignore[misc]
        here, expected = drawn[: part.stop - start], by_chance[: part.stop - start]
        low[part], high[part] = spread_around(value[part], here, counts[part])
        null[part] = expected.mean(axis=1)
        p[part] = p_values(value[part] * (1 + TIED), expected, "less")
    return Estimate(value, low, high, null, p)


def local_types(tokens: Int64[np.ndarray, "n k"]) -> Int64[np.ndarray, "n k"]:
    """Token ids replaced by the column in which each stands first in its row."""
    order = np.argsort(tokens, axis=1, kind="stable")
    ordered = np.take_along_axis(tokens, order, axis=1)
    begins = np.ones(tokens.shape, dtype=bool)
    begins[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    run = np.maximum.accumulate(np.where(begins, np.arange(tokens.shape[1]), 0), axis=1)
    found = np.empty_like(tokens)
    np.put_along_axis(found, order, np.take_along_axis(order, run, axis=1), axis=1)
    return found


def shares(unigram: Real[np.ndarray, " vocab"]) -> Float64[np.ndarray, " vocab"]:
    """Counts or shares as probabilities that sum to 1; raises InputError."""
    counts = unigram.astype(np.float64)
    total = float(counts.sum())
    if not np.isfinite(total) or not total > 0 or (counts < 0).any():
        raise InputError(f"unigram must hold counts or shares of at least 0 with a sum above 0, not a sum of {total}")
    return counts / total


def spread_around(
    value: Float64[np.ndarray, " n"], draws: Float64[np.ndarray, "n draws"], examples: Int64[np.ndarray, " n"]
) -> tuple[Float64[np.ndarray, " n"], Float64[np.ndarray, " n"]]:
    """An interval around an effective number of groups: the draws' quantiles over their median, times the value; not
    below 1.

    Examples that are all of one group are so in every draw, however few they are. So the upper end is never below what
    that many examples of one group leave possible (:func:`ffnmem.neurons.verdicts.unseen_number`).
    """
    low, high = interval(draws)
    median = np.full(len(draws), np.nan)
    known = np.isfinite(draws).any(axis=1)  # a draw without activation is NaN
    median[known] = np.nanmedian(draws[known], axis=1)
    high = np.maximum(value * high / median, value)
    return np.maximum(value * low / median, 1.0), np.maximum(high, unseen_number(examples))


# no_type_check keeps the tests' import hook from wrapping what numba has to compile.
@njit(nogil=True, cache=True)
@no_type_check
def number_of(mass, types, k):
    """exp(H) of ``mass`` [k], and zero it; types are columns."""
    total = 0.0
    logs = 0.0
    for j in range(k):
        w = mass[types[j]]
        if w > 0:
            total += w
            logs += w * np.log(w)
            mass[types[j]] = 0.0
    return np.exp(np.log(total) - logs / total) if total > 0 else np.nan


@njit(nogil=True, cache=True)
@no_type_check
def effective(types, weights, counts, places, chance, value, drawn, by_chance, first, last):
    """The effective numbers of some neurons: their own, under each resample, and under each draw of the null.

    A resample is given by ``places`` in [0, 1), which pick among however many examples a neuron has. One that holds no
    activation is NaN.
    """
    held = np.zeros(types.shape[1])
    for r in range(first, last):
        k, own, w = counts[r], types[r], weights[r]
        for j in range(k):
            held[own[j]] += w[j]
        value[r] = number_of(held, own, k)
        for d in range(places.shape[0]):
            for j in range(k):
                i = int(places[d, j] * k)
                held[own[i]] += w[i]
            drawn[r, d] = number_of(held, own, k)
            for j in range(k):
                held[chance[d, j]] += w[j]
            by_chance[r, d] = number_of(held, chance[d], k)
