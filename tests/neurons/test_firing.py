"""Where neurons fire: as a walk over the store's own examples has it, neuron by neuron."""

from __future__ import annotations

import numpy as np
import pytest

from ffnmem.neurons.inputs import FLOOR, MOST, SAMPLED, TOP, choose_sampled, firing
from ffnmem.scanning import Store
from ffnmem.scanning.state import position_of, sequence_of

NAIVE = {"positive": ("top", 0, 1.0), "negative": ("bottom", 1, -1.0)}


def naive(store: Store, layer: int, neuron: int, sign: str) -> tuple[dict[tuple[int, int], float], ...]:
    """The examples that must be there, and those of which at most SAMPLED may be, with their strengths."""
    kind, side, factor = NAIVE[sign]
    rows = store.example_rows(layer, neuron, kind=kind)
    best = factor * rows["coefficient"].iloc[0]
    if best <= 0:
        return {}, {}
    strong = rows[factor * rows["coefficient"] >= FLOOR * best][:TOP]
    top = {
        (int(row.sequence), int(row.position)): factor * float(row.coefficient)
        for row in strong.itertuples(index=False)
    }
    view, taken = store.view(layer), {sequence for sequence, _ in top}
    values, places = view.sample[side, :, neuron].tolist(), view.sample_at[side, :, neuron].tolist()
    sampled = {
        (sequence, place): factor * value
        for sequence, place, value in zip(store.state.shared["sequences"].tolist(), places, values, strict=True)
        if factor * value >= FLOOR * best and sequence not in taken
    }
    return top, sampled


@pytest.mark.parametrize("sign", ["positive", "negative"])
@pytest.mark.parametrize("which", ["tiny_store", "meanings_store"])
def test_is_the_naive_walk(sign: str, which: str, request: pytest.FixtureRequest) -> None:
    store: Store = request.getfixturevalue(which)
    found = firing(store, 1, sign=sign)
    assert found.places.shape == found.strengths.shape == (store.d_mlp(1), MOST)
    for neuron in range(0, store.d_mlp(1), 3):
        top, sampled = naive(store, 1, neuron, sign)
        n = int(found.counts[neuron])
        places, strengths = found.places[neuron], found.strengths[neuron]
        sequences, positions = sequence_of(places[:n]), position_of(places[:n])
        mine = dict(zip(zip(sequences.tolist(), positions.tolist(), strict=True), strengths[:n].tolist(), strict=True))
        assert top.items() <= mine.items()
        rest = {place: strength for place, strength in mine.items() if place not in top}
        assert rest.items() <= sampled.items()
        assert len(rest) == min(len(sampled), SAMPLED)
        if rest:  # the whole range of them
            assert (max(rest.values()), min(rest.values())) == (max(sampled.values()), min(sampled.values()))
        assert (np.diff(strengths[:n]) <= 0).all()
        assert len(set(sequences.tolist())) == n
        assert (places[n:] == -1).all()
        assert (strengths[n:] == 0).all()
        assert found.extreme[neuron] == (strengths[0] if n else 0)


@pytest.mark.parametrize("sign", ["positive", "negative"])
def test_some_neurons_are_as_among_all(meanings_store: Store, sign: str) -> None:
    every = firing(meanings_store, 1, sign=sign)
    for asked in ([7], [30, 2, 11], []):
        few = firing(meanings_store, 1, np.array(asked, np.int64), sign)
        assert few.neurons.tolist() == asked
        np.testing.assert_array_equal(few.places, every.places[asked])
        np.testing.assert_array_equal(few.strengths, every.strengths[asked])
        np.testing.assert_array_equal(few.extreme, every.extreme[asked])


def test_others_are_strong_untaken_and_spread() -> None:
    sizes = np.array([np.nan, 0.9, 0.2, 0.8, 0.7, 0.6])
    places = np.array([-1, 10, 11, 12, 13, 14], np.int64) << 20
    assert choose_sampled(sizes, places, np.array([12 << 20 | 5]), 0.5).tolist() == [1, 4, 5]
    many = np.linspace(1, 0.5, 200)
    chosen = choose_sampled(many, np.arange(200) << 20, np.empty(0, np.int64), 0.5)
    assert len(chosen) == SAMPLED
    assert (chosen[0], chosen[-1]) == (0, 199)
    assert np.ptp(np.diff(chosen)) <= 1
