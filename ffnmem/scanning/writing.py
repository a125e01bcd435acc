"""A finished state becomes tables for queries."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from einops import rearrange

from ..corpus import Sequences
from ..files import replacing
from .cases import CASES, PARTS
from .state import NOWHERE, LayerState, ScanState, position_of, sequence_of
from .statistics import final_extremes, final_parts, layer_stats

STATE = "state.safetensors"
EXAMPLES, STATS, VALUES, TOKENIZER = "examples.parquet", "stats.parquet", "values.parquet", "tokenizer.json"
CORPUS = "corpus"
SHARDS = "shards"  # of workers, while they run
GROUP = 256  # neurons a Parquet row group: reading one neuron reads one group
ROWS = ("kind", "rank", "activation", "sequence", "position", "token_id")  # of examples, besides layer and neuron
KINDS = {"top": "high", "bottom": "low"}


def write_tables(folder: Path, state: ScanState, sequences: Sequences) -> None:
    """Write ``stats.parquet`` and ``examples.parquet`` (top and bottom; of gated neurons each sign case too), layer by
    layer. Raises FileError."""
    groups = (pa.Table.from_pandas(layer_stats(state, i), preserve_index=False) for i in range(len(state.layers)))
    write_parquet(folder / STATS, groups)
    write_parquet(folder / EXAMPLES, example_groups(state, sequences))


def kinds_of(layer: LayerState) -> dict[str, str]:
    """The kinds of examples of a layer's neurons, and the list that each is of."""
    return KINDS if layer.gate is None else KINDS | {case: case for case in CASES}


def example_groups(state: ScanState, sequences: Sequences) -> Iterator[pa.Table]:
    """Rows of examples for GROUP neurons at a time, ordered by neuron, kind and rank; no rows for empty slots."""
    k = state.settings.k
    for index, layer in enumerate(state.layers):
        kinds = kinds_of(layer)
        found = {kind: final_extremes(layer, side, k) for kind, side in kinds.items()}
        parts = None if layer.gate is None else np.stack([final_parts(layer, side, k) for side in kinds.values()])
        width = len(layer.high)
        for first in range(0, width, GROUP):
            last = min(first + GROUP, width)
            value = np.stack([v[first:last] for v, _ in found.values()], axis=1)
            place = np.stack([at[first:last] for _, at in found.values()], axis=1)
            neuron, kind, rank = (np.asarray(i) for i in np.indices(value.shape))
            there = place != NOWHERE
            places = place[there]
            columns = {
                "layer": np.full(len(places), index, np.int32),
                "neuron": (neuron[there] + first).astype(np.int32),
                "kind": pa.DictionaryArray.from_arrays(kind[there].astype(np.int8), list(kinds)),
                "rank": (rank[there] + 1).astype(np.int32),
                "activation": value[there].astype(np.float32),
                "sequence": sequence_of(places),
                "position": position_of(places).astype(np.int32),
                "token_id": sequences.tokens_at(sequence_of(places), position_of(places)).astype(np.int32),
            }
            if parts is not None:
                of_group = rearrange(parts[:, :, first:last], "kind part neuron k -> part neuron kind k")
                columns |= {name: part[there] for name, part in zip(PARTS, of_group, strict=True)}
            yield pa.table(columns)


def write_parquet(path: Path, tables: Iterator[pa.Table]) -> None:
    """Tables as row groups of one file, which appears whole or not at all. Raises FileError."""
    with replacing(path) as temporary:
        first = next(tables)
        with pq.ParquetWriter(temporary, first.schema, compression="zstd", write_statistics=True) as writer:
            writer.write_table(first, row_group_size=max(1, len(first)))
            for table in tables:
                writer.write_table(table, row_group_size=max(1, len(table)))
