"""A neuron's examples as one table: extremes from the store's rows, bands and random positions from the sample.

Gated neurons have extremes of each sign case too, and the gate, the linear part and the case beside every example.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float32, Int64

from ..core.choices import EXAMPLE_KINDS
from ..errors import InputError
from .cases import CASES, PARTS, with_parts
from .layer_view import LayerView
from .settings import ScanSettings

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
    limits = check_bands(bands)
    rows: list[tuple[object, ...]] = []
    parts: list[tuple[float, float]] = []
    for kind in kinds:
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
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    frame = frame.astype(
        dict.fromkeys(("layer", "neuron", "rank", "sequence", "position"), np.int64)
        | dict.fromkeys(("coefficient", "band_low", "band_high"), np.float64)
    )
    return with_parts(frame, np.array(parts, np.float64).reshape(-1, 2).T) if view.gated else frame


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
    if k == 1:
        return items[len(items) // 2 : len(items) // 2 + 1]
    return items[np.unique(np.linspace(0, len(items) - 1, min(k, len(items))).round().astype(int))]
