"""Many neurons of a layer read at once: what :meth:`Store.neuron` gives of each, from a few reads of the files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.errors import ModelError
from ..vocabulary.projections import COLUMNS as PROJECTED
from .contexts import Columns
from .neuron import Known
from .state import PARTS
from .tables import (
    COLUMNS,
    GROUP,
    STATS,
    VALUES,
    example_rows,
    plain_rows,
)

if TYPE_CHECKING:
    from .store import Store

Cut = Callable[[int], dict[str, list[Any]]]
"""The rows of a neuron, by its place in the block."""
SHOWN = ("rank", "side", "sign", "token", "score", "lens")


def blocks(
    store: Store,
    layer: int,
    most: Mapping[str, int | None],
    context: int = 12,
    size: int = GROUP,
    *,
    measured: bool = True,
) -> Iterator[Known]:
    """The neurons of a layer in their order, with what :meth:`Store.neuron` gives of them, ``size`` of them in memory.

    Args:
        store: which. layer: its index.
        most: the kinds of examples, and how many of each, and of a band, at most; None for as many as
            :meth:`Store.examples` gives.
        context: tokens of context on each side.
        size: neurons read at once; row groups of the files hold 256.
        measured: whether meanings may be kept beside the store; else none are looked for.

    Raises: FileError.
    """
    for first in range(0, store.d_mlp(layer), size):
        yield from block(store, layer, first, min(first + size, store.d_mlp(layer)), most, context, measured)


def block(
    store: Store, layer: int, first: int, last: int, most: Mapping[str, int | None], context: int, measured: bool
) -> Iterator[Known]:
    """Neurons ``first`` up to ``last`` of a layer."""
    numbers = plain_rows(store.opened(STATS).table(layer, first, last))
    view = store.view(layer)
    found = [example_rows(store.state, view, (layer, neuron), most) for neuron in range(first, last)]
    places: Any = (row[5:7] for rows in found for row in rows)  # sequence and position
    windows = iter(store.contexts.windows(places, context))
    histogram = cut(*store.histograms(layer, first, last))
    by_token = cut(*store.token_means(layer, first, last))
    by_position = cut(*store.position_means(layer, first, last))
    values = values_of(store, layer, first, last)
    names = (*COLUMNS, *(PARTS if store.gated else ()))
    for at, rows in enumerate(found):
        around = tuple(next(windows) for _ in rows)
        table, lack = values(at)
        yield Known(
            store=store,
            layer=layer,
            neuron=first + at,
            stats=numbers[at],
            examples={
                **dict(zip(names, zip(*rows, strict=True) if rows else [()] * len(names), strict=True)),
                "token": [window.tokens[window.at] for window in around],
            },
            windows=around,
            histogram=histogram(at),
            by_token=by_token(at),
            by_position=by_position(at),
            values=table,
            context=context,
            lack=lack,
            measured=measured,
        )


# Tables of many neurons, cut into those of each.


def cut(columns: Mapping[str, np.ndarray], starts: np.ndarray) -> Cut:
    """A table of many neurons as that of each, by its place among them; ``starts``: where each begins, and the end."""
    plain, bounds = {name: column.tolist() for name, column in columns.items()}, starts.tolist()
    return lambda at: {name: column[bounds[at] : bounds[at + 1]] for name, column in plain.items()}


def values_of(store: Store, layer: int, first: int, last: int) -> Callable[[int], tuple[Columns, str]]:
    """:meth:`Store.values` of each neuron, and why there are none."""
    if store.projected:
        table = store.opened(VALUES).table(layer, first, last)
        starts = np.searchsorted(table["neuron"].to_numpy(), np.arange(first, last + 1))
        stored = cut({name: table[name].to_numpy() for name in SHOWN if name in table.column_names}, starts)
        return lambda at: (stored(at), "")

    def asked(at: int) -> tuple[Columns, str]:
        try:
            return store.values(layer, first + at), ""
        except ModelError as error:
            return dict.fromkeys(PROJECTED, ()), str(error)

    return asked
