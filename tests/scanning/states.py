"""Random states of a scan, in shards that are parts of one scan, as far as merging can tell."""

from __future__ import annotations

from typing import Any

import numpy as np

from ffnmem.scanning import exact_sums
from ffnmem.scanning.settings import ScanSettings
from ffnmem.scanning.state import BINS, EXTREMES, SIGNS, LayerState, ScanState, edges, place_of

WIDTHS = [5, 3]
SAMPLE, DRAWS, SEQUENCES, D_MODEL = 4, 3, 40, 6


def settings(**changes: Any) -> ScanSettings:
    base: dict[str, Any] = {
        "context": 16,
        "bos": 99,
        "special": (),
        "dtype": "float32",
        "batch_tokens": 64,
        "seed": 0,
        "k": 3,
        "sample": SAMPLE,
        "draws": DRAWS,
        "frequent": (7, 2),
    }
    return ScanSettings(**{**base, **changes})


HALF = {"dtype": "bfloat16"}


def empty(chosen: ScanSettings, gated: bool = False) -> ScanState:
    sample, draws = np.arange(0, SEQUENCES, SEQUENCES // SAMPLE), np.arange(DRAWS) * 7 + 1
    return ScanState.empty(chosen, WIDTHS, sample, draws, gated, inputs=(SAMPLE, D_MODEL))


def shards(seed: int, count: int, chosen: ScanSettings, gated: bool = False) -> list[ScanState]:
    """States that each hold some of the sequences (some none), with coefficients so few that many tie."""
    random = np.random.default_rng(seed)
    owner = random.integers(0, count, SEQUENCES)
    return [filled(random, np.flatnonzero(owner == index), index, chosen, gated) for index in range(count)]


def merged(*states: ScanState) -> ScanState:
    """All of them together, in this order; they stay as they are."""
    whole = ScanState(states[0].settings, states[0].arrays)
    for other in states[1:]:
        whole.merge(other)
    return whole


def filled(
    random: np.random.Generator, mine: np.ndarray, unit: int, chosen: ScanSettings, gated: bool = False
) -> ScanState:
    """A state that has seen the sequences ``mine``."""
    state = empty(chosen, gated)
    if not len(mine):
        return state
    arrays = state.arrays
    drawn, sampled = np.isin(arrays["draws"], mine), np.isin(arrays["sequences"], mine)
    for layer in state.layers:
        fill_lists(random, mine, layer, chosen)
        shape = layer.sums.shape[1:]
        exact_sums.add(layer.sums, random.normal(size=shape) * 10.0 ** random.integers(-9, 9, shape), "here")
        for sums in (layer.bucket_sums, layer.token_sums):
            exact_sums.add_small(sums, random.normal(size=sums.shape), "here")
        for counts in (layer.counts, layer.histogram, layer.bucket_counts, layer.token_counts):
            counts += random.integers(0, 99, counts.shape)
        for ends in (layer.range, layer.pre_range):
            pairs = random.choice([-1.0, -0.0, 0.0, 2.0], (len(ends) // 2, 2, ends.shape[1]))
            ends[:] = np.sort(pairs, axis=1).reshape(ends.shape) + 0.0
        layer.sample[:, sampled] = random.normal(size=layer.sample[:, sampled].shape)
        layer.sample_at[:, sampled] = random.integers(0, 16, layer.sample[:, sampled].shape)
        layer.sample_parts[:, :, sampled] = random.normal(size=layer.sample_parts[:, :, sampled].shape)
        layer.draw[drawn] = random.normal(size=layer.draw[drawn].shape)
        layer.inputs[sampled] = random.normal(size=layer.inputs[sampled].shape)
        layer.draw_parts[:, drawn] = random.normal(size=layer.draw_parts[:, drawn].shape)
    arrays["draw_positions"][drawn] = random.integers(0, 16, int(drawn.sum()))
    arrays["totals"][:] = random.integers(1, 999), len(mine)
    state.mark_done([unit])
    return state


def fill_lists(random: np.random.Generator, mine: np.ndarray, layer: LayerState, chosen: ScanSettings) -> None:
    """Every list of every neuron; a case need not occur."""
    sides, width, kept = layer.kept.shape
    for side, neuron in np.ndindex(sides, width):
        some = mine if side < EXTREMES else random.permutation(mine)[: random.integers(0, len(mine) + 1)]
        value = random.choice([-1.0, 0.5, 1.0, 2.0], len(some)).astype(np.float32)  # few, so that they tie
        place = place_of(some, random.integers(0, 16, len(some)))
        order = np.lexsort((place, -SIGNS[side] * value if SIGNS[side] else -abs(value)))[:kept]
        its = side, neuron, slice(len(order))
        layer.kept[its], layer.kept_at[its] = value[order], place[order]
        layer.parts[side, :, neuron, : len(order)] = random.normal(
            size=layer.parts[side, :, neuron, : len(order)].shape
        )
        if chosen.rescored:
            layer.exact[its], layer.exact_at[its] = random.normal(size=len(order)), place[order]


def difference(a: ScanState, b: ScanState) -> list[str]:
    """The names of the arrays that are not the same in both, bit for bit."""
    assert a.arrays.keys() == b.arrays.keys()
    return [
        name
        for name, array in a.arrays.items()
        if (array.dtype, array.shape, array.tobytes())
        != (b.arrays[name].dtype, b.arrays[name].shape, b.arrays[name].tobytes())
    ]


def bin_of(values: np.ndarray) -> np.ndarray:
    """The bin of each value by the histogram's edges, half open away from zero; −0 is negative."""
    above, below = (np.searchsorted(edges(), values.astype(np.float64), side) - 1 for side in ("right", "left"))
    return np.where(np.signbit(values), below, above).clip(0, BINS - 1)
