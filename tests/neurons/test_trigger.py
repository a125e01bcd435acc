"""The effective number of trigger tokens: known answers, a naive reference, an honest null."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from ffnmem.core.errors import InputError
from ffnmem.neurons.triggers import local_types, shares, spread_around, trigger_tokens

from ..helpers import allclose, refuses

VOCAB = 50
EVEN = np.ones(VOCAB)


def naive(tokens: np.ndarray, weights: np.ndarray) -> float:
    by_token = [weights[tokens == token].sum() for token in np.unique(tokens)]
    return float(np.exp(stats.entropy(by_token)))


def test_known_answers() -> None:
    """One token, four alike, two of unlike weight, examples without activation, and none at all."""
    tokens = np.array([[7, 7, 7, 7], [1, 2, 3, 4], [5, 6, 5, 6], [5, 6, 8, 9], [1, 2, 3, 4]])
    weights = np.array([[3, 1, 2, 5.0], [2, 2, 2, 2], [3, 1, 3, 1], [1, 0, 0, np.nan], [np.nan] * 4])
    found = trigger_tokens(tokens, weights, EVEN)
    assert allclose(found.value[:4], [1, 4, np.exp(stats.entropy([0.75, 0.25])), 1])
    assert np.isnan([found.value[4], found.low[4], found.high[4], found.null[4], found.p[4]]).all()
    assert (found.low[:4] <= found.value[:4]).all()
    assert (found.value[:4] <= found.high[:4]).all()
    assert (found.low[:4] >= 1).all()
    assert (found.low[0], found.high[0]) == (1, 2)  # four of one token leave room for another of as much


def test_values_agree_with_the_formula() -> None:
    random = np.random.default_rng(0)
    tokens, weights = random.integers(0, 12, (30, 20)), random.random((30, 20))
    weights[np.arange(20) >= random.integers(1, 21, (30, 1))] = np.nan
    found = trigger_tokens(tokens, weights, EVEN, draws=5)
    for value, row, mass in zip(found.value, tokens, weights, strict=True):
        there = np.isfinite(mass)
        assert allclose(value, naive(row[there], mass[there]))


def test_null_is_nominal_and_detectors_are_below_it() -> None:
    """Examples at random tokens of the corpus's frequencies: p at most 5% in 5% of neurons."""
    random = np.random.default_rng(1)
    unigram = 1 / np.arange(1, VOCAB + 1)
    tokens = random.choice(VOCAB, (2000, 20), p=unigram / unigram.sum())
    weights = random.random((2000, 20))
    tokens[:20, :12] = 30
    found = trigger_tokens(tokens, weights, unigram)
    rejected = (found.p[20:] <= 0.05).mean()
    assert rejected == pytest.approx(0.05, abs=0.025)
    assert (found.p[:20] <= 0.05).all()
    assert found.null[20:].mean() == pytest.approx(found.value[20:].mean(), rel=0.02)


def test_ties_with_the_null_count_against() -> None:
    """Examples that all differ, of a vocabulary so large that random ones do as well, are nothing notable."""
    tokens = np.arange(200).reshape(5, 40)
    found = trigger_tokens(tokens, np.random.default_rng(2).random((5, 40)), np.ones(10**6))
    assert (found.p > 0.9).all()


def test_interval_scales_with_the_value() -> None:
    draws = np.array([[2.0, 2.0, 4.0, np.nan], [np.nan] * 4])
    low, high = spread_around(np.array([3.0, np.nan]), draws, np.array([3, 3]))
    assert allclose(low[0], 3.0)
    assert allclose(high[0], 3.0 * np.quantile([2, 2, 4], 0.975) / 2)
    assert np.isnan([low[1], high[1]]).all()


def test_neurons_do_not_depend_on_each_other() -> None:
    """A number that changes with what else is asked for cannot be repeated."""
    random = np.random.default_rng(3)
    tokens, weights = random.integers(0, VOCAB, (9, 8)), random.random((9, 8))
    whole, alone = trigger_tokens(tokens, weights, EVEN), trigger_tokens(tokens[4:5], weights[4:5], EVEN)
    for part in ("value", "low", "high", "null", "p"):
        assert getattr(alone, part)[0] == getattr(whole, part)[4]
    other = trigger_tokens(tokens, weights, EVEN, seed=1)
    assert other.value.tolist() == whole.value.tolist()
    assert other.null.tolist() != whole.null.tolist()


def test_parts() -> None:
    assert local_types(np.array([[9, 4, 9, 4, 1], [3, 3, 3, 3, 3]])).tolist() == [[0, 1, 0, 1, 4], [0] * 5]
    assert shares(np.array([1, 3])).tolist() == [0.25, 0.75]
    empty = trigger_tokens(np.empty((0, 4), np.int64), np.empty((0, 4)), EVEN)
    assert len(empty) == 0


def test_mistakes() -> None:
    tokens, weights = np.array([[1, 2]]), np.array([[1.0, 2.0]])
    with refuses(InputError, ValueError, "unigram", "0"):
        trigger_tokens(tokens, weights, 0 * EVEN)
