"""Many neurons of a layer read at once: what :meth:`Store.neuron` gives of each, from a few reads of the files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from ..core.errors import FileError, ModelError
from ..vocabulary.projections import COLUMNS as PROJECTED
from .neuron import Neuron, by_side
from .state import edges
from .statistics import bucket_name, means
from .tables import BANDS, EXAMPLES, GROUP, STATS, VALUES, LayerView, example_rows, frame_of, plain_rows

if TYPE_CHECKING:
    from .store import Store

Slices = Callable[[int], pd.DataFrame]
"""The rows of a neuron, by its place in the block."""


def blocks(
    store: Store, layer: int, most: Mapping[str, int | None], context: int = 12, size: int = GROUP
) -> Iterator[Neuron]:
    """The neurons of a layer in their order, as :meth:`Store.neuron` gives them, ``size`` of them in memory.

    Args:
        store: which. layer: its index.
        most: the kinds of examples, and how many of each, and of a band, at most; None for as many as
            :meth:`Store.examples` gives.
        context: tokens of context on each side.
        size: neurons read at once; row groups of the files hold 256.

    Raises: FileError.
    """
    for first in range(0, store.d_mlp(layer), size):
        yield from block(store, layer, first, min(first + size, store.d_mlp(layer)), most, context)


def block(
    store: Store, layer: int, first: int, last: int, most: Mapping[str, int | None], context: int
) -> Iterator[Neuron]:
    """Neurons ``first`` up to ``last`` of a layer."""
    view = store.view(layer)
    stats, bounds = store.opened(STATS).block(layer, first, last)
    if (np.diff(bounds) != 1).any():
        raise FileError(f"{store.folder / STATS} has not one row of each neuron of layer {layer}: scan again")
    numbers = plain_rows(stats)
    examples, starts = example_table(store, view, layer, first, last, most)
    windows = store.windows(examples, context)
    examples = store.with_contexts(examples, windows)
    examples.attrs = {}  # pandas copies them deeply with every column that is looked at
    of_examples = slices(examples, starts)
    by_token, by_position = token_slices(store, view, first, last), position_slices(store, view, first, last)
    histogram = histogram_slices(view, first, last)
    values = value_slices(store, layer, first, last)
    for at in range(last - first):
        found, scored, lack = values(at)
        one = Neuron(
            store=store,
            layer=layer,
            neuron=first + at,
            stats=numbers[at],
            examples=of_examples(at),
            windows=tuple(windows[starts[at] : starts[at + 1]]),
            histogram=histogram(at),
            by_token=by_token(at),
            by_position=by_position(at),
            values=found,
            context=context,
            lack=lack,
        )
        if scored is not None:
            vars(one)["scored_tokens"] = scored  # what it would look up in its table, read for all at once
        yield one


def slices(frame: pd.DataFrame, starts: np.ndarray) -> Slices:
    """A table cut into those of single neurons, each numbered from 0."""

    def one(at: int) -> pd.DataFrame:
        found = frame.iloc[starts[at] : starts[at + 1]]
        found.index = pd.RangeIndex(len(found))
        return found

    return one


def example_table(
    store: Store, view: LayerView, layer: int, first: int, last: int, most: Mapping[str, int | None]
) -> tuple[pd.DataFrame, np.ndarray]:
    """The examples of all neurons of a block, and where those of each begin, and end."""
    table, bounds = store.opened(EXAMPLES).block(layer, first, last)
    columns = extremes_of(table, most)
    rows: list[tuple[object, ...]] = []
    parts: list[tuple[float, float]] = []
    starts = [0]
    kept = columns.pop("place")
    ends = np.searchsorted(kept, bounds)
    for at in range(last - first):
        extremes = {name: column[ends[at] : ends[at + 1]] for name, column in columns.items()}
        some, theirs = example_rows(view, store.settings, (layer, first + at), extremes, most, BANDS)
        rows += some
        parts += theirs
        starts.append(len(rows))
    return frame_of(view.gated, rows, parts), np.array(starts)


def extremes_of(table: pa.Table, most: Mapping[str, int | None]) -> dict[str, Any]:
    """The stored rows that can be among the examples, by column, with their place among all of them."""
    there = np.zeros(len(table), bool)
    for kind, k in most.items():
        ours = pc.equal(table["kind"].cast(pa.string()), kind)
        there |= (ours if k is None else pc.and_(ours, pc.less_equal(table["rank"], k))).to_numpy()
    return {**table.filter(pa.array(there)).to_pydict(), "place": np.flatnonzero(there)}


def token_slices(store: Store, view: LayerView, first: int, last: int) -> Slices:
    """:meth:`Store.by_token` of each neuron."""
    ids, counts = np.array(store.settings.frequent, np.int64), view.token_counts
    texts = np.array(store.contexts.strings(ids), object)
    mean = means(view.token_sums[:, first:last], counts[:, None]).T
    order = np.argsort(-mean, axis=1, kind="stable")
    frame = pd.DataFrame(
        {
            "token": texts[order].ravel(),
            "token_id": ids[order].ravel(),
            "count": counts[order].ravel(),
            "mean": np.take_along_axis(mean, order, 1).ravel(),
        }
    )
    return slices(frame, np.arange(last - first + 1) * len(ids))


def position_slices(store: Store, view: LayerView, first: int, last: int) -> Slices:
    """:meth:`Store.by_position` of each neuron."""
    counts = view.file.array("bucket_counts")
    seen = np.flatnonzero(counts > 0)
    mean = means(view.bucket_sums[:, first:last], counts[:, None])[seen].T
    names = [bucket_name(int(bucket), store.settings.context) for bucket in seen]
    frame = pd.DataFrame(
        {
            "positions": np.tile(np.array(names, object), last - first),
            "count": np.tile(counts[seen], last - first),
            "mean": mean.ravel(),
        }
    )
    return slices(frame, np.arange(last - first + 1) * len(seen))


def histogram_slices(view: LayerView, first: int, last: int) -> Slices:
    """:meth:`Store.histogram` of each neuron."""
    counts, bounds = view.histogram[first:last], edges()
    filled = counts != 0
    low = np.where(filled.any(1), filled.argmax(1), 0)
    high = np.where(filled.any(1), counts.shape[1] - filled[:, ::-1].argmax(1), counts.shape[1])
    at = np.concatenate([np.arange(a, b) for a, b in zip(low, high, strict=True)])
    ours = np.repeat(np.arange(last - first), high - low)
    frame = pd.DataFrame({"low": bounds[:-1][at], "high": bounds[1:][at], "count": counts[ours, at]})
    return slices(frame, np.concatenate([[0], np.cumsum(high - low)]))


Values = tuple[pd.DataFrame, dict[tuple[str, str], list[tuple[str, float]]] | None, str]


def value_slices(store: Store, layer: int, first: int, last: int) -> Callable[[int], Values]:
    """:meth:`Store.values` of each neuron, :attr:`Neuron.scored_tokens` if they are known, and why there are none."""
    if store.projected:
        table, starts = store.opened(VALUES).block(layer, first, last)
        frames = slices(table.to_pandas(), starts)
        rows = list(zip(*(table[name].to_pylist() for name in ("rank", "side", "sign", "token", "score")), strict=True))

        def stored(at: int) -> Values:
            return frames(at), by_side(rows[starts[at] : starts[at + 1]]), ""

        return stored

    def asked(at: int) -> Values:
        try:
            return store.values(layer, first + at), None, ""
        except ModelError as error:
            return pd.DataFrame(columns=list(PROJECTED)), None, str(error)

    return asked
