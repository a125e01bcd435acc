"""When neurons fire: counts against the scan's, information against scipy's, detectors with known answers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import ffnmem as fm
from ffnmem.core.errors import InputError
from ffnmem.neurons.counting import (
    Detection,
    FiringCounts,
    choose_types,
    content_counts,
    count_active,
    count_firings,
    position_information,
    sample_of,
    token_detection,
)
from ffnmem.scanning import Store

from ..helpers import allclose, refuses


@pytest.fixture(scope="module")
def firing(tiny: fm.Model, tiny_store: Store) -> FiringCounts:
    return count_firings(tiny, tiny_store, n_sequences=None)


def test_firings_are_the_scans(firing: FiringCounts, tiny_store: Store) -> None:
    """Two passes over the same text count the same firings; every token is at one position and of one type."""
    assert firing.n_tokens == tiny_store.n_tokens
    for layer in firing.layers:
        rates = tiny_store.stats(layer)["firing_rate"].to_numpy()
        assert allclose(firing.fired(layer) / firing.n_tokens, rates, 1e-12)
        assert (firing.at_type[layer].sum(axis=0) == firing.fired(layer)).all()
        assert (firing.at_type[layer] <= firing.type_counts[:, None]).all()
        assert (firing.at_position[layer] <= firing.positions[:, None]).all()


def test_positions_start_behind_bos(firing: FiringCounts, tiny_store: Store) -> None:
    lengths = np.concatenate([tiny_store.sequences.lengths(unit) for unit in tiny_store.sequences.units])
    assert firing.positions[0] == 0
    assert firing.positions[1] == len(lengths)
    assert firing.positions.tolist() == [0, *[(lengths > p).sum() for p in range(1, tiny_store.settings.context)]]


def test_little_memory_is_the_same_for_fewer_tokens(firing: FiringCounts, tiny: fm.Model, tiny_store: Store) -> None:
    """What is reported stays exact, and what is left out is said."""
    small = count_firings(tiny, tiny_store, [1], n_sequences=None, memory=4 * tiny.d_mlp * 5)
    assert small.layers == [1]
    assert small.types.tolist() == firing.types[:5].tolist()
    assert (small.at_type[1] == firing.at_type[1][:5]).all()
    assert small.least_count == firing.type_counts[5] + 1
    assert firing.least_count == 1
    assert (small.fired(1) == firing.fired(1)).all()


def test_frequent() -> None:
    counts = np.array([0, 5, 9, 5, 1])
    assert choose_types(counts, 9)[0].tolist() == [2, 1, 3, 4]
    assert choose_types(counts, 9)[1] == 1
    assert (choose_types(counts, 2)[0].tolist(), choose_types(counts, 2)[1]) == ([2, 1], 6)


# -- positions ---------------------------------------------------------------------------------------------------------


def counts_of(active: list[list[int]]) -> np.ndarray:
    return np.array(active, np.int32).T


def test_information_of_an_indicator_is_its_entropy() -> None:
    """A neuron that fires at one half of the positions, and always there, tells log 2 nats."""
    seen = np.full(8, 100_000)
    found = position_information(counts_of([[100_000] * 4 + [0] * 4, [50_000] * 8, [0] * 8, [100_000] * 8]), seen)
    assert allclose(found.information, [np.log(2), 0, 0, 0], 1e-4)
    assert found.p[0] < 1e-12
    assert (found.p[1:] > 0.9).all()


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=2, max_size=8))
def test_information_is_the_g_statistic(table: list[tuple[int, int]]) -> None:
    """2N·I, before its bias is taken off, is scipy's log-likelihood ratio, with the same p."""
    fired, silent = np.array(table).T
    seen = fired + silent
    used = seen > 0
    if used.sum() < 2 or not fired.sum() or not silent.sum():
        return
    found = position_information(fired[:, None].astype(np.int32), seen.astype(np.int64))
    contingency = np.stack([fired[used], silent[used]])
    expected = stats.chi2_contingency(contingency, correction=False, lambda_="log-likelihood")
    n = int(seen.sum())
    plain = expected.statistic / (2 * n)
    assert allclose(found.information[0], max(plain - (int(used.sum()) - 1) / (2 * n), 0.0), 1e-9)
    assert allclose(found.p[0], expected.pvalue, 1e-9)


def test_information_has_no_bias() -> None:
    """Neurons that ignore position have information near 0 on average in a small sample too; their p is uniform."""
    draw = np.random.default_rng(0)
    seen = np.full(64, 30)
    active = draw.binomial(30, 0.4, (64, 400)).astype(np.int32)
    found = position_information(active, seen.astype(np.int64))
    bias = 63 / (2 * seen.sum())
    assert found.information.mean() < 0.3 * bias
    assert 0.01 < (found.p < 0.05).mean() < 0.12


# -- tokens ------------------------------------------------------------------------------------------------------------


def made(store: Any, active: list[list[int]], type_counts: list[int], fired: list[int]) -> FiringCounts:
    """A reading of one layer in which neurons fired so often at each type; ``fired`` in all."""
    types = np.arange(100, 100 + len(type_counts))
    positions = np.array([0, sum(type_counts) + 1000])
    return FiringCounts(
        sample_of(store, 1),
        positions,
        {0: np.array([[0] * len(fired), fired], np.int32)},
        types,
        np.array(type_counts),
        {0: np.array(active, np.int32).T.copy()},
        1,
    )


def detection(store: Any, *neurons: tuple[list[int], int], counts: list[int], **options: Any) -> Detection:
    firing = made(store, [active for active, _ in neurons], counts, [fired for _, fired in neurons])
    return token_detection(firing, 0, **options)


def test_detectors(tiny_store: Store) -> None:
    """Each neuron fails one part of the rule, but for the first."""
    counts = [100, 100, 100, 100, 100, 100, 5]
    found = detection(
        tiny_store,
        ([98, 0, 99, 0, 0, 0, 0], 200),  # two covered tokens: 197 of 200 firings
        ([98, 0, 50, 0, 0, 0, 0], 148),  # the second one only half of the time
        ([98, 0, 0, 0, 0, 0, 0], 120),  # 22 firings elsewhere
        ([100, 100, 100, 100, 100, 100, 0], 600),  # six tokens
        ([0, 0, 0, 0, 0, 0, 5], 5),  # a token too rare to know
        ([0, 0, 0, 0, 0, 0, 0], 0),  # silent
        counts=counts,
    )
    assert found.detects.tolist() == [True, False, False, False, False, False]
    assert found.triggers == {0: [102, 100]}
    assert found.covered.tolist() == [2, 1, 1, 6, 0, 0]
    assert allclose(found.share[:5], [197 / 200, 98 / 148, 98 / 120, 1.0, 0.0], 1e-12)
    assert np.isnan(found.share[5])
    assert found.covering[:2].tolist() == [2, 2]
    assert np.isnan(found.covering[2])
    assert found.covering[3:5].tolist() == [6, 1]
    assert np.isnan(found.covering[5])


def test_thresholds_of_detectors(tiny_store: Store) -> None:
    neurons = (([98, 0, 50], 148), ([0, 0, 100], 100))
    assert detection(tiny_store, *neurons, counts=[100, 100, 100], coverage=0.5).detects.tolist() == [True, True]
    assert detection(tiny_store, *neurons, counts=[100, 100, 100], min_count=101).detects.tolist() == [False, False]
    assert detection(tiny_store, *neurons, counts=[100, 100, 100], types=1).detects.tolist() == [False, True]


@pytest.mark.parametrize("seed", range(40))
def test_covering_is_the_fewest(seed: int, tiny_store: Store) -> None:
    """Against the definition, token by token."""
    draw = np.random.default_rng(seed)
    active = draw.poisson(draw.gamma(0.5, 8, 12)).astype(np.int32)
    fired = int(active.sum()) + int(draw.integers(0, 3))
    firing = FiringCounts(
        sample_of(tiny_store, 1),
        np.array([0, 1000]),
        {0: np.array([[0], [fired]], np.int32)},
        np.arange(12),
        np.full(12, 500),
        {0: active[:, None]},
        1,
    )
    detected = token_detection(firing, 0)
    found = detected.covering[0]
    assert np.isnan(found) or detected.at_least[0] == found
    ordered = sorted(active.tolist(), reverse=True)
    enough = [k for k in range(1, 13) if sum(ordered[:k]) >= 0.95 * fired]
    assert (np.isnan(found) and not (enough and fired)) or found == enough[0]


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("rare", [1, 3])
def test_rare_tokens_bound_how_many_it_takes(seed: int, rare: int, tiny_store: Store) -> None:
    """Against all tokens counted one by one, of which only the frequent ones were looked at; exact where every rare
    token fires the neuron as often as it can."""
    draw = np.random.default_rng([seed, rare])
    frequent = draw.poisson(draw.gamma(0.5, 12, 8)).astype(np.int32)
    often = bool(seed % 2)
    others = np.full(400, rare) if often else draw.integers(0, rare + 1, 400)
    every = np.sort(np.concatenate([frequent, others]))[::-1]
    fired = int(every.sum())
    firing = FiringCounts(
        sample_of(tiny_store, 1),
        np.array([0, 5000]),
        {0: np.array([[0], [fired]], np.int32)},
        np.arange(8),
        np.full(8, 500),
        {0: frequent[:, None]},
        rare + 1,
    )
    found = token_detection(firing, 0)
    needed = 1 + int((np.cumsum(every) >= 0.95 * fired).argmax())
    assert np.isnan(found.covering[0])
    assert found.at_least[0] == needed if often else found.at_least[0] <= needed
    assert found.at_least[0] > 8


def test_a_gated_neuron_fires_where_its_gate_is_open(gated: fm.Model, gated_store: Store) -> None:
    """Whichever sign its coefficient has there, as the store counts it; sequence by sequence from captures."""
    found = count_firings(gated, gated_store, n_sequences=None)
    fired = np.zeros((2, 64), np.int64)
    for number in range(gated_store.sequences.n_sequences):
        captured = fm.capture(gated, gated_store.sequences.sequence_tokens(number).tolist())
        for layer in range(2):
            fired[layer] += (captured.pre[layer][captured.content] > 0).sum(dim=0).numpy()
    for layer in range(2):
        assert found.fired(layer).tolist() == fired[layer].tolist()
        assert allclose(fired[layer] / gated_store.n_tokens, gated_store.stats(layer)["firing_rate"], 1e-12)


def test_a_sample_is_part_of_the_whole(tiny: fm.Model, tiny_store: Store) -> None:
    """Uniform, without repeats, the same for the same seed, and other for another."""
    total = tiny_store.sequences.n_sequences
    one, same, other = sample_of(tiny_store, 12, 3), sample_of(tiny_store, 12, 3), sample_of(tiny_store, 12, 4)
    assert one.numbers.tolist() == same.numbers.tolist() != other.numbers.tolist()
    assert len(set(one.numbers.tolist())) == len(one) == 12
    assert sorted(one.numbers.tolist()) == one.numbers.tolist()
    assert sample_of(tiny_store, 10 * total).numbers.tolist() == sample_of(tiny_store, None).numbers.tolist()
    assert int(one.token_counts.sum()) == one.n_tokens


def test_content_counts_are_those_of_a_reading_of_all(tiny_store: Store) -> None:
    """Else measures would weigh tokens that the scan never saw; and the corpus's own counts stay as they are."""
    before = np.array(tiny_store.corpus.token_counts)
    found = content_counts(tiny_store)
    assert found.tolist() == sample_of(tiny_store, None).token_counts.tolist()
    found += 1
    assert np.array(tiny_store.corpus.token_counts).tolist() == before.tolist()


def test_senseless_samples_are_refused(tiny_store: Store) -> None:
    with refuses(InputError, ValueError, "n_sequences", "0"):
        sample_of(tiny_store, 0)
    with refuses(InputError, ValueError, "seed", "-1"):
        sample_of(tiny_store, 3, -1)


def test_count_active_in_blocks() -> None:
    """Layers wider than a block; zero does not fire."""
    draw = np.random.default_rng(1)
    coefficients = draw.standard_normal((4, 3500)).astype(np.float32)
    coefficients[0, :9] = 0
    groups = np.array([0, 2, 0, 1])
    counts = np.zeros((3, 3500), np.int32)
    count_active(coefficients, np.stack([np.arange(4), groups], axis=1), 0, 3500, counts)
    expected = np.stack([(coefficients[groups == group] > 0).sum(axis=0) for group in range(3)])
    assert (counts == expected).all()
