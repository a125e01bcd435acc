"""The read–write classes: each by hand, their symmetry, their chance."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ffnmem.neurons.overlap import COSINES
from ffnmem.neurons.read_write import (
    KINDS,
    ORTHOGONAL,
    UNCLASSED,
    class_counts,
    class_table,
    derangements,
    known_classes,
    neuron_cosines,
    read_write_classes,
)

Triple = tuple[float, float, float]

# cos(k, v), cos(g, v), cos(g, k), as the paper's table has them
BY_HAND = {
    "strengthening": (0.9, 0.8, 0.7),
    "atypical strengthening": (0.6, 0.6, 0.1),
    "conditional strengthening": (0.9, 0.1, 0.2),
    "atypical conditional strengthening": (0.6, 0.2, 0.8),
    "proportional change": (0.1, 0.9, -0.2),
    "atypical proportional change": (0.3, 0.6, 0.8),
    "orthogonal output": (0.1, -0.2, 0.9),
    "weakening": (-0.9, -0.8, 0.7),
    "atypical weakening": (-0.6, 0.6, 0.1),
    "conditional weakening": (-0.9, 0.1, 0.2),
    "atypical conditional weakening": (-0.6, 0.2, -0.8),
}


def classed(*triples: Triple, along: float = 0.5, against: float = -0.5) -> list[str]:
    columns = (np.array(column) for column in zip(*triples, strict=True))
    return list(read_write_classes(dict(zip(COSINES, columns, strict=True)), along, against))


def vectors(triple: Triple) -> dict[str, torch.Tensor]:
    """A key, a value and a gate with these cosines, and lengths that must not matter."""
    io, gate_io, gate_key = triple
    along = (gate_key - io * gate_io) / np.sqrt(1 - io**2)
    gate = (gate_io, along, np.sqrt(max(1 - gate_io**2 - along**2, 0.0)))
    rows = {"value": (3.0, 0.0, 0.0), "key": (2 * io, 2 * np.sqrt(1 - io**2), 0.0), "gate": tuple(5 * x for x in gate)}
    return {side: torch.tensor([row], dtype=torch.float64) for side, row in rows.items()}


@pytest.mark.parametrize("name", BY_HAND)
def test_each_class_made_by_hand(name: str) -> None:
    """A neuron of which a side points nowhere has none."""
    sides = vectors(BY_HAND[name])
    own = neuron_cosines(sides)
    assert [float(own[cosine][0]) for cosine in COSINES] == pytest.approx(BY_HAND[name])
    assert list(read_write_classes(own)) == [name]
    for side in sides:
        nowhere = neuron_cosines({**sides, side: torch.zeros(1, 3, dtype=torch.float64)})
        assert list(read_write_classes(nowhere)) == [UNCLASSED]


def test_eleven_classes_and_no_other() -> None:
    """Every combination of levels is in one of them, and each is reached; the threshold itself is not beyond it."""
    levels = (-0.9, 0.0, 0.9)
    found = classed(*product(levels, levels, levels))
    assert set(found) == set(KINDS.values()) == set(BY_HAND) == set(known_classes(gated=True))
    assert classed((0.5, -0.5, 0.9), (-0.5, 0.5, 0.9)) == [ORTHOGONAL] * 2
    assert classed((0.6, 0.0, 0.0), along=0.7) == [ORTHOGONAL]
    expected = ["strengthening", ORTHOGONAL, ORTHOGONAL, ORTHOGONAL, "weakening", UNCLASSED]
    assert list(read_write_classes({"io": np.array([0.6, 0.5, 0.0, -0.5, -0.6, np.nan])})) == expected
    assert known_classes(gated=False) == ["strengthening", ORTHOGONAL, "weakening"]


@given(
    st.lists(st.tuples(*[st.floats(-1, 1)] * 3), min_size=1, max_size=20),
    st.floats(0.05, 0.95),
    st.floats(-0.95, -0.05),
)
def test_how_a_neuron_is_written_does_not_matter(triples: list[Triple], along: float, against: float) -> None:
    """Key and value turned round together: the cosines of the gate change sign, that of key and value does not."""
    turned = [(io, -gate_io, -gate_key) for io, gate_io, gate_key in triples]
    found = classed(*triples, along=along, against=against)
    assert found == classed(*turned, along=along, against=against)
    assert UNCLASSED not in found


@given(n=st.integers(1, 40), count=st.integers(0, 12), seed=st.integers(0, 99))
def test_derangements(n: int, count: int, seed: int) -> None:
    """A neuron paired with itself would bring the truth into its null."""
    found = derangements(n, count, [seed])
    assert found.shape == (min(count, n - 1), n)
    assert all(sorted(permutation) == list(range(n)) for permutation in found)
    assert all(len({*column, neuron}) == len(found) + 1 for neuron, column in enumerate(found.T))


def test_chance_takes_neurons_apart() -> None:
    """Neurons that strengthen, each along an axis of its own: of different neurons nothing is left of it. Neurons that
    all share one direction: all of it is. Of too few there is no chance to tell."""
    for rows, expected in ((torch.eye(20), 0.0), (torch.ones(20, 4), 1.0), (torch.eye(2), np.nan)):
        sides = {side: rows.double() for side in ("key", "value", "gate")}
        own = read_write_classes(neuron_cosines(sides))
        counts = class_counts(own, sides, 0.5, -0.5, [0])
        assert counts["read_write"].tolist() == list(KINDS.values())
        np.testing.assert_equal(counts.iloc[0].tolist(), ["strengthening", len(rows), 1.0, expected])
        assert counts["neurons"].sum() == len(rows)
        shown = class_table(counts.assign(layer=0), 0.5, -0.5).caption
        assert ("of different neurons 100.0%" in shown, "different neurons" in shown) == (expected == 1, expected >= 0)
