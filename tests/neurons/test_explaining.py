"""Sums by sequence and the best token, against plain loops."""

from __future__ import annotations

import numpy as np
import pytest

from ffnmem.neurons.sample_measures import LEAST, Sample, explained, sequence_sums

from ..helpers import allclose


@pytest.fixture(scope="module")
def sample() -> Sample:
    random = np.random.default_rng(0)
    sequences = np.repeat(np.arange(11), random.integers(4, 14, 11))
    tokens = random.integers(0, 9, len(sequences))
    return Sample(np.arange(len(tokens)), tokens, np.roll(tokens, 1), sequences)


def best_token(x: np.ndarray, tokens: np.ndarray, at: np.ndarray) -> int:
    """The token whose two means leave the least squares of some positions."""
    left = {}
    for token in np.unique(tokens):
        true = at & (tokens == token)
        false = at & (tokens != token)
        if true.sum() >= LEAST and false.any():
            left[token] = ((x[true] - x[true].mean()) ** 2).sum() + ((x[false] - x[false].mean()) ** 2).sum()
    return min(left, key=lambda token: left[token])


def test_sums_by_sequence(sample: Sample) -> None:
    x = np.random.default_rng(1).standard_normal((3, len(sample))).astype(np.float32)
    sums = np.empty((5, 3, sample.n_sequences))
    sequence_sums(x, sample.sequences, 0, 3, sums)
    away = x.astype(np.float64) - x.astype(np.float64).mean(1, keepdims=True)
    for s in range(sample.n_sequences):
        here = sample.sequences == s
        assert allclose(sums[0, :, s], (x[:, here] > 0).sum(1))
        for power in range(1, 5):
            assert allclose(sums[power, :, s], (away[:, here] ** power).sum(1))


def test_choice_and_errors_agree_with_a_loop(sample: Sample) -> None:
    """A token chosen on the positions that score it would always look better than it is."""
    x = np.random.default_rng(2).standard_normal((4, len(sample))).astype(np.float32)
    x[0] += 3 * (sample.tokens == 5)
    errors = np.empty((2, 4, sample.n_sequences))
    types = sample.types["unigram"]
    rest = (types.order, types.starts, types.counts, sample.sequences, sample.groups, LEAST, errors)
    explained(x, 0, 2, *rest)
    explained(x, 2, 4, *rest)
    group = sample.groups[sample.sequences]
    for row, wide in enumerate(x.astype(np.float64)):
        for g in np.unique(group):
            train, test = group != g, group == g
            token = best_token(wide, sample.tokens, train)
            true = sample.tokens == token
            guess = np.where(true, wide[train & true].mean(), wide[train & ~true].mean())
            for s in np.unique(sample.sequences[test]):
                here = sample.sequences == s
                assert allclose(errors[0, row, s], ((wide - guess)[here] ** 2).sum(), 1e-9)
                assert allclose(errors[1, row, s], ((wide - wide[train].mean())[here] ** 2).sum(), 1e-9)


def test_rare_tokens_are_not_chosen() -> None:
    """Two occurrences say little, however strong."""
    sequences = np.repeat(np.arange(8), 5)
    tokens = np.zeros(40, np.int64)
    tokens[[3, 22]] = 7
    sample = Sample(np.arange(40), tokens, tokens, sequences)
    errors = np.empty((2, 1, 8))
    types = sample.types["unigram"]
    assert (len(types.counts), set(tokens[types.order].tolist())) == (1, {0})
    x = (100 * (tokens == 7)).astype(np.float32)[None]
    explained(x, 0, 1, types.order, types.starts, types.counts, sequences, sample.groups, LEAST, errors)
    train = [x[0][sequences != s] for s in range(8)]
    wide = [((x[0, sequences == s] - part.mean()) ** 2).sum() for s, part in enumerate(train)]
    assert allclose(errors[1, 0], wide, 1e-5)
