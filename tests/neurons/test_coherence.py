"""Coherence of values: naive references, planted groups of tokens, honest nulls."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import numpy as np
import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import InputError, OutOfRangeError
from ffnmem.neurons.coherence import Frequencies, coherence, mean_cosine, strata, value_coherence
from ffnmem.neurons.verdicts import Estimate

from ..helpers import allclose, refuses

SIGNS = {"positive": "promoted", "negative": "suppressed"}


@pytest.fixture(scope="module")
def counts(tiny: fm.Model) -> np.ndarray:
    return np.random.default_rng(0).geometric(0.02, tiny.d_vocab) - 1


@pytest.fixture(scope="module")
def found(tiny: fm.Model, counts: np.ndarray) -> dict[str, Estimate]:
    return value_coherence(tiny, 1, counts, k=6)


def pairs_of(rows: torch.Tensor) -> float:
    units = rows / rows.norm(dim=1, keepdim=True)
    return float(np.mean([float(units[i] @ units[j]) for i, j in combinations(range(len(units)), 2)]))


def test_values_agree_with_the_projections_tokens(tiny: fm.Model, found: dict[str, Estimate]) -> None:
    tokens = fm.project(tiny, 1, [0, 17, 63], k=6, side="value")
    for sign, name in SIGNS.items():
        estimate = found[sign]
        assert len(estimate) == 64
        for neuron in (0, 17, 63):
            rows = tokens[(tokens["neuron"] == neuron) & (tokens["sign"] == name)]
            ids = torch.tensor(rows["token_id"].to_numpy().astype(np.int64))
            assert allclose(estimate.value[neuron], pairs_of(tiny.unembedding.detach()[ids].double()))
        assert (estimate.low <= estimate.value).all()
        assert (estimate.value <= estimate.high).all()
        assert (estimate.low < estimate.high).all()


def test_expected_is_the_mean_of_all_pairs(tiny: fm.Model, counts: np.ndarray) -> None:
    """Of every pair of tokens that the strata allow, by hand."""
    tokens = tiny.unembedding.detach()
    frequencies = strata(tokens, counts)
    units = (tokens / tokens.norm(dim=1, keepdim=True)).double().numpy()
    products = units @ units.T
    n = frequencies.stratum.max() + 1
    assert n > 2
    assert np.bincount(frequencies.stratum).min() >= 64
    for a in range(n):
        for b in range(a, n):
            block = products[np.ix_(frequencies.stratum == a, frequencies.stratum == b)]
            expected = block[np.triu_indices(len(block), 1)].mean() if a == b else block.mean()
            assert allclose(frequencies.cosine[a, b], expected)
    ids = np.array([[0, 5, 9, 40, 77], [3, 4, 5, 6, 7]])
    by_hand = [
        np.mean([frequencies.cosine[frequencies.stratum[i], frequencies.stratum[j]] for i, j in combinations(row, 2)])
        for row in ids
    ]
    assert allclose(frequencies.expected(ids), by_hand)


def test_strata_hold_like_frequencies(tiny: fm.Model) -> None:
    """Most tokens of a large vocabulary never occur in a small corpus: they are compared with each other."""
    counts = np.zeros(tiny.d_vocab, np.int64)
    counts[:100] = 1000
    stratum = strata(tiny.unembedding.detach(), counts).stratum
    assert set(stratum[:100].tolist()) == {0}
    assert set(stratum[100:].tolist()) == {1}
    assert set(strata(tiny.unembedding.detach(), counts[::-1].copy() * 0).stratum.tolist()) == {0}


def test_interval_and_value_of_known_rows() -> None:
    together = np.tile(np.eye(4, dtype=np.float32)[:1], (5, 1))
    apart = np.eye(5, 4, dtype=np.float32)
    again = np.random.default_rng(0).multinomial(5, np.full(5, 0.2), 100)
    value, low, high = coherence(np.stack([together, apart]), again)
    assert allclose(value, [1.0, 0.0])
    assert allclose(low, [1.0, 0.0])
    assert allclose(high, [1.0, 0.0])
    rows = np.random.default_rng(1).standard_normal((3, 7, 4)).astype(np.float32)
    units = rows / np.linalg.norm(rows, axis=-1, keepdims=True)
    assert allclose(mean_cosine(units), [pairs_of(torch.from_numpy(part).double()) for part in rows])


def test_planted_group_is_found(make_tiny: Callable[..., fm.Model]) -> None:
    """A value that writes tokens with something of their own in common, and one along a random direction."""
    model = make_tiny()
    group = torch.arange(40, 46)
    with torch.no_grad():
        shared = torch.randn(16, generator=torch.Generator().manual_seed(3))
        shared -= shared.mean()
        own = model.unembedding[group]
        model.unembedding[group] = shared * own.norm(dim=1).median() / shared.norm() + 0.1 * own
        model.ffn[0].values[5].copy_(shared)
        model.ffn[0].values[8].zero_()
    result = value_coherence(model, 0, np.ones(model.d_vocab), k=6)
    positive = result["positive"]
    assert positive.value[5] > 0.9
    assert positive.p[5] < 0.02
    assert positive.value[5] > positive.null[5] + 0.3
    for estimate in result.values():
        assert np.isnan([getattr(estimate, part)[8] for part in ("value", "low", "high", "null", "p")]).all()


def test_random_values_are_within_the_null(architecture: fm.Model) -> None:
    """Any direction selects tokens that have it in common, which is no coherence."""
    counts = np.random.default_rng(0).geometric(0.02, architecture.d_vocab)
    for estimate in value_coherence(architecture, 0, counts, k=6, draws=2).values():
        assert np.mean(estimate.p <= 0.05) <= 0.17
        assert np.median(estimate.p) == pytest.approx(0.5, abs=0.2)


def test_the_seed_draws_the_null_alone(tiny: fm.Model, counts: np.ndarray, found: dict[str, Estimate]) -> None:
    moved = value_coherence(tiny, -1, counts, k=6, seed=1)
    assert moved["positive"].value.tolist() == found["positive"].value.tolist()
    assert moved["positive"].null.tolist() != found["positive"].null.tolist()


def test_mistakes(tiny: fm.Model, counts: np.ndarray) -> None:
    with refuses(InputError, ValueError, "counts", "303", "5"):
        value_coherence(tiny, 0, counts[:5])
    with refuses(InputError, ValueError, "k must be", "304"):
        value_coherence(tiny, 0, counts, k=304)
    with refuses(OutOfRangeError, IndexError, "layer 2"):
        value_coherence(tiny, 2, counts)


def test_one_stratum_needs_no_own_cosine() -> None:
    lone = Frequencies(np.array([0, 1]), np.array([[np.nan, 0.25], [0.25, np.nan]]))
    assert allclose(lone.expected(np.array([[0, 1]])), [0.25])
