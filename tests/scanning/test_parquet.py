"""Row groups by layer and neuron: what is read equals filtering the whole file, and only what is needed is read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from ffnmem.core.errors import FileError
from ffnmem.scanning.tables import NeuronTable, write_parquet

from ..helpers import refuses


@pytest.fixture
def table(tmp_path: Path) -> tuple[NeuronTable, pd.DataFrame]:
    groups = [
        pd.DataFrame({"layer": layer, "neuron": np.repeat(np.arange(first, first + 4), 3), "value": np.arange(12.0)})
        for layer in range(3)
        for first in (0, 4)
    ]
    write_parquet(tmp_path / "table.parquet", (pa.Table.from_pandas(g, preserve_index=False) for g in groups))
    return NeuronTable(tmp_path / "table.parquet"), pd.concat(groups, ignore_index=True)


def test_that_rows_are_those_of_the_whole_file(table: tuple[NeuronTable, pd.DataFrame]) -> None:
    found, whole = table
    pd.testing.assert_frame_equal(found.table().to_pandas(), whole)
    for layer in range(3):
        expected = whole[whole["layer"] == layer].reset_index(drop=True)
        pd.testing.assert_frame_equal(found.table(layer).to_pandas(), expected)
        for neuron in range(8):
            expected = whole[(whole["layer"] == layer) & (whole["neuron"] == neuron)].reset_index(drop=True)
            pd.testing.assert_frame_equal(found.table(layer, neuron).to_pandas(), expected)
    assert not len(found.table(7))


def test_that_a_broken_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 and nothing")
    with refuses(FileError, OSError, "broken.parquet"):
        NeuronTable(tmp_path / "broken.parquet")
    with refuses(FileError, OSError, "none.parquet"):
        NeuronTable(tmp_path / "none.parquet")
