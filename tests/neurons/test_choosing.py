"""Which sequences are read when not all can be: within the budget, the same every time, and fair."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffnmem.neurons.counting import within_budget
from ffnmem.neurons.inputs import MOST, Firing
from ffnmem.scanning.state import place_of, position_of, sequence_of


def made(seed: int, n: int = 30, sequences: int = 200, layers: int = 2) -> list[Firing]:
    random = np.random.default_rng(seed)
    found = []
    for layer in range(layers):
        places, strengths = np.full((n, MOST), -1, np.int64), np.zeros((n, MOST))
        for i in range(n):
            count = int(random.integers(0, MOST + 1))
            at = random.choice(sequences, count, replace=False)
            places[i, :count] = place_of(at.astype(np.int64), random.integers(1, 50, count))
            strengths[i, :count] = -np.sort(-random.random(count))
        found.append(Firing(layer, np.arange(n), places, strengths, strengths[:, 0]))
    return found


def everywhere(found: list[Firing]) -> np.ndarray:
    return np.concatenate([f.places[f.places >= 0] for f in found])


def cost(found: list[Firing]) -> int:
    """Tokens up to the last place of each sequence, of whatever layer."""
    last: dict[int, int] = {}
    for place in everywhere(found).tolist():
        last[sequence_of(place)] = max(last.get(sequence_of(place), 0), position_of(place) + 1)
    return sum(last.values())


@given(seed=st.integers(0, 1000), share=st.floats(0.0, 1.2))
def test_never_above_the_budget(seed: int, share: float) -> None:
    found = made(seed, n=8, sequences=60)
    budget = int(share * cost(found))
    kept = within_budget(found, budget)
    assert cost(kept) <= budget
    for before, after in zip(found, kept, strict=True):
        assert set(after.places.ravel()) <= {*before.places.ravel(), -1}
        assert (after.extreme == before.extreme).all()


def test_most_of_the_budget_is_used() -> None:
    found = made(0)
    budget = cost(found) // 3
    assert cost(within_budget(found, budget)) > budget - 60


@pytest.mark.parametrize("budget", [None, "exact", 10**9])
def test_all_is_kept_where_it_fits(budget: int | str | None) -> None:
    found = made(1)
    limit = cost(found) if budget == "exact" else budget
    kept = within_budget(found, limit)  # type: ignore[arg-type]
    assert all(one is other for one, other in zip(kept, found, strict=True))


def test_a_sequence_is_read_for_all_or_none() -> None:
    """What was paid for once is kept by every neuron that has an example there."""
    found = made(2)
    kept = within_budget(found, cost(found) // 4)
    read = set(sequence_of(everywhere(kept)).tolist())
    for before, after in zip(found, kept, strict=True):
        for row in range(len(before.neurons)):
            places = before.places[row][before.places[row] >= 0]
            assert after.places[row, : after.counts[row]].tolist() == [
                p for p in places.tolist() if sequence_of(p) in read
            ]


def test_the_same_every_time() -> None:
    one, other = (within_budget(made(3), 900) for _ in range(2))
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a.places, b.places)
        np.testing.assert_array_equal(a.strengths, b.strengths)


def test_neurons_with_few_examples_come_first() -> None:
    """Sixteen neurons fire together wherever they fire, one alone: its sequences pay less, and yet it gets some."""
    places = np.full((17, MOST), -1, np.int64)
    places[:16] = place_of(np.arange(40), np.full(40, 9))
    places[16] = place_of(100 + np.arange(40), np.full(40, 9))
    together = Firing(0, np.arange(17), places, np.where(places >= 0, 1.0, 0.0), np.ones(17))
    (kept,) = within_budget([together], 400)
    assert kept.counts[:16].min() >= 8
    assert kept.counts[16] >= 2
    (few,) = within_budget([together], 600)
    assert few.counts[16] > kept.counts[16]
    greedy = 40 * 10  # by worth per token alone, all would go to the sixteen
    assert kept.counts[0] * 10 < greedy


def test_short_ones_come_first() -> None:
    """Of two neurons alike in all else, the sequence that costs less is read."""
    places = np.full((2, MOST), -1, np.int64)
    places[0, 0], places[1, 0] = place_of(0, 40), place_of(1, 4)
    found = Firing(0, np.arange(2), places, np.where(places >= 0, 1.0, 0.0), np.ones(2))
    assert within_budget([found], 41)[0].counts.tolist() == [0, 1]


def test_nothing_to_choose_from() -> None:
    assert within_budget([], 1000) == []
    silent = Firing(0, np.arange(2), np.full((2, MOST), -1, np.int64), np.zeros((2, MOST)), np.zeros(2))
    assert within_budget([silent], 0)[0] is silent
