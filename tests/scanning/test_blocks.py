"""Neurons read many at once are those that are read one by one."""

import pandas as pd
import pytest

from ffnmem.scanning import Store
from ffnmem.scanning.blocks import blocks
from ffnmem.scanning.neuron import kinds_shown

from .gated import gated_store

TABLES = ("examples", "histogram", "by_token", "by_position", "values")
UNSHOWN = {"context", "case", "layer", "neuron", "basis", "token_id"}
"""Columns of tables that no card shows."""


@pytest.fixture(scope="module")
def gated(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return gated_store("llama", tmp_path_factory.mktemp("gated") / "store")


@pytest.mark.parametrize("size", [7, 256])
@pytest.mark.parametrize("which", ["classic", "gated"])
def test_a_block_has_what_each_neuron_has(tiny_store: Store, gated: Store, which: str, size: int) -> None:
    store = tiny_store if which == "classic" else gated
    found = list(blocks(store, 1, dict.fromkeys(kinds_shown(store)), context=5, size=size))
    assert [one.neuron for one in found] == list(range(store.d_mlp(1)))
    for neuron in (0, 6, 7, store.d_mlp(1) - 1):
        expected, one = store.neuron(1, neuron, kind=kinds_shown(store), context=5), found[neuron]
        for name in TABLES:
            plain, frame = getattr(one, name), getattr(expected, name)
            assert set(frame.columns) - set(plain) <= UNSHOWN
            for column, values in plain.items():
                assert repr(list(values)) == repr(frame[column].tolist()), (name, column)
        assert one.windows == expected.windows
        for told in ("stats", "lack", "lens", "scored_tokens", "frequent", "positions", "meanings"):
            assert repr(getattr(one, told)) == repr(getattr(expected, told)), "in text, in which NaN is like NaN"
        assert repr(one.sheet()) == repr(expected.sheet()), "the same card"


def test_fewer_of_some_kinds(tiny_store: Store) -> None:
    (first, *_) = blocks(tiny_store, 0, {"top": 2, "quantile": 1})
    expected = tiny_store.neuron(0, 0, kind="top", k=2).examples
    kinds = list(first.examples["kind"])
    top = pd.DataFrame(dict(first.examples))[: kinds.count("top")]
    pd.testing.assert_frame_equal(top, expected[list(top)])
    assert {rank for rank, kind in zip(first.examples["rank"], kinds, strict=True) if kind == "quantile"} == {1}


def test_meanings_are_looked_for_only_where_some_are_kept(tiny_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A card each would look for a file that is not there."""
    monkeypatch.setattr("ffnmem.neurons.concepts.saved_meanings", lambda *given, **options: ("found",))
    for measured, expected in ((True, ("found",)), (False, ())):
        (first, *_) = blocks(tiny_store, 0, {"top": 1}, measured=measured)
        assert first.meanings == expected
