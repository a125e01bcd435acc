"""When neurons fire, and which sequences are read again for it: against captures, SciPy and plain walks."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import ffnmem as fm
from ffnmem.core.errors import InputError
from ffnmem.corpus.batches import Batch
from ffnmem.corpus.excerpts import Page
from ffnmem.neurons import counting
from ffnmem.neurons.inputs import MOST, Firing
from ffnmem.scanning import Store
from ffnmem.scanning.state import place_of, position_of, sequence_of

from ..helpers import allclose, refuses

# -- what is read again ------------------------------------------------------------------------------------------------


def drawn(seed: int, n: int = 8, sequences: int = 60) -> list[Firing]:
    """Examples of two layers' neurons, some at the very first place of the text."""
    random, found = np.random.default_rng(seed), []
    for layer in range(2):
        places, strengths = np.full((n, MOST), -1, np.int64), np.zeros((n, MOST))
        for i in range(n):
            count = int(random.integers(0, MOST + 1))
            at = random.choice(sequences, count, replace=False)
            places[i, :count] = place_of(at.astype(np.int64), np.where(at, random.integers(1, 50, count), 0))
            strengths[i, :count] = -np.sort(-random.random(count))
        found.append(Firing(layer, np.arange(n), places, strengths, strengths[:, 0]))
    return found


def chosen(found: list[Firing], budget: float) -> set[int]:
    """The sequences of most worth a token, a sixteenth of the budget more in each round; those that all fit in."""
    owners: dict[int, list[tuple[int, int]]] = {}
    cost: Counter[int] = Counter()
    for one in found:
        for neuron, place in np.argwhere(one.places >= 0).tolist():
            at = int(one.places[neuron, place])
            owners.setdefault(sequence_of(at), []).append((one.layer, neuron))
            cost[sequence_of(at)] = max(cost[sequence_of(at)], position_of(at) + 1)
    if cost.total() <= budget:
        return set(cost)
    taken: set[int] = set()
    have: Counter[tuple[int, int]] = Counter()
    for part in range(1, 17):
        worth = {s: sum(1 / (1 + have[o]) for o in its) / cost[s] for s, its in owners.items() if s not in taken}
        spent, now = sum(cost[s] for s in taken), []
        for sequence in sorted(worth, key=lambda s: (-worth[s], s)):
            spent += cost[sequence]
            if spent > budget * part / 16:
                break
            now.append(sequence)
        taken |= set(now)
        have.update(owner for sequence in now for owner in owners[sequence])
    return taken


@given(seed=st.integers(0, 1000), budget=st.one_of(st.none(), st.integers(0, 3500)))
def test_within_budget_is_a_plain_walk(seed: int, budget: int | None) -> None:
    """A sequence that is read serves every neuron with an example there; others' examples are left out, in order."""
    found = drawn(seed)
    read = chosen(found, np.inf if budget is None else budget)
    for before, after in zip(found, counting.within_budget(found, budget), strict=True):
        assert (after.extreme == before.extreme).all()
        for row, places in enumerate(before.places):
            kept = [slot for slot, place in enumerate(places) if place >= 0 and sequence_of(int(place)) in read]
            assert after.counts[row] == len(kept)
            assert after.places[row].tolist() == [*places[kept], *[-1] * (MOST - len(kept))]
            assert after.strengths[row].tolist() == [*before.strengths[row, kept], *[0] * (MOST - len(kept))]


def test_a_sample_is_part_of_the_whole(tiny_store: Store) -> None:
    """Without repeats, the same for the same seed; tokens are counted as a reading of all has them, in a copy."""
    one, same, other = (counting.sample_of(tiny_store, 12, seed) for seed in (3, 3, 4))
    assert one.numbers.tolist() == same.numbers.tolist() != other.numbers.tolist()
    assert sorted(set(one.numbers.tolist())) == one.numbers.tolist()
    assert len(one) == 12
    assert counting.sample_of(tiny_store, 10**4).numbers.tolist() == list(range(tiny_store.sequences.n_sequences))
    found = counting.content_counts(tiny_store)
    assert found.tolist() == counting.sample_of(tiny_store, None).token_counts.tolist()
    found += 1
    assert counting.content_counts(tiny_store).tolist() == (found - 1).tolist()


# -- counts ------------------------------------------------------------------------------------------------------------


def test_firings_are_those_of_captures(tiny: fm.Model, tiny_store: Store) -> None:
    check_firings(tiny, tiny_store)


def test_gated_firings_are_those_of_captures(gated: fm.Model, gated_store: Store) -> None:
    check_firings(gated, gated_store)


def check_firings(model: fm.Model, store: Store) -> None:
    """By position and token, where a pre-activation (a gate) is above 0; in little memory frequent ones stay exact."""
    found = counting.count_firings(model, store, n_sequences=None)
    seen, by_token = np.zeros((32, 1), int), np.zeros((model.d_vocab, 1), int)
    at_position, at_type = np.zeros((2, 32, 64), int), np.zeros((2, model.d_vocab, 64), int)
    for number in range(store.sequences.n_sequences):
        tokens = store.sequences.sequence_tokens(number)
        captured = fm.capture(model, tokens.tolist())
        places = np.flatnonzero(captured.content[0])
        np.add.at(seen, places, 1)
        np.add.at(by_token, tokens[places], 1)
        for layer in range(2):
            fires = (captured.pre[layer][0, places] > 0).numpy()
            np.add.at(at_position[layer], places, fires)
            np.add.at(at_type[layer], tokens[places], fires)
    assert found.n_tokens == store.n_tokens
    assert found.positions.tolist() == seen[: store.settings.context, 0].tolist()
    order = np.argsort(-by_token[:, 0], kind="stable")[: np.count_nonzero(by_token)]
    assert (found.types.tolist(), found.least_count) == (order.tolist(), 1)
    assert found.type_counts.tolist() == by_token[order, 0].tolist()
    assert counting.choose_types(by_token[:, 0], len(order))[1] == 1  # with room for just as many
    small = counting.count_firings(model, store, [1], n_sequences=None, memory=4 * 64 * 5)
    assert (small.layers, small.types.tolist()) == ([1], order[:5].tolist())
    assert small.least_count == by_token[order[5], 0] + 1
    assert np.array_equal(small.at_type[1], at_type[1, order[:5]])
    for layer in range(2):
        assert np.array_equal(found.at_position[layer], at_position[layer][: store.settings.context])
        assert np.array_equal(found.at_type[layer], at_type[layer, order])
        assert allclose(found.fired(layer) / found.n_tokens, store.stats(layer)["firing_rate"], 1e-12)


def test_count_active_in_blocks() -> None:
    """Layers wider than a block; zero does not fire, and what is no number is refused."""
    coefficients = np.random.default_rng(1).standard_normal((4, 3500)).astype(np.float32)
    coefficients[0, :9] = 0
    groups, counts = np.array([0, 2, 0, 1]), np.zeros((3, 3500), np.int32)
    counting.count_active(coefficients, np.stack([np.arange(4), groups], axis=1), 0, 3500, counts)
    assert (counts == [(coefficients[groups == group] > 0).sum(axis=0) for group in range(3)]).all()
    with refuses(InputError, ValueError, "layer 0", "NaN"):
        page = Page(Batch(np.array([[5]]), np.array([0]), np.array([1])), 0, np.array([0]))
        broken = torch.tensor([[1.0, torch.nan]])
        counting.ActiveCounts(lambda page: page.positions, 8, {0: 2}).add(page, 0, broken, broken, None)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=2, max_size=8))
def test_information_is_the_g_statistic(table: list[tuple[int, int]]) -> None:
    """2N·I, before its bias is taken off, is SciPy's log-likelihood ratio, with its p; none where nothing varies."""
    fired, silent = np.array(table).T
    seen = fired + silent
    used, n = seen > 0, int(seen.sum())
    if not n:
        return
    found = counting.position_information(fired[:, None].astype(np.int32), seen.astype(np.int64))
    if used.sum() < 2 or not fired.sum() or not silent.sum():
        assert (found.information[0], found.p[0]) == (0, 1)
        return
    contingency = np.stack([fired[used], silent[used]])
    expected = stats.chi2_contingency(contingency, correction=False, lambda_="log-likelihood")
    unbiased = (expected.statistic - (int(used.sum()) - 1)) / (2 * n)
    assert allclose(found.information[0], max(unbiased, 0.0), 1e-9)
    assert allclose(found.p[0], expected.pvalue, 1e-9)


# -- tokens ------------------------------------------------------------------------------------------------------------


def reading(store: Store, active: Any, type_counts: Any, fired: Any, least: int = 1) -> counting.FiringCounts:
    """Of one layer: how often neurons fired at each type (a row a neuron), and in all."""
    types, at_position = np.arange(100, 100 + len(type_counts)), {0: np.array([np.zeros_like(fired), fired], np.int32)}
    at_type = {0: np.array(active, np.int32).T.copy()}
    return counting.FiringCounts(
        counting.sample_of(store, 1), np.array([0, 9000]), at_position, types, np.array(type_counts), at_type, least
    )


BY_HAND = [
    ([98, 0, 99, 0, 0, 0, 0], 200),  # two covered tokens: 197 of 200 firings
    ([98, 0, 50, 0, 0, 0, 0], 148),  # the second one only half of the time
    ([98, 0, 0, 0, 0, 0, 0], 120),  # 22 firings elsewhere
    ([100, 100, 100, 100, 100, 100, 0], 600),  # six tokens
    ([0, 0, 0, 0, 0, 0, 5], 5),  # a token too rare to know
    ([0, 0, 0, 0, 0, 0, 0], 0),  # silent
]


@pytest.mark.parametrize(
    ("options", "detected"),
    [
        ({}, [0]),
        ({"coverage": 0.5}, [0, 1, 2, 3]),
        ({"min_count": 101}, []),
        ({"types": 1}, []),
        ({"types": 6}, [0, 3]),
    ],
)
def test_detection_is_the_definition(options: dict[str, Any], detected: list[int], tiny_store: Store) -> None:
    """Neuron by neuron, token by token; of the first six what the papers' rule says is known."""
    draw, counts = np.random.default_rng(0), np.array([100, 100, 100, 100, 100, 100, 5])
    active = np.minimum(draw.poisson(draw.gamma(0.5, 90, (200, 7))), counts)
    active, fired = np.concatenate([[own for own, _ in BY_HAND], active]), active.sum(1) + draw.integers(0, 3, 200)
    fired = np.concatenate([[total for _, total in BY_HAND], fired])
    found = counting.token_detection(reading(tiny_store, active, counts, fired), 0, **options)
    rule = {"types": 5, "coverage": 0.95, "min_count": 10, **options}
    for neuron, (own, total) in enumerate(zip(active.tolist(), fired.tolist(), strict=True)):
        covered = [t for t in range(7) if counts[t] >= rule["min_count"] and own[t] >= rule["coverage"] * counts[t]]
        share = sum(own[t] for t in covered) / total if total else np.nan
        enough = [k for k in range(1, 8) if sum(sorted(own)[-k:]) >= rule["coverage"] * total]
        fewest = enough[0] if enough and total else np.nan
        np.testing.assert_equal((found.covered[neuron], found.share[neuron]), (len(covered), share))
        np.testing.assert_equal(found.covering[neuron], fewest)
        assert not enough or not total or found.at_least[neuron] == fewest
        assert found.detects[neuron] == (fewest <= rule["types"] and share >= rule["coverage"])
        if found.detects[neuron]:
            assert found.triggers[neuron] == [100 + t for t in sorted(covered, key=lambda t: -own[t])]
    assert [neuron for neuron in found.triggers if neuron < 6] == detected


@pytest.mark.parametrize("rare", [1, 3])
def test_rare_tokens_bound_how_many_it_takes(rare: int, tiny_store: Store) -> None:
    """Against all tokens counted; exact where every rare token fires the neuron as often as it can."""
    draw = np.random.default_rng(rare)
    frequent = draw.poisson(draw.gamma(0.5, 12, (40, 8)))
    others = np.where(np.arange(40)[:, None] % 2, rare, draw.integers(0, rare + 1, (40, 400)))
    every = -np.sort(-np.concatenate([frequent, others], axis=1))
    found = counting.token_detection(reading(tiny_store, frequent, np.full(8, 500), every.sum(1), rare + 1), 0)
    needed = 1 + (np.cumsum(every, axis=1) >= 0.95 * every.sum(1, keepdims=True)).argmax(axis=1)
    assert np.isnan(found.covering).all()
    assert (found.at_least[1::2] == needed[1::2]).all()
    assert (found.at_least <= needed).all()
    assert (found.at_least > 8).all()
