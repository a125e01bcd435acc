"""Neurons read many at once are those that are read one by one."""

from pathlib import Path

import pandas as pd
import pytest

from ffnmem.core.errors import FileError
from ffnmem.scanning import Store
from ffnmem.scanning.blocks import blocks
from ffnmem.scanning.neuron import kinds_shown
from ffnmem.scanning.tables import NeuronTable

from .gated import gated_store

TABLES = ("examples", "histogram", "by_token", "by_position", "values")


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
            pd.testing.assert_frame_equal(getattr(one, name), getattr(expected, name))
        assert one.windows == expected.windows
        assert repr(one.stats) == repr(expected.stats), "in text, in which NaN is like NaN"
        assert one.scores("promoted") == expected.scores("promoted")
        assert one.lack == expected.lack


def test_fewer_of_some_kinds(tiny_store: Store) -> None:
    (first, *_) = blocks(tiny_store, 0, {"top": 2, "quantile": 1})
    expected = tiny_store.neuron(0, 0, kind="top", k=2).examples
    pd.testing.assert_frame_equal(first.examples[first.examples["kind"] == "top"], expected)
    assert set(first.examples["rank"][first.examples["kind"] == "quantile"]) == {1}


def test_a_table_in_another_order_is_refused(tiny_store: Store, tmp_path: Path) -> None:
    """Its rows would be told of other neurons."""
    rows = tiny_store.stats().iloc[::-1]
    rows.to_parquet(tmp_path / "a.parquet", index=False)
    with pytest.raises(FileError, match="order of the neurons"):
        NeuronTable(tmp_path / "a.parquet").block(0, 0, 9)
