"""The effective number of trigger tokens: against a plain double, with known answers, an honest null."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from ffnmem.core.errors import InputError
from ffnmem.neurons.triggers import trigger_tokens
from ffnmem.neurons.verdicts import unseen_number

from ..helpers import allclose, refuses

UNIGRAM = 1 / np.arange(1, 51)


def number(tokens: np.ndarray, weights: np.ndarray) -> float:
    return float(np.exp(stats.entropy([weights[tokens == token].sum() for token in np.unique(tokens)])))


def plain(tokens: np.ndarray, weights: np.ndarray, seed: int, draws: int) -> list[float]:
    """Value, interval, null and p of one neuron, draw by draw."""
    random = np.random.default_rng([seed, 0])
    places = random.random((draws, len(tokens)))
    chance = random.choice(len(UNIGRAM), places.shape, p=UNIGRAM / UNIGRAM.sum())
    n = int(np.isfinite(weights).sum())
    value = number(tokens[:n], weights[:n])
    again = [number(tokens[picks], weights[picks]) for picks in (places[:, :n] * n).astype(int)]
    null = np.array([number(some[:n], weights[:n]) for some in chance])
    low, middle, high = value * np.quantile(again, [0.025, 0.5, 0.975]) / np.median(again)
    high = max(high, middle, float(unseen_number(np.array([n]))[0]))
    return [value, max(low, 1.0), high, null.mean(), (1 + (null <= value * (1 + 1e-9)).sum()) / (1 + draws)]


def test_each_number_is_that_of_plain_draws() -> None:
    """Neuron by neuron, so that none depends on which others are asked for."""
    random = np.random.default_rng(0)
    tokens, weights = random.integers(0, 12, (30, 20)), random.random((30, 20))
    weights[np.arange(20) >= random.integers(1, 21, (30, 1))] = np.nan
    found = trigger_tokens(tokens, weights, UNIGRAM, seed=3, draws=40)
    parts = np.stack([found.value, found.low, found.high, found.null, found.p], axis=1)
    assert allclose(parts, [plain(*row, 3, 40) for row in zip(tokens, weights, strict=True)], 1e-9)


def test_known_answers() -> None:
    """One token, four alike, two of unlike weight, examples without activation, and none at all."""
    tokens = np.array([[7, 7, 7, 7], [1, 2, 3, 4], [5, 6, 5, 6], [5, 6, 8, 9], [1, 2, 3, 4]])
    weights = np.array([[3, 1, 2, 5.0], [2, 2, 2, 2], [3, 1, 3, 1], [1, 0, 0, np.nan], [np.nan] * 4])
    found = trigger_tokens(tokens, weights, UNIGRAM)
    assert allclose(found.value[:4], [1, 4, np.exp(stats.entropy([0.75, 0.25])), 1])
    assert (found.low[0], found.high[0]) == (1, 2)  # four of one token leave room for another of as much
    assert np.isnan([found.value[4], found.low[4], found.high[4], found.null[4], found.p[4]]).all()
    # Examples that all differ, of a vocabulary so large that random ones do as well, are nothing notable.
    assert trigger_tokens(np.arange(40)[None], np.ones((1, 40)), np.ones(10**6)).p[0] > 0.9


def test_null_is_nominal_and_detectors_are_below_it() -> None:
    """Examples at random tokens of the corpus's frequencies: p at most 5% in 5% of neurons."""
    random = np.random.default_rng(1)
    tokens = random.choice(50, (2000, 20), p=UNIGRAM / UNIGRAM.sum())
    tokens[:20, :12] = 30
    found = trigger_tokens(tokens, random.random((2000, 20)), UNIGRAM)
    assert (found.p[20:] <= 0.05).mean() == pytest.approx(0.05, abs=0.025)
    assert (found.p[:20] <= 0.05).all()


def test_a_corpus_without_tokens() -> None:
    with refuses(InputError, ValueError, "unigram", "0"):
        trigger_tokens(np.array([[1, 2]]), np.array([[1.0, 2.0]]), 0 * UNIGRAM)
