"""The read–write classes: each by hand, their symmetry, their chance."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import ffnmem as fm
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

from .gated import GATED, made

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


def classed(*triples: tuple[float, float, float], along: float = 0.5, against: float = -0.5) -> list[str]:
    columns = (np.array(column) for column in zip(*triples, strict=True))
    return list(read_write_classes(dict(zip(COSINES, columns, strict=True)), along, against))


def vectors(triple: tuple[float, float, float]) -> dict[str, torch.Tensor]:
    """A key, a value and a gate with these cosines, and lengths that must not matter."""
    io, gate_io, gate_key = triple
    along = (gate_key - io * gate_io) / np.sqrt(1 - io**2)
    gate = (gate_io, along, np.sqrt(max(1 - gate_io**2 - along**2, 0.0)))
    rows = {"value": (3.0, 0.0, 0.0), "key": (2 * io, 2 * np.sqrt(1 - io**2), 0.0), "gate": tuple(5 * x for x in gate)}
    return {side: torch.tensor([row], dtype=torch.float64) for side, row in rows.items()}


@pytest.mark.parametrize("name", BY_HAND)
def test_each_class_made_by_hand(name: str) -> None:
    own = neuron_cosines(vectors(BY_HAND[name]))
    assert [float(own[cosine][0]) for cosine in COSINES] == pytest.approx(BY_HAND[name])
    assert list(read_write_classes(own)) == [name]


def test_eleven_classes_and_no_other() -> None:
    """Every combination of levels is in one of them, and each is reached."""
    levels = (-0.9, 0.0, 0.9)
    found = classed(*product(levels, levels, levels))
    assert set(found) == set(KINDS.values()) == set(BY_HAND) == set(known_classes(gated=True))
    assert len(KINDS) == 11


@given(
    st.lists(st.tuples(*[st.floats(-1, 1)] * 3), min_size=1, max_size=20),
    st.floats(0.05, 0.95),
    st.floats(-0.95, -0.05),
)
def test_how_a_neuron_is_written_does_not_matter(
    triples: list[tuple[float, float, float]], along: float, against: float
) -> None:
    """Key and value turned round together: the cosines of the gate change sign, that of key and value does not."""
    turned = [(io, -gate_io, -gate_key) for io, gate_io, gate_key in triples]
    found = classed(*triples, along=along, against=against)
    assert found == classed(*turned, along=along, against=against)
    assert UNCLASSED not in found


def test_the_threshold_itself_is_not_beyond_it() -> None:
    assert classed((0.5, -0.5, 0.9), (-0.5, 0.5, 0.9)) == [ORTHOGONAL] * 2
    assert classed((0.6, 0.0, 0.0), along=0.7) == [ORTHOGONAL]


def test_without_a_gate_there_are_three() -> None:
    io = np.array([0.6, 0.5, 0.0, -0.5, -0.6, np.nan])
    assert list(read_write_classes({"io": io})) == [
        "strengthening", ORTHOGONAL, ORTHOGONAL, ORTHOGONAL, "weakening", UNCLASSED,
    ]  # fmt: skip
    assert known_classes(gated=False) == ["strengthening", ORTHOGONAL, "weakening"]


def test_a_neuron_that_points_nowhere_has_none() -> None:
    sides = vectors(BY_HAND["strengthening"])
    for side in sides:
        own = neuron_cosines({**sides, side: torch.zeros(1, 3, dtype=torch.float64)})
        assert list(read_write_classes(own)) == [UNCLASSED]


@given(n=st.integers(1, 40), count=st.integers(0, 12), seed=st.integers(0, 99))
def test_derangements(n: int, count: int, seed: int) -> None:
    """A neuron paired with itself would bring the truth into its null."""
    found = derangements(n, count, [seed])
    assert found.shape == (min(count, n - 1), n)
    for place, permutation in enumerate(found):
        assert sorted(permutation) == list(range(n))
        assert not (permutation == np.arange(n)).any()
        for other in found[:place]:
            assert not (permutation == other).any()


def test_chance_takes_neurons_apart() -> None:
    """Neurons that strengthen, each along an axis of its own: of different neurons nothing is left of it. Neurons that
    all share one direction: all of it is."""
    axes = torch.eye(20, dtype=torch.float64)
    for rows, expected in ((axes, 0.0), (torch.ones(20, 4, dtype=torch.float64), 1.0)):
        sides = {"key": rows, "value": rows, "gate": rows}
        own = read_write_classes(neuron_cosines(sides))
        counts = class_counts(own, sides, 0.5, -0.5, [0]).set_index("read_write")
        assert counts.index.tolist() == list(KINDS.values())
        assert counts.loc["strengthening"].tolist() == [20, 1.0, expected]
        assert counts["neurons"].sum() == 20
        assert counts["chance"].sum() == 1.0


def test_too_few_neurons_for_chance() -> None:
    sides = {side: torch.eye(2, dtype=torch.float64) for side in ("key", "value", "gate")}
    counts = class_counts(read_write_classes(neuron_cosines(sides)), sides, 0.5, -0.5, [0])
    assert counts["chance"].isna().all()
    table = class_table(counts.assign(layer=0), 0.5, -0.5)
    assert "different neurons" not in table.caption


@pytest.mark.parametrize("kind", ["gpt2", *GATED])
def test_geometry_and_roles_have_the_same(kind: str, tokenizer: Any) -> None:
    """Counts by layer of the neurons' own classes; the gains of norms folded in, in both."""
    model = made(kind, tokenizer)
    with torch.no_grad():
        for block in model.layout.blocks:
            block.norm.weight.mul_(torch.linspace(0.2, 3.0, 16))
    found, roles = fm.neurons.geometry(model, threshold=None), fm.roles(model, io=0.3)
    loose = fm.neurons.geometry(model, threshold=None, strengthening=0.3, weakening=-0.3)
    assert loose.neurons["read_write"].tolist() == roles["read_write"].tolist()
    more, fewer = ((table.neurons["read_write"] != ORTHOGONAL).sum() for table in (loose, found))
    assert more > fewer > 0
    for geometry in (found, loose):
        counts = geometry.neurons.groupby("layer")["read_write"].value_counts()
        for row in geometry.classes.itertuples():
            assert row.neurons == counts.get((row.layer, row.read_write), 0)
            assert row.share == row.neurons / 64
        assert (geometry.classes.groupby("layer")["neurons"].sum() == 64).all()
        assert geometry.classes["read_write"].unique().tolist() == known_classes(model.gated)
    [table] = [block for block in loose.sheet().blocks if getattr(block, "title", "").startswith("read–write")]
    names = [column.name for column in table.columns]
    assert [line[0] for line in table.rows] == ["0", "1", "all"]
    wide = loose.classes.pivot(index="layer", columns="read_write", values="neurons")
    for layer, line in zip([0, 1], table.rows, strict=False):
        for name, at in (("strengthening", 1), ("weakening", names.index("weakening"))):
            assert (line[at] or 0) == wide.loc[layer, name]
        assert sum(number or 0 for number in line[1:]) == 64
    if model.gated:
        assert names[1:] == [
            "strengthening", "if gated", "by gate", "neither", "if gated", "weakening", "atypical"
        ]  # fmt: skip
        assert table.rows[2][2] == wide["conditional strengthening"].sum()
        assert table.rows[2][5] == wide["conditional weakening"].sum()
        assert table.rows[2][7] == wide.filter(like="atypical").to_numpy().sum()
        rare = wide.filter(like="atypical").sum()
        assert table.rows[2][3:5] == (wide["proportional change"].sum(), wide[ORTHOGONAL].sum())
        assert all(f"{n:,} {name.removeprefix('atypical ')}" in table.caption for name, n in rare.items() if n)
    else:
        assert names[1:] == ["strengthening", "neither", "weakening"]
    assert "of different neurons" in table.caption
