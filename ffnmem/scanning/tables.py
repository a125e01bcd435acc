"""The tables of a store: a neuron's examples, written sorted by neuron, and read a neuron at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from einops import rearrange
from jaxtyping import Float32, Int64

from ..core.checked_files import open_parquet, reading
from ..core.errors import InputError
from ..core.files import replacing
from ..corpus.batches import Sequences
from .state import NOWHERE, PARTS, SIDES, LayerState, ScanState, case_names, position_of, sequence_of
from .state_file import StateFile
from .statistics import final_lists, layer_stats

# Parquet files whose row groups are sorted by layer and neuron: one neuron is read in a millisecond or two.


class NeuronTable:
    """A Parquet file with the columns layer and neuron, opened once; ``again``: what to do about a damaged one."""

    def __init__(self, path: Path, again: str = "scan again") -> None:
        self.path, self.again = path, again
        self.file = open_parquet(path, again=again)

    @cached_property
    def bounds(self) -> np.ndarray:
        """Lowest and highest layer, lowest and highest neuron of every row group: ``[groups, 4]``."""
        metadata, rows = self.file.metadata, []
        with reading(self.path, self.again):
            columns = [self.file.schema_arrow.names.index(name) for name in ("layer", "neuron")]
            for group in range(metadata.num_row_groups):
                found = [metadata.row_group(group).column(column).statistics for column in columns]
                # An empty group, of a shard without text, has no bounds: none that any neuron is within.
                rows.append(
                    [bound for s in found for bound in ((1, 0) if s is None or not s.has_min_max else (s.min, s.max))]
                )
            return np.array(rows, np.int64).reshape(-1, 4)

    def table(self, layer: int | None = None, neuron: int | None = None) -> pa.Table:
        """All rows, those of a layer, or of one neuron; raises FileError."""
        low, high, first, last = self.bounds.T
        there = np.ones(len(low), bool)
        if layer is not None:
            there &= (low <= layer) & (layer <= high)
        if neuron is not None:
            there &= (first <= neuron) & (neuron <= last)
        with reading(self.path, self.again):
            table = self.file.read_row_groups(np.flatnonzero(there).tolist(), use_threads=False)
            for name, value in (("layer", layer), ("neuron", neuron)):
                if value is not None:
                    table = table.filter(pc.equal(table[name], value))
        return table

    def block(self, layer: int, first: int, last: int) -> tuple[pa.Table, np.ndarray]:
        """The rows of a layer's neurons from ``first`` up to ``last``, and where those of each begin, and end. Raises
        FileError."""
        low, high, start, end = self.bounds.T
        there = (low <= layer) & (layer <= high) & (start < last) & (first <= end)
        with reading(self.path, self.again):
            table = self.file.read_row_groups(np.flatnonzero(there).tolist(), use_threads=False)
            numbers = table["neuron"].to_numpy()
            inside = (table["layer"].to_numpy() == layer) & (first <= numbers) & (numbers < last)
            table, numbers = table.filter(pa.array(inside)), numbers[inside]
        return table, np.searchsorted(numbers, np.arange(first, last + 1))


def plain_rows(table: pa.Table) -> list[dict[str, Any]]:
    """Rows of numbers; a missing one, such as the mean of a case that never occurs, is NaN."""
    return [{name: np.nan if value is None else value for name, value in row.items()} for row in table.to_pylist()]


# A neuron's examples as one table: extremes from the store's rows, bands and random positions from the sample.
#
# Gated neurons have extremes of each sign case too, and the gate, the linear part and the case beside every example.

BANDS = (0.0, 0.25, 0.5, 0.75, 0.9, 1.0)
PER_BAND = 3
RANDOM = 10
COLUMNS = (
    "layer",
    "neuron",
    "kind",
    "rank",
    "coefficient",
    "sequence",
    "position",
    "extreme",
    "band_low",
    "band_high",
)


def check_bands(bands: Sequence[float]) -> tuple[float, ...]:
    """Quantiles that ascend from 0 to 1; raises InputError."""
    found = tuple(float(band) for band in bands)
    if len(found) < 2 or found[0] != 0 or found[-1] != 1 or not all(a < b for a, b in pairwise(found)):
        raise InputError(f"bands must ascend from 0 to 1, such as {BANDS}, not {found}")
    return found


def example_rows(
    state: StateFile,
    layer: LayerState,
    index: tuple[int, int],
    extremes: Mapping[str, Sequence[Any]],
    most: Mapping[str, int | None],
    bands: Sequence[float] = BANDS,
) -> list[tuple[Any, ...]]:
    """Examples of the kinds asked for, in that order, with :data:`COLUMNS`; of gated neurons gate and linear part
    besides.

    Args:
        state, layer: of the store. index: of the neuron.
        extremes: the stored rows, by column.
        most: kinds, and how many of each, or of a band, at most; None for the default.
        bands: see :meth:`Store.examples`.
    """
    limits, neuron, shared = check_bands(bands), index[1], state.shared
    rows: list[tuple[Any, ...]] = []
    for kind, k in most.items():
        if kind == "quantile":
            for side, extreme in enumerate(("max", "min")):
                values, at, parts = layer.sample[side], layer.sample_at[side], layer.sample_parts[side]
                strength = values[:, neuron] if side == 0 else -values[:, neuron]
                for rank, slot, low, high in choose_by_band(strength, limits, k or PER_BAND):
                    place = int(shared["sequences"][slot]), int(at[slot, neuron])
                    numbers = rank, float(values[slot, neuron]), *place, extreme, low, high
                    rows.append((*index, kind, *numbers, *parts[:, slot, neuron].tolist()))
        elif kind == "random":
            for rank, slot in enumerate(spread(np.flatnonzero(shared["draw_positions"] >= 0), k or RANDOM), 1):
                place = int(shared["draws"][slot]), int(shared["draw_positions"][slot])
                numbers = rank, float(layer.draw[slot, neuron]), *place, "", np.nan, np.nan
                rows.append((*index, kind, *numbers, *layer.draw_parts[:, slot, neuron].tolist()))
        else:
            names = ("kind", "rank", "activation", "sequence", "position", *(PARTS if layer.gated else ()))
            for its, rank, *row in zip(*(extremes[name] for name in names), strict=True):
                if its == kind and rank <= (k or state.settings.k):
                    rows.append((*index, kind, rank, *row[:3], "", np.nan, np.nan, *row[3:]))
    return rows


def example_frame(rows: Sequence[tuple[Any, ...]], gated: bool) -> pd.DataFrame:
    """Rows of examples as a table."""
    frame = pd.DataFrame(rows, columns=[*COLUMNS, *(PARTS if gated else ())])
    frame = frame.astype(
        dict.fromkeys(("layer", "neuron", "rank", "sequence", "position"), np.int64)
        | dict.fromkeys(("coefficient", "band_low", "band_high", *(PARTS if gated else ())), np.float64)
    )
    if gated:
        names = case_names(frame["gate"].to_numpy(), frame["linear"].to_numpy())
        frame["case"] = pd.Series(names, frame.index, str)
    return frame


def choose_by_band(
    strength: Float32[np.ndarray, " sample"], bands: Sequence[float], k: int
) -> Iterator[tuple[int, int, float, float]]:
    """For each band, at most k of the random sequences whose strength lies in it, spread evenly, best first: rank,
    index, and the band. NaN is of those not seen.

    The minimum's bands begin at its lowest values, as the maximum's end at its highest: the last band is the strongest.
    """
    seen = np.flatnonzero(~np.isnan(strength))
    order = seen[np.argsort(strength[seen], kind="stable")]
    for low, high in reversed(list(pairwise(bands))):
        inside = order[int(np.ceil(low * len(order))) : int(np.ceil(high * len(order)))]
        for rank, slot in enumerate(spread(inside, k)[::-1].tolist(), 1):
            yield rank, slot, low, high


def spread(items: Int64[np.ndarray, " n"], k: int) -> Int64[np.ndarray, " m"]:
    """At most k of some items, evenly spaced: the first and the last among them, or the middle one alone."""
    return items[places_spread(len(items), k)]


@lru_cache(maxsize=256)  # the bands of all neurons have the same few lengths
def places_spread(count: int, k: int) -> Int64[np.ndarray, " m"]:
    """The indices of :func:`spread`."""
    if k == 1:
        return np.arange(count // 2, min(count // 2 + 1, count))
    return np.unique(np.linspace(0, count - 1, min(k, count)).round().astype(int))


# A finished state becomes tables for queries.

STATE = "state.safetensors"
EXAMPLES, STATS, VALUES, TOKENIZER = "examples.parquet", "stats.parquet", "values.parquet", "tokenizer.json"
CORPUS = "corpus"
SHARDS = "shards"  # of workers, while they run
GROUP = 256  # neurons a Parquet row group: reading one neuron reads one group
ROWS = ("kind", "rank", "activation", "sequence", "position", "token_id")  # of examples, besides layer and neuron


def write_tables(folder: Path, state: ScanState, sequences: Sequences) -> None:
    """Write ``stats.parquet`` and ``examples.parquet`` (top and bottom; of gated neurons each sign case too), layer by
    layer. Raises FileError."""
    groups = (pa.Table.from_pandas(layer_stats(state, i), preserve_index=False) for i in range(len(state.layers)))
    write_parquet(folder / STATS, groups)
    write_parquet(folder / EXAMPLES, example_groups(state, sequences))


def example_groups(state: ScanState, sequences: Sequences) -> Iterator[pa.Table]:
    """Rows of examples for GROUP neurons at a time, ordered by neuron, kind and rank; no rows for empty slots."""
    for index, layer in enumerate(state.layers):
        value, at, parts = final_lists(layer, state.settings.k)
        for first in range(0, value.shape[1], GROUP):
            group = slice(first, first + GROUP)
            place = rearrange(at[:, group], "side neuron k -> neuron side k")
            there = place != NOWHERE
            neuron, side, rank = np.nonzero(there)
            places = place[there]
            columns = {
                "layer": np.full(len(places), index, np.int32),
                "neuron": (neuron + first).astype(np.int32),
                "kind": pa.DictionaryArray.from_arrays(side.astype(np.int8), list(SIDES[: len(value)])),
                "rank": (rank + 1).astype(np.int32),
                "activation": rearrange(value[:, group], "side neuron k -> neuron side k")[there],
                "sequence": sequence_of(places),
                "position": position_of(places).astype(np.int32),
                "token_id": sequences.tokens_at(sequence_of(places), position_of(places)).astype(np.int32),
            }
            of_group = rearrange(parts[:, :, group], "side part neuron k -> part neuron side k")
            columns |= {name: part[there] for name, part in zip(PARTS, of_group, strict=False)}
            yield pa.table(columns)


CODED = ("layer", "neuron", "kind", "rank", "position")  # columns of few values, which dictionaries make small


def write_parquet(path: Path, tables: Iterator[pa.Table]) -> None:
    """Tables as row groups of one file, which appears whole or not at all. Raises FileError."""
    with replacing(path) as temporary:
        first = next(tables)
        names = first.schema.names
        # Numbers that hardly repeat would only be looked up in vain; and only a neuron's row group is searched for.
        options = {
            "use_dictionary": [name for name in CODED if name in names],
            "write_statistics": [name for name in ("layer", "neuron") if name in names],
        }
        with pq.ParquetWriter(temporary, first.schema, compression="zstd", **options) as writer:
            writer.write_table(first, row_group_size=max(1, len(first)))
            for table in tables:
                writer.write_table(table, row_group_size=max(1, len(table)))
