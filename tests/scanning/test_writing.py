"""The store's files: every row, in order, or none of the file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ffnmem.core.errors import FileError
from ffnmem.corpus.batches import Sequences
from ffnmem.scanning import tables as writing
from ffnmem.scanning.state import NOWHERE, SIDES, SIGNS, position_of, sequence_of
from ffnmem.scanning.tables import example_groups, write_parquet, write_tables

from ..corpus.packs import packed, tokens_of
from ..helpers import refuses
from .states import HALF, SEQUENCES, empty, settings, shards

COLUMNS = ["layer", "neuron", "kind", "rank", "activation", "sequence", "position", "token_id"]


@pytest.fixture(scope="module")
def sequences(tmp_path_factory: pytest.TempPathFactory) -> Sequences:
    """One sequence a document, of 15 tokens and BOS, as the states have it."""
    corpus = packed([15] * SEQUENCES, tmp_path_factory.mktemp("corpus") / "corpus")
    return Sequences(corpus, 16, 99)


@pytest.mark.parametrize("half", [False, True])
def test_examples_are_the_states_extremes(sequences: Sequences, half: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row lost at the edge of a group, or a value under another neuron's number."""
    monkeypatch.setattr(writing, "GROUP", 2)
    state = shards(6, 1, settings(**(HALF if half else {})), gated=True)[0]
    tables = list(example_groups(state, sequences))
    assert len(tables) == 3 + 2
    rows = pa.concat_tables(tables).to_pandas()
    assert list(rows.columns) == [*COLUMNS, "gate", "linear"]
    expected = []
    for index, layer in enumerate(state.layers):
        values, places = (layer.exact, layer.exact_at) if half else (layer.kept, layer.kept_at)
        for neuron, side in np.ndindex(values.shape[1], len(SIDES)):
            columns = (values[side, neuron], places[side, neuron], *layer.parts[side, :, neuron])
            found = [row for row in zip(*(one.tolist() for one in columns), strict=True) if row[1] != NOWHERE]
            found.sort(key=lambda row: (-SIGNS[side] * row[0] if SIGNS[side] else -abs(row[0]), row[1]))
            for rank, (value, place, *parts) in enumerate(found[: state.settings.k], 1):
                position = position_of(place)
                token = 99 if position == 0 else tokens_of(15)[position - 1]
                row = (index, neuron, SIDES[side], rank, value, sequence_of(place), position, token)
                expected.append((*row, *parts))
    assert [tuple(row) for row in rows.itertuples(index=False)] == expected


def test_empty_slots_make_no_rows(sequences: Sequences, tmp_path: Path) -> None:
    """A shard without text still has both tables, with no examples."""
    write_tables(tmp_path, empty(settings()), sequences)
    assert pq.read_table(tmp_path / "examples.parquet").num_rows == 0
    assert pq.read_table(tmp_path / "stats.parquet").num_rows == 8


def test_tables_are_the_same_bytes_again(sequences: Sequences, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        write_tables(tmp_path / name, shards(6, 1, settings())[0], sequences)
    for name in ("examples.parquet", "stats.parquet"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_one_group_of_rows_a_table(tmp_path: Path) -> None:
    """One neuron's question would read the whole file."""
    tables = (pa.table({"neuron": np.arange(n)}) for n in (3, 5, 1))
    write_parquet(tmp_path / "t.parquet", tables)
    meta = pq.ParquetFile(tmp_path / "t.parquet").metadata
    assert [meta.row_group(i).num_rows for i in range(meta.num_row_groups)] == [3, 5, 1]


def test_a_table_that_fails_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    write_parquet(path, iter([pa.table({"a": [1]})]))
    before = path.read_bytes()

    def failing() -> Iterator[pa.Table]:
        yield pa.table({"a": [1]})
        raise OSError(28, "No space left on device")

    with refuses(FileError, OSError, "cannot write", str(path), "No space left"):
        write_parquet(path, failing())
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
    with refuses(FileError, OSError, "cannot write", "none"):
        write_parquet(tmp_path / "none" / "t.parquet", iter([pa.table({"a": [1]})]))
