"""Where neurons fire: as a walk over the store's own examples has it, neuron by neuron."""

from __future__ import annotations

import numpy as np
import pytest

from ffnmem.core.errors import InputError
from ffnmem.neurons.inputs import FLOOR, MOST, SAMPLED, TOP, Firing, choose_sampled, firing
from ffnmem.scanning import Store
from ffnmem.scanning.state import position_of, sequence_of

from ..helpers import refuses

NAIVE = {"positive": ("top", 0, 1.0), "negative": ("bottom", 1, -1.0)}


def naive(store: Store, layer: int, neuron: int, sign: str) -> tuple[dict[tuple[int, int], float], list[float]]:
    """The examples that must be there, and the strengths of those of which at most SAMPLED may be."""
    kind, side, factor = NAIVE[sign]
    rows = store.example_rows(layer, neuron, kind=kind)
    best = factor * rows["coefficient"].iloc[0]
    if best <= 0:
        return {}, []
    strong = rows[factor * rows["coefficient"] >= FLOOR * best][:TOP]
    top = {
        (int(row.sequence), int(row.position)): factor * float(row.coefficient)
        for row in strong.itertuples(index=False)
    }
    values = store.view(layer).sample[side, :, neuron]
    taken = {sequence for sequence, _ in top}
    sampled = [
        factor * float(value)
        for sequence, value in zip(store.state.shared["sequences"].tolist(), values.tolist(), strict=True)
        if factor * value >= FLOOR * best and sequence not in taken
    ]
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
        rest = [mine[place] for place in mine if place not in top]
        assert len(rest) == min(len(sampled), SAMPLED)
        assert set(rest) <= set(sampled)
        if rest:  # the whole range of them
            assert (max(rest), min(rest)) == (max(sampled), min(sampled))
        assert (np.diff(strengths[:n]) <= 0).all()
        assert len(set(sequences.tolist())) == n
        assert (places[n:] == -1).all()
        assert (strengths[n:] == 0).all()
        assert found.extreme[neuron] == (strengths[0] if n else 0)


def test_sampled_examples_are_what_the_store_says(meanings_store: Store) -> None:
    """Each strength is the coefficient at its own place, not at another's."""
    found = firing(meanings_store, 0)
    view = meanings_store.view(0)
    values, at = view.sample[0], view.sample_at[0]
    slots = {int(sequence): slot for slot, sequence in enumerate(meanings_store.state.shared["sequences"])}
    seen = 0
    for row, neuron in enumerate(found.neurons.tolist()):
        for place, strength in zip(found.places[row].tolist(), found.strengths[row].tolist(), strict=True):
            slot = slots.get(sequence_of(place)) if place >= 0 else None
            if slot is not None:
                seen += 1
                assert position_of(place) == at[slot, neuron]
                assert strength == pytest.approx(float(values[slot, neuron]), rel=1e-6)
    assert seen > 200


@pytest.mark.parametrize("sign", ["positive", "negative"])
def test_some_neurons_are_as_among_all(meanings_store: Store, sign: str) -> None:
    every = firing(meanings_store, 1, sign=sign)
    for asked in ([7], [30, 2, 11], []):
        few = firing(meanings_store, 1, np.array(asked, np.int64), sign)
        assert few.neurons.tolist() == asked
        np.testing.assert_array_equal(few.places, every.places[asked])
        np.testing.assert_array_equal(few.strengths, every.strengths[asked])
        np.testing.assert_array_equal(few.extreme, every.extreme[asked])


def test_a_dead_neuron_has_none(meanings_store: Store) -> None:
    dead = meanings_store.stats(0)["dead"].to_numpy()
    found = firing(meanings_store, 0)
    assert dead.any()
    assert (found.counts[dead] == 0).all()
    assert (found.extreme[dead] == 0).all()
    assert (found.counts[~dead] > 0).all()


def test_others_are_strong_untaken_and_spread() -> None:
    sizes = np.array([np.nan, 0.9, 0.2, 0.8, 0.7, 0.6])
    places = np.array([-1, 10, 11, 12, 13, 14], np.int64) << 20
    assert choose_sampled(sizes, places, np.array([12 << 20 | 5]), 0.5).tolist() == [1, 4, 5]
    many = np.linspace(1, 0.5, 200)
    chosen = choose_sampled(many, np.arange(200) << 20, np.empty(0, np.int64), 0.5)
    assert len(chosen) == SAMPLED
    assert (chosen[0], chosen[-1]) == (0, 199)
    assert np.ptp(np.diff(chosen)) <= 1


def test_without_moves_the_others_up() -> None:
    places, strengths = np.full((2, MOST), -1, np.int64), np.zeros((2, MOST))
    places[0, :4], strengths[0, :4] = [5, 6, 7, 8], [4.0, 3.0, 2.0, 1.0]
    found = Firing(0, np.array([3, 9]), places, strengths, np.array([4.0, 0.0]))
    less = found.without(np.isin(places, [5, 7]))
    assert less.places[0, :3].tolist() == [6, 8, -1]
    assert less.strengths[0, :3].tolist() == [3.0, 1.0, 0.0]
    assert less.counts.tolist() == [2, 0]
    assert less.extreme.tolist() == [4.0, 0.0]
    assert found.counts.tolist() == [4, 0]


def test_mistakes(tiny_store: Store) -> None:
    with refuses(InputError, ValueError, "sign", "'both'", "'negative'"):
        firing(tiny_store, 0, sign="both")
