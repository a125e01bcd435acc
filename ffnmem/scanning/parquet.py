"""Parquet files whose row groups are sorted by layer and neuron: one neuron is read in a millisecond or two."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from ..checked_files import open_parquet, reading
from ..errors import FileError, listed


class NeuronTable:
    """A Parquet file with the columns layer and neuron, opened once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = open_parquet(path)
        self.check_columns(("layer", "neuron"))

    def check_columns(self, names: Sequence[str]) -> None:
        """Raise FileError unless all of these columns are there."""
        missing = [name for name in names if name not in self.file.schema_arrow.names]
        if missing:
            raise FileError(f"{self.path} is another table: it has no column {listed(missing)}")

    def check_rows(self, widths: Sequence[int]) -> None:
        """Raise FileError unless there are as many rows as neurons."""
        if self.file.metadata.num_rows != sum(widths):
            raise FileError(f"{self.path} has {self.file.metadata.num_rows} rows for {sum(widths)} neurons: scan again")

    @cached_property
    def bounds(self) -> np.ndarray:
        """Lowest and highest layer, lowest and highest neuron of every row group: ``[groups, 4]``."""
        schema = self.file.schema_arrow
        columns = [schema.get_field_index(name) for name in ("layer", "neuron")]
        metadata = self.file.metadata
        rows = []
        with reading(self.path):
            for group in range(metadata.num_row_groups):
                found = [metadata.row_group(group).column(column).statistics for column in columns]
                # An empty group, of a shard without text, has no bounds: none that any neuron is within.
                rows.append(
                    [bound for s in found for bound in ((1, 0) if s is None or not s.has_min_max else (s.min, s.max))]
                )
            return np.array(rows, np.int64).reshape(-1, 4)

    def rows(self, layer: int | None = None, neuron: int | None = None) -> pd.DataFrame:
        """All rows, those of a layer, or of one neuron; raises FileError."""
        return self.table(layer, neuron).to_pandas()

    def table(self, layer: int | None = None, neuron: int | None = None) -> pa.Table:
        """:meth:`rows` as Arrow has them, which is quicker where a few rows are wanted."""
        low, high, first, last = self.bounds.T
        there = np.ones(len(low), bool)
        if layer is not None:
            there &= (low <= layer) & (layer <= high)
        if neuron is not None:
            there &= (first <= neuron) & (neuron <= last)
        with reading(self.path):
            table = self.file.read_row_groups(np.flatnonzero(there).tolist(), use_threads=False)
            for name, value in (("layer", layer), ("neuron", neuron)):
                if value is not None:
                    table = table.filter(pc.equal(table[name], value))
        return table

    def one(self, layer: int, neuron: int) -> dict[str, Any]:
        """The only row of a neuron as plain values; raises FileError where there are more, or none."""
        found = self.table(layer, neuron).to_pylist()
        if len(found) != 1:
            raise FileError(f"{self.path} has {len(found)} rows of neuron {layer}.{neuron} instead of one: scan again")
        return dict(found[0])
