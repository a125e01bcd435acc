"""Random states of a scan, in shards that are parts of one scan, as far as merging can tell."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from ffnmem.core.types import CASES
from ffnmem.scanning import exact_sums
from ffnmem.scanning.settings import ScanSettings
from ffnmem.scanning.state import GATE_ARRAYS, LAYER_ARRAYS, SHARED_ARRAYS, LayerState, ScanState, place_of

WIDTHS = [5, 3]
SAMPLE, DRAWS, SEQUENCES = 4, 3, 40


def settings(**changes: Any) -> ScanSettings:
    base: dict[str, Any] = {
        "context": 16,
        "prepend_bos": True,
        "dtype": "float32",
        "batch_tokens": 64,
        "seed": 0,
        "k": 3,
        "candidates": 3,
        "sample": SAMPLE,
        "draws": DRAWS,
        "frequent": (7, 2),
    }
    return ScanSettings(**{**base, **changes})


HALF = {"dtype": "bfloat16", "candidates": 6}


def empty(chosen: ScanSettings, gated: bool = False) -> ScanState:
    sample, draws = np.arange(0, SEQUENCES, SEQUENCES // SAMPLE), np.arange(DRAWS) * 7 + 1
    return ScanState.empty(chosen, WIDTHS, sample, draws, gated)


def shards(seed: int, count: int, chosen: ScanSettings, gated: bool = False) -> list[ScanState]:
    """States that each hold some of the sequences (some none), with coefficients so few that many tie."""
    random = np.random.default_rng(seed)
    owner = random.integers(0, count, SEQUENCES)
    return [filled(random, np.flatnonzero(owner == index), index, chosen, gated) for index in range(count)]


def filled(
    random: np.random.Generator, mine: np.ndarray, unit: int, chosen: ScanSettings, gated: bool = False
) -> ScanState:
    """A state that has seen the sequences ``mine``."""
    state = empty(chosen, gated)
    if not len(mine):
        return state
    for layer in state.layers:
        fill_layer(random, mine, layer, chosen)
        fill_gate(random, mine, layer, chosen)
        for name, chosen_sequences in (("high", state.sequences), ("low", state.sequences)):
            seen = np.isin(chosen_sequences, mine)
            values = random.normal(size=(int(seen.sum()), layer.high.shape[0])).astype(np.float32)
            getattr(layer, f"sample_{name}")[seen] = values
            getattr(layer, f"sample_{name}_at")[seen] = random.integers(0, 16, values.shape)
        drawn = np.isin(state.draws, mine)
        layer.draw[drawn] = random.normal(size=(int(drawn.sum()), layer.high.shape[0]))
    state.draw_positions[drawn] = random.integers(0, 16, int(drawn.sum()))
    state.bucket_counts += random.integers(0, 99, state.bucket_counts.shape)
    state.token_counts += random.integers(0, 99, state.token_counts.shape)
    state.tokens, state.n_sequences = int(random.integers(1, 999)), len(mine)
    state.done = np.array([unit])
    return state


def fill_layer(random: np.random.Generator, mine: np.ndarray, layer: LayerState, chosen: ScanSettings) -> None:
    width, kept = layer.high.shape
    exact_sums.add(layer.sums, random.normal(size=(8, width)) * 10.0 ** random.integers(-9, 9, (8, width)), "here")
    exact_sums.add_small(layer.bucket_sums, random.normal(size=layer.bucket_sums.shape), "here")
    exact_sums.add_small(layer.token_sums, random.normal(size=layer.token_sums.shape), "here")
    layer.counts += random.integers(0, 99, layer.counts.shape)
    layer.histogram += random.integers(0, 9, layer.histogram.shape)
    layer.range[:] = np.sort(random.choice([-1.0, -0.0, 0.0, 2.0], (2, width)), axis=0)
    layer.range += np.float32(0)
    layer.pre_range[:] = np.sort(random.normal(size=(2, width)), axis=0)
    for side, sign in (("high", 1.0), ("low", -1.0)):
        for neuron in range(width):
            value = random.choice([-1.0, 0.0, 0.5, 2.0], len(mine)).astype(np.float32)  # few, so that they tie
            place = place_of(mine, random.integers(0, 16, len(mine)))
            order = np.lexsort((place, -sign * value))[:kept]
            getattr(layer, side)[neuron, : len(order)] = value[order]
            getattr(layer, f"{side}_at")[neuron, : len(order)] = place[order]
            if chosen.rescored:
                getattr(layer, f"{side}_exact")[neuron, : len(order)] = random.normal(size=len(order))
                getattr(layer, f"{side}_exact_at")[neuron, : len(order)] = place[order]


def fill_gate(random: np.random.Generator, mine: np.ndarray, layer: LayerState, chosen: ScanSettings) -> None:
    """What gated neurons have besides; nothing of classic ones."""
    gate = layer.gate
    if gate is None:
        return
    width, kept = layer.high.shape
    for sums in (gate.linear_sums, gate.case_sums):
        exact_sums.add(sums, random.normal(size=(4, width)) * 10.0 ** random.integers(-9, 9, (4, width)), "here")
    gate.case_counts += random.integers(0, 99, gate.case_counts.shape)
    gate.linear_range[:] = np.sort(random.normal(size=(2, width)), axis=0)
    for side in layer.sides:
        ranking = layer.ranking(side)
        for neuron in range(width):
            if side in CASES:
                some = random.permutation(mine)[: random.integers(0, len(mine) + 1)]  # a case need not occur
                value = random.choice([-1.0, 0.0, 1.0, 2.0], len(some)).astype(np.float32)
                place = place_of(some, random.integers(0, 16, len(some)))
                order = np.lexsort((place, -abs(value)))[:kept]
                ranking.value[neuron, : len(order)], ranking.at[neuron, : len(order)] = value[order], place[order]
                if chosen.rescored:
                    ranking.exact[neuron, : len(order)] = random.normal(size=len(order))
                    ranking.exact_at[neuron, : len(order)] = place[order]
            size = int((ranking.at[neuron] < np.iinfo(np.int64).max).sum())
            ranking.parts[:, neuron, :size] = random.normal(size=(2, size))


def arrays(state: ScanState) -> dict[str, np.ndarray]:
    """Every array of a state by name."""
    found = {name: getattr(state, name) for name in SHARED_ARRAYS}
    for index, layer in enumerate(state.layers):
        found |= {f"{index}.{name}": getattr(layer, name) for name in LAYER_ARRAYS}
        if layer.gate is not None:
            found |= {f"{index}.gate.{name}": getattr(layer.gate, name) for name in GATE_ARRAYS}
    return found


def difference(a: ScanState, b: ScanState) -> list[str]:
    """The names of what is not the same in both, bit for bit."""
    plain = [f.name for f in dataclasses.fields(ScanState) if f.name not in ("layers", *SHARED_ARRAYS)]
    found = [name for name in plain if getattr(a, name) != getattr(b, name)]
    other = arrays(b)
    for name, array in arrays(a).items():
        same = array.dtype == other[name].dtype and array.shape == other[name].shape
        if not same or array.tobytes() != other[name].tobytes():
            found.append(name)
    return found
