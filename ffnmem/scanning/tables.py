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
from ..core.errors import FileError, InputError, listed
from ..core.files import replacing
from ..core.types import CASES, EXAMPLE_KINDS
from ..corpus.batches import Sequences
from .settings import ScanSettings
from .state import NOWHERE, PARTS, LayerState, ScanState, position_of, sequence_of, with_parts
from .state_file import StateFile
from .statistics import bucket_name, final_extremes, final_parts, layer_stats, means

# Parquet files whose row groups are sorted by layer and neuron: one neuron is read in a millisecond or two.


class NeuronTable:
    """A Parquet file with the columns layer and neuron, opened once; ``again``: what to do about a damaged one."""

    def __init__(self, path: Path, again: str = "scan again") -> None:
        self.path, self.again = path, again
        self.file = open_parquet(path, again=again)
        self.check_columns(("layer", "neuron"))

    def check_columns(self, names: Sequence[str]) -> None:
        """Raise FileError unless all of these columns are there."""
        missing = [name for name in names if name not in self.file.schema_arrow.names]
        if missing:
            raise FileError(f"{self.path} is another table: it has no column {listed(missing)}")

    def check_rows(self, widths: Sequence[int]) -> None:
        """Raise FileError unless there are as many rows as neurons."""
        if self.file.metadata.num_rows != sum(widths):
            raise FileError(
                f"{self.path} has {self.file.metadata.num_rows} rows for {sum(widths)} neurons: {self.again}"
            )

    @cached_property
    def bounds(self) -> np.ndarray:
        """Lowest and highest layer, lowest and highest neuron of every row group: ``[groups, 4]``."""
        schema = self.file.schema_arrow
        columns = [schema.get_field_index(name) for name in ("layer", "neuron")]
        metadata = self.file.metadata
        rows = []
        with reading(self.path, self.again):
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
        if (np.diff(numbers) < 0).any():
            raise FileError(f"{self.path} is not in the order of the neurons: {self.again}")
        return table, np.searchsorted(numbers, np.arange(first, last + 1))

    def one(self, layer: int, neuron: int) -> dict[str, Any]:
        """The only row of a neuron as plain values; raises FileError where there are more, or none."""
        found = plain_rows(self.table(layer, neuron))
        if len(found) != 1:
            raise FileError(
                f"{self.path} has {len(found)} rows of neuron {layer}.{neuron} instead of one: {self.again}"
            )
        return found[0]


def plain_rows(table: pa.Table) -> list[dict[str, Any]]:
    """Rows of numbers; a missing one, such as the mean of a case that never occurs, is NaN."""
    return [{name: np.nan if value is None else value for name, value in row.items()} for row in table.to_pylist()]


# One layer of a stored state, array by array when asked.

Arrays = dict[str, np.ndarray]
"""The columns of a table of several neurons, the rows of each below those before it."""


class LayerView:
    """The arrays of one layer that answer questions about single neurons."""

    def __init__(self, file: StateFile, layer: int) -> None:
        self.file, self.layer = file, layer

    def read(self, name: str) -> np.ndarray:
        return self.file.array(f"{self.layer}.{name}")

    @cached_property
    def histogram(self) -> np.ndarray:
        return self.read("histogram")

    @cached_property
    def token_counts(self) -> np.ndarray:
        return self.file.array("token_counts")

    @cached_property
    def token_sums(self) -> np.ndarray:
        return self.read("token_sums")

    @cached_property
    def bucket_sums(self) -> np.ndarray:
        return self.read("bucket_sums")

    @cached_property
    def sample_sequences(self) -> np.ndarray:
        return self.file.array("sequences")

    @cached_property
    def sample(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Per extreme ("max", "min"): coefficients and positions ``[sample, d_mlp]`` of the random sequences."""
        return {
            name: (self.read(f"sample_{side}"), self.read(f"sample_{side}_at"))
            for name, side in (("max", "high"), ("min", "low"))
        }

    @cached_property
    def draws(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The random positions: coefficients ``[draws, d_mlp]``, sequences, positions (−1 where not scanned)."""
        return self.read("draw"), self.file.array("draws"), self.file.array("draw_positions")

    @property
    def gated(self) -> bool:
        """Whether its neurons have gates."""
        return self.file.gated

    @cached_property
    def sample_parts(self) -> np.ndarray:
        """Of gated neurons: gate and linear part at the maximum and at the minimum ``[2, 2, sample, d_mlp]``."""
        return self.read("gate.sample_parts")

    @cached_property
    def draw_parts(self) -> np.ndarray:
        """The same at the random positions ``[2, draws, d_mlp]``."""
        return self.read("gate.draw_parts")

    def by_token(self, ids: Int64[np.ndarray, " tokens"], texts: Sequence[str], first: int, last: int) -> Arrays:
        """:meth:`Store.by_token` of neurons ``first`` up to ``last``; ``ids``, ``texts``: the frequent tokens."""
        counts = self.token_counts
        mean = means(self.token_sums[:, first:last], counts[:, None]).T
        order = np.argsort(-mean, axis=1, kind="stable")
        return {
            "token": np.array(texts, object)[order].ravel(),
            "token_id": ids[order].ravel(),
            "count": counts[order].ravel(),
            "mean": np.take_along_axis(mean, order, 1).ravel(),
        }

    def by_position(self, context: int, first: int, last: int) -> Arrays:
        """:meth:`Store.by_position` of neurons ``first`` up to ``last``; ``context``: of the scan."""
        counts = self.file.array("bucket_counts")
        seen = np.flatnonzero(counts > 0)
        names = np.array([bucket_name(int(bucket), context) for bucket in seen], object)
        return {
            "positions": np.tile(names, last - first),
            "count": np.tile(counts[seen], last - first),
            "mean": means(self.bucket_sums[:, first:last], counts[:, None])[seen].T.ravel(),
        }


# A neuron's examples as one table: extremes from the store's rows, bands and random positions from the sample.
#
# Gated neurons have extremes of each sign case too, and the gate, the linear part and the case beside every example.

BANDS = (0.0, 0.25, 0.5, 0.75, 0.9, 1.0)
PER_BAND = 3
RANDOM = 10
GATED_KINDS = (*EXAMPLE_KINDS, *CASES)
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


def example_frame(
    view: LayerView,
    settings: ScanSettings,
    index: tuple[int, int],
    extremes: Mapping[str, Sequence[Any]],
    kinds: Sequence[str],
    k: int | None,
    bands: Sequence[float],
) -> pd.DataFrame:
    """Rows of the kinds asked for, in that order, with :data:`COLUMNS`; of gated neurons gate, linear and case besides.

    ``extremes`` are the stored rows, by column.
    """
    return frame_of(view.gated, *example_rows(view, settings, index, extremes, dict.fromkeys(kinds, k), bands))


Rows = tuple[list[tuple[object, ...]], list[tuple[float, float]]]
"""Examples, and of gated neurons the gate and the linear part of each."""


def example_rows(
    view: LayerView,
    settings: ScanSettings,
    index: tuple[int, int],
    extremes: Mapping[str, Sequence[Any]],
    most: Mapping[str, int | None],
    bands: Sequence[float],
) -> Rows:
    """What :func:`example_frame` makes a table of; ``most``: of each kind, in their order."""
    limits = check_bands(bands)
    rows: list[tuple[object, ...]] = []
    parts: list[tuple[float, float]] = []
    for kind, k in most.items():
        if kind == "quantile":
            for side, extreme in enumerate(("max", "min")):
                found = list(banded(view, index[1], extreme, limits, k or PER_BAND))
                rows += [(*index, kind, *row) for row in found]
                if view.gated:
                    slots = np.searchsorted(view.sample_sequences, [row[2] for row in found])
                    parts += pairs(view.sample_parts[side][:, slots, index[1]])
        elif kind == "random":
            found_draws = list(drawn(view, index[1], k or RANDOM))
            rows += [(*index, kind, *row, "", np.nan, np.nan) for row in found_draws]
            if view.gated:
                slots = np.searchsorted(view.draws[1], [row[2] for row in found_draws])
                parts += pairs(view.draw_parts[:, slots, index[1]])
        else:
            names = ("kind", "rank", "activation", "sequence", "position", *(PARTS if view.gated else ()))
            for its, rank, *row in zip(*(extremes[name] for name in names), strict=True):
                if its == kind and rank <= (k or settings.k):
                    rows.append((*index, kind, rank, *row[:3], "", np.nan, np.nan))
                    parts += [(row[3], row[4])] if view.gated else []
    return rows, parts


def frame_of(gated: bool, rows: Sequence[tuple[object, ...]], parts: Sequence[tuple[float, float]]) -> pd.DataFrame:
    """Rows of examples as a table."""
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    frame = frame.astype(
        dict.fromkeys(("layer", "neuron", "rank", "sequence", "position"), np.int64)
        | dict.fromkeys(("coefficient", "band_low", "band_high"), np.float64)
    )
    return with_parts(frame, np.array(parts, np.float64).reshape(-1, 2).T) if gated else frame


def pairs(parts: Float32[np.ndarray, "2 n"]) -> list[tuple[float, float]]:
    """Gate and linear part of each example."""
    return list(zip(*parts.tolist(), strict=True))


def banded(
    view: LayerView, neuron: int, extreme: str, bands: Sequence[float], k: int
) -> Iterator[tuple[int, float, int, int, str, float, float]]:
    """For each band, at most k of the random sequences whose extreme coefficient lies in it, spread evenly, best first.

    The minimum's bands begin at its lowest values, as the maximum's end at its highest: the last band is the strongest.
    """
    values, places = (array[:, neuron] for array in view.sample[extreme])
    seen = np.flatnonzero(~np.isnan(values))
    strength = values[seen] if extreme == "max" else -values[seen]
    order = seen[np.argsort(strength, kind="stable")]
    for low, high in reversed(list(pairwise(bands))):
        inside = order[int(np.ceil(low * len(order))) : int(np.ceil(high * len(order)))]
        for rank, slot in enumerate(spread(inside, k)[::-1], 1):
            sequence = int(view.sample_sequences[slot])
            yield rank, float(values[slot]), sequence, int(places[slot]), extreme, low, high


def drawn(view: LayerView, neuron: int, k: int) -> Iterator[tuple[int, float, int, int]]:
    """At most k random positions, in the order of the text."""
    values, sequences, positions = view.draws
    seen = np.flatnonzero(positions >= 0)
    for rank, slot in enumerate(spread(seen, k), 1):
        yield rank, float(values[slot, neuron]), int(sequences[slot]), int(positions[slot])


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
KINDS_WRITTEN = {"top": "high", "bottom": "low"}


def write_tables(folder: Path, state: ScanState, sequences: Sequences) -> None:
    """Write ``stats.parquet`` and ``examples.parquet`` (top and bottom; of gated neurons each sign case too), layer by
    layer. Raises FileError."""
    groups = (pa.Table.from_pandas(layer_stats(state, i), preserve_index=False) for i in range(len(state.layers)))
    write_parquet(folder / STATS, groups)
    write_parquet(folder / EXAMPLES, example_groups(state, sequences))


def kinds_of(layer: LayerState) -> dict[str, str]:
    """The kinds of examples of a layer's neurons, and the list that each is of."""
    return KINDS_WRITTEN if layer.gate is None else KINDS_WRITTEN | {case: case for case in CASES}


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
