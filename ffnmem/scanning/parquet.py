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
            rows.append([bound for statistics in found for bound in (statistics.min, statistics.max)])
        return np.array(rows, np.int64).reshape(-1, 4)

    def rows(self, layer: int | None = None, neuron: int | None = None) -> pd.DataFrame:
        """All rows, those of a layer, or of one neuron; raises FileError."""
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
        return table.to_pandas()
