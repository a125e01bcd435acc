"""The tables of a store, read a neuron at a time, and the examples of its neurons."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from einops import rearrange
from jaxtyping import Float32, Int64

from ..core.checked_files import open_parquet, reading
from ..core.errors import InputError
from ..core.files import replacing
from ..corpus.batches import Sequences
from .state import NOWHERE, PARTS, SIDES, LayerState, ScanState, case_names, position_of, sequence_of
from .state_file import StateFile
from .statistics import layer_stats

# Parquet files sorted by layer and neuron: pyarrow reads the row groups that hold what is asked for, and checks them.

CHECKED = ds.ParquetFileFormat(
    default_fragment_scan_options=ds.ParquetFragmentScanOptions(page_checksum_verification=True)
)


class NeuronTable:
    """A Parquet file with the columns layer and neuron, opened once; ``again``: what to do about a damaged one."""

    def __init__(self, path: Path, again: str = "scan again") -> None:
        self.path, self.again = path, again
        open_parquet(path, again=again).close()
        self.rows = ds.dataset(path, format=CHECKED)

    def table(self, layer: int | None = None, neuron: int | None = None, last: int | None = None) -> pa.Table:
        """All rows, those of a layer, of one of its neurons, or of its neurons from that up to ``last``; raises
        FileError."""
        wanted = None if layer is None else pc.field("layer") == layer
        if neuron is not None:
            wanted &= (pc.field("neuron") >= neuron) & (pc.field("neuron") < (neuron + 1 if last is None else last))
        with reading(self.path, self.again):
            return self.rows.to_table(filter=wanted, use_threads=False)


def plain_rows(table: pa.Table) -> list[dict[str, Any]]:
    """Rows of numbers; a missing one, such as the mean of a case that never occurs, is NaN."""
    return [{name: np.nan if value is None else value for name, value in row.items()} for row in table.to_pylist()]


# A neuron's examples as one table: extremes from the kept lists, bands and random positions from the sample.
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
    most: Mapping[str, int | None],
    bands: Sequence[float] = BANDS,
) -> list[tuple[Any, ...]]:
    """Examples of the kinds asked for, in that order, with :data:`COLUMNS`; of gated neurons gate and linear part
    besides.

    Args:
        state, layer: of the store. index: of the neuron.
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
            drawn = np.flatnonzero((shared["draw_positions"] >= 0) & ~np.isnan(layer.draw[:, neuron]))
            for rank, slot in enumerate(spread(drawn, k or RANDOM), 1):
                place = int(shared["draws"][slot]), int(shared["draw_positions"][slot])
                numbers = rank, float(layer.draw[slot, neuron]), *place, "", np.nan, np.nan
                rows.append((*index, kind, *numbers, *layer.draw_parts[:, slot, neuron].tolist()))
        else:
            side, slots = SIDES.index(kind), slice(min(k or state.settings.k, state.settings.k))
            kept, kept_at, its_parts = (array[side][..., neuron, slots].tolist() for array in layer.ranked)
            for rank, (value, where, *more) in enumerate(zip(kept, kept_at, *its_parts, strict=True), 1):
                if where != NOWHERE:
                    numbers = rank, value, sequence_of(where), position_of(where), "", np.nan, np.nan
                    rows.append((*index, kind, *numbers, *more))
    return rows


def layer_examples(layer: LayerState, k: int, sequences: Sequences) -> pd.DataFrame:
    """The ``k`` sequences kept of each kind of all neurons of a layer, by neuron, kind and rank: these, coefficient,
    sequence, position, token_id, and of gated neurons gate and linear."""
    kept, at, parts = (array[..., :k] for array in layer.ranked)
    place = rearrange(at, "side neuron k -> neuron side k")
    there = place != NOWHERE
    neuron, side, rank = np.nonzero(there)
    sequence, position = sequence_of(place[there]), position_of(place[there])
    columns = {
        "neuron": neuron,
        "kind": pd.Categorical.from_codes(side, SIDES[: len(kept)]),
        "rank": rank + 1,
        "coefficient": rearrange(kept, "side neuron k -> neuron side k")[there],
        "sequence": sequence,
        "position": position,
        "token_id": sequences.tokens_at(sequence, position),
    }
    of_parts = rearrange(parts, "side part neuron k -> part neuron side k")
    return pd.DataFrame(columns | {name: part[there] for name, part in zip(PARTS, of_parts, strict=False)})


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


# The files of a store.

STATE = "state.safetensors"
STATS, VALUES, TOKENIZER = "stats.parquet", "values.parquet", "tokenizer.json"
CORPUS = "corpus"
SHARDS = "shards"  # of workers, while they run
GROUP = 256  # neurons a Parquet row group: reading one neuron reads one group


def write_row_groups(
    path: Path,
    tables: Iterator[pa.Table],
    coded: Sequence[str],
    metadata: dict[bytes, bytes] | None = None,
    **options: Any,
) -> None:
    """Stream tables into a Parquet file, one row group each; the file appears when it is complete. Raises FileError.

    Args:
        coded: columns of few values, which dictionaries make small. options: of pyarrow's writer.
    """
    with replacing(path) as temporary:
        first = next(tables)
        schema = first.schema if metadata is None else first.schema.with_metadata(metadata)
        with pq.ParquetWriter(temporary, schema, compression="zstd", use_dictionary=list(coded), **options) as writer:
            for table in chain([first], tables):
                writer.write_table(table, row_group_size=max(1, len(table)))


def write_stats(folder: Path, state: ScanState) -> None:
    """Write ``stats.parquet``, layer by layer. Raises FileError."""
    groups = (pa.Table.from_pandas(layer_stats(state, i), preserve_index=False) for i in range(len(state.layers)))
    names = ["layer", "neuron"]
    write_row_groups(folder / STATS, groups, names, write_statistics=names)
