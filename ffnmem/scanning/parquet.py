"""Parquet files whose row groups are sorted by layer and neuron: one neuron is read in a millisecond or two."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..errors import FileError


class NeuronTable:
    """A Parquet file with the columns layer and neuron, opened once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.file = pq.ParquetFile(path)
        except (OSError, pa.ArrowException) as error:
            raise FileError(f"{path} cannot be read: {error}") from None

    @cached_property
    def bounds(self) -> np.ndarray:
        """Lowest and highest layer, lowest and highest neuron of every row group: ``[groups, 4]``."""
        schema = self.file.schema_arrow
        columns = [schema.get_field_index(name) for name in ("layer", "neuron")]
        metadata = self.file.metadata
        rows = []
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
        try:
            table = self.file.read_row_groups(np.flatnonzero(there).tolist(), use_threads=False)
        except (OSError, pa.ArrowException) as error:
            raise FileError(f"{self.path} cannot be read: {error}") from None
        for name, value in (("layer", layer), ("neuron", neuron)):
            if value is not None:
                table = table.filter(pc.equal(table[name], value))
        return table
