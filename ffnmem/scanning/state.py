"""``ScanState``: all that a scan knows so far, as plain arrays; two states of one scan add up in any order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any, get_type_hints

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Float32, Float64, Int32, Int64

from ..core.types import CASES
from . import exact_sums
from .settings import ScanSettings

# Histogram bins that need no calibration: four to each doubling, both signs, the same for every neuron and model.
#
# The bin is read off a float32's exponent and its two highest fraction bits, so any two histograms can be added.
# Magnitudes below 1.25·2⁻⁸ share the innermost bin of their sign, those from 1.75·2⁷ the outermost.

PER_DOUBLING = 4
LEAST = -8  # 2⁻⁸: smaller magnitudes share the innermost bin with the first above
DOUBLINGS = 16
SIDE = PER_DOUBLING * DOUBLINGS  # bins of one sign
BINS = 2 * SIDE
OFFSET = (127 + LEAST) * PER_DOUBLING  # of the exponent and two fraction bits of 2⁻⁸


def edges() -> Float64[np.ndarray, " edges"]:
    """The BINS + 1 edges, ascending; bin i holds edges[i] ≤ x < edges[i+1] for positive x, mirrored for negative x.

    The outermost are infinite and the innermost meet at zero (−0 counts as negative).
    """
    steps = np.arange(1, SIDE)
    positive = 2.0 ** (LEAST + steps // PER_DOUBLING) * (1 + (steps % PER_DOUBLING) / PER_DOUBLING)
    inner = np.concatenate([positive, [np.inf]])
    return np.concatenate([-inner[::-1], [0.0], inner])


def quantile(histogram: Int64[np.ndarray, " bins"], share: float) -> float:
    """An estimate of a quantile: linear inside the bin that it falls into (the outermost bins give their finite
    edge)."""
    total = int(histogram.sum())
    if total == 0:
        return float("nan")
    wanted = share * total
    before = np.concatenate([[0], np.cumsum(histogram)])
    index = min(int(np.searchsorted(before, wanted, side="right")) - 1, BINS - 1)
    while index > 0 and histogram[index] == 0:
        index -= 1
    low, high = edges()[index : index + 2]
    if not np.isfinite(low) or not np.isfinite(high):
        return float(high if np.isfinite(high) else low)
    return float(low + (high - low) * (wanted - before[index]) / histogram[index])


# The four sign cases of a gated neuron: the signs of its gate's pre-activation and of its linear part.
#
# A gated neuron's coefficient is act(gate·x)·(key·x). Where the activation keeps the sign of what it is given (SiLU,
# GELU), the coefficient is positive if both signs agree: the largest coefficients then mix two cases that mean
# different things, and so do the smallest (Gerstner and Schütze 2025).

COLUMNS = ("gate_pos_linear_pos", "gate_pos_linear_neg", "gate_neg_linear_pos", "gate_neg_linear_neg")
"""What the names of the cases' statistics end in."""

PARTS = ("gate", "linear")
"""Of an example: the gate's pre-activation and the linear part, which the activation leaves as it is."""


def case_index(gate: Float[np.ndarray, "*shape"], linear: Float[np.ndarray, "*shape"]) -> Int64[np.ndarray, "*shape"]:
    """Which of :data:`CASES` each pair of numbers is."""
    return 2 * at_or_below(gate).astype(np.int64) + at_or_below(linear)


def at_or_below(values: Float[np.ndarray, "*shape"]) -> Bool[np.ndarray, "*shape"]:
    return ~(values > 0)


def case_names(gate: Float[np.ndarray, " n"], linear: Float[np.ndarray, " n"]) -> list[str]:
    """The case of each pair of numbers in words."""
    return [CASES[index] for index in case_index(gate, linear).tolist()]


def with_parts(frame: pd.DataFrame, parts: Float[np.ndarray, "2 rows"]) -> pd.DataFrame:
    """Examples with the columns gate, linear and case behind the others."""
    gate, linear = parts.astype(np.float64)
    return frame.assign(gate=gate, linear=linear, case=pd.Series(case_names(gate, linear), frame.index, str))


NOWHERE = np.iinfo(np.int64).max  # the place of an empty slot: behind every real one
POSITION_BITS = 20
EXTREMES = ("high", "low")


def place_of(sequence: Any, position: Any) -> Any:
    """A sequence and a position in one integer that sorts by sequence, then position."""
    return (sequence << POSITION_BITS) | position


def sequence_of(place: Any) -> Any:
    return place >> POSITION_BITS


def position_of(place: Any) -> Any:
    return place & ((1 << POSITION_BITS) - 1)


def strengths(values: Any, sign: float) -> Any:
    """What a list is ordered by, the largest first: the values, their opposites, or with 0 their magnitudes."""
    return sign * values if sign else abs(values)


@dataclass(frozen=True, eq=False)
class Ranking:
    """One list of kept sequences for each neuron, best first: views of a layer's arrays ``[d_mlp, kept]``.

    Attributes:
        value, at: coefficients, and their places.
        exact, exact_at: the same in float32 after a half-precision pass; else without columns.
        parts: of gated neurons, gate and linear part there ``[2, d_mlp, kept]``; of others ``[0, d_mlp, kept]``.
        sign: see :func:`strengths`.
    """

    value: Float32[np.ndarray, "d_mlp kept"]
    at: Int64[np.ndarray, "d_mlp kept"]
    exact: Float32[np.ndarray, "d_mlp exact"]
    exact_at: Int64[np.ndarray, "d_mlp exact"]
    parts: Float32[np.ndarray, "parts d_mlp kept"]
    sign: float

    def forget_exact(self) -> None:
        """Let every candidate be run again."""
        self.exact.fill(np.nan)
        self.exact_at.fill(NOWHERE)
        self.parts.fill(np.nan)


SPAN = np.array([[np.inf], [-np.inf]], np.float32)
EMPTY: dict[str, Any] = {
    **dict.fromkeys(("pre_range", "range", "linear_range"), SPAN),
    **{"high": -np.inf, "low": np.inf, "sample_high_at": -1, "sample_low_at": -1},
    **{f"{side}{exact}_at": NOWHERE for side in (*EXTREMES, "case") for exact in ("", "_exact")},
    **dict.fromkeys(("high_exact", "low_exact", "case_exact", "case_parts", "extreme_parts"), np.nan),
    **dict.fromkeys(("sample_high", "sample_low", "draw", "sample_parts", "draw_parts"), np.nan),
}
"""What an array holds where nothing was seen, if it is not 0."""


def emptied(holder: type, sizes: Mapping[str, int]) -> dict[str, Any]:
    """The arrays of a class by its annotations, before anything was seen."""
    return {name: np.full(shape, EMPTY.get(name, 0), dtype) for name, (dtype, shape) in shaped(holder, sizes).items()}


def shaped(holder: type, sizes: Mapping[str, int]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Type and shape of a class's arrays as their annotations have them, with the sizes put in."""
    return {
        name: (dtype, tuple(int(size) if size.isdigit() else sizes[size] for size in shape))
        for name, (dtype, shape) in annotated(holder).items()
    }


@cache
def annotated(holder: type) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Type and axes of a class's arrays, by name."""
    hints = get_type_hints(holder)
    return {
        name: (hint.dtypes[0], tuple(hint.dim_str.split())) for name, hint in hints.items() if hasattr(hint, "dim_str")
    }


def sizes_of(settings: ScanSettings) -> dict[str, int]:
    """The sizes that the annotations of a state name, but for the width of a layer and those of the sample."""
    return {
        "kept": settings.candidates,
        "exact": settings.candidates if settings.rescored else 0,
        "bins": BINS,
        "buckets": settings.n_buckets,
        "frequent": len(settings.frequent),
    }


@dataclass(eq=False)
class GateState:
    """What a layer of gated neurons keeps besides: by sign case (:data:`ffnmem.core.types.CASES`), and parts of
    examples.

    ``case``: kept coefficients of different sequences with the largest magnitudes of each case; an empty slot is 0,
    nowhere. Parts are the gate's pre-activation and the linear part, in float32: of the lists (after a half-precision
    pass NaN until run again), and of the random sample's largest and smallest coefficients and positions.
    """

    linear_sums: Int64[np.ndarray, "3 4 d_mlp"]
    linear_range: Float32[np.ndarray, "2 d_mlp"]
    case_counts: Int64[np.ndarray, "4 d_mlp"]
    case_sums: Int64[np.ndarray, "3 4 d_mlp"]
    case: Float32[np.ndarray, "4 d_mlp kept"]
    case_at: Int64[np.ndarray, "4 d_mlp kept"]
    case_exact: Float32[np.ndarray, "4 d_mlp exact"]
    case_exact_at: Int64[np.ndarray, "4 d_mlp exact"]
    case_parts: Float32[np.ndarray, "4 2 d_mlp kept"]
    extreme_parts: Float32[np.ndarray, "2 2 d_mlp kept"]
    sample_parts: Float32[np.ndarray, "2 2 sample d_mlp"]
    draw_parts: Float32[np.ndarray, "2 draws d_mlp"]

    def ranking(self, case: str) -> Ranking:
        """The list of one case."""
        arrays = (self.case, self.case_at, self.case_exact, self.case_exact_at)
        index = CASES.index(case)
        value, at, exact, exact_at = (array[index] for array in arrays)
        return Ranking(value, at, exact, exact_at, self.case_parts[index], 0.0)

    def merged(self, other: GateState, extreme_parts: Float32[np.ndarray, "2 2 d_mlp kept"]) -> GateState:
        """Both together; ``extreme_parts`` went with the largest and the smallest coefficients."""
        both = [merged_ranking(self.ranking(case), other.ranking(case)) for case in CASES]
        return GateState(
            **joined(self, other),
            case=np.stack([one.value for one in both]),
            case_at=np.stack([one.at for one in both]),
            case_exact=np.stack([one.exact for one in both]),
            case_exact_at=np.stack([one.exact_at for one in both]),
            case_parts=parts_of(both),
            extreme_parts=extreme_parts,
        )


@dataclass(eq=False)
class LayerState:
    """One layer's neurons. ``high``/``low``: kept largest/smallest coefficients of different sequences, best first.

    After a half-precision pass, ``high_exact`` and ``high_exact_at`` hold the same sequences' float32 extremes in
    the order of ``high``; NaN until they were run again. ``gate``: what gated neurons have besides.
    """

    sums: Int64[np.ndarray, "3 8 d_mlp"]
    counts: Int64[np.ndarray, "2 d_mlp"]
    pre_range: Float32[np.ndarray, "2 d_mlp"]
    range: Float32[np.ndarray, "2 d_mlp"]
    histogram: Int64[np.ndarray, "d_mlp bins"]
    bucket_sums: Int64[np.ndarray, "buckets d_mlp"]
    token_sums: Int64[np.ndarray, "frequent d_mlp"]
    high: Float32[np.ndarray, "d_mlp kept"]
    high_at: Int64[np.ndarray, "d_mlp kept"]
    low: Float32[np.ndarray, "d_mlp kept"]
    low_at: Int64[np.ndarray, "d_mlp kept"]
    high_exact: Float32[np.ndarray, "d_mlp exact"]
    high_exact_at: Int64[np.ndarray, "d_mlp exact"]
    low_exact: Float32[np.ndarray, "d_mlp exact"]
    low_exact_at: Int64[np.ndarray, "d_mlp exact"]
    sample_high: Float32[np.ndarray, "sample d_mlp"]
    sample_high_at: Int32[np.ndarray, "sample d_mlp"]
    sample_low: Float32[np.ndarray, "sample d_mlp"]
    sample_low_at: Int32[np.ndarray, "sample d_mlp"]
    draw: Float32[np.ndarray, "draws d_mlp"]
    gate: GateState | None = None

    @staticmethod
    def empty(d_mlp: int, settings: ScanSettings, sample: int, draws: int, gated: bool = False) -> LayerState:
        sizes = {**sizes_of(settings), "d_mlp": d_mlp, "sample": sample, "draws": draws}
        gate = GateState(**emptied(GateState, sizes)) if gated else None
        return LayerState(**emptied(LayerState, sizes), gate=gate)

    @property
    def sides(self) -> tuple[str, ...]:
        """The names of its rankings."""
        return EXTREMES if self.gate is None else (*EXTREMES, *CASES)

    def ranking(self, side: str) -> Ranking:
        """The list of one side: "high", "low" or a case."""
        if side not in EXTREMES:
            assert self.gate is not None
            return self.gate.ranking(side)
        index = EXTREMES.index(side)
        names = (side, f"{side}_at", f"{side}_exact", f"{side}_exact_at")
        value, at, exact, exact_at = (getattr(self, name) for name in names)
        parts = np.empty((0, *value.shape), np.float32) if self.gate is None else self.gate.extreme_parts[index]
        return Ranking(value, at, exact, exact_at, parts, (1.0, -1.0)[index])

    def merged(self, other: LayerState) -> LayerState:
        both = [merged_ranking(self.ranking(side), other.ranking(side)) for side in EXTREMES]
        high, low = (
            {side: one.value, f"{side}_at": one.at, f"{side}_exact": one.exact, f"{side}_exact_at": one.exact_at}
            for side, one in zip(EXTREMES, both, strict=True)
        )
        gate = None
        if self.gate is not None and other.gate is not None:
            gate = self.gate.merged(other.gate, parts_of(both))
        return LayerState(**joined(self, other), **high, **low, gate=gate)


def joined(first: object, second: object) -> dict[str, Any]:
    """What :data:`JOINED` knows of two states of a class, put together."""
    pairs = ((name, getattr(first, name, None), getattr(second, name, None)) for name in JOINED)
    return {name: JOINED[name](a, b) for name, a, b in pairs if a is not None}


def joined_range(
    a: Float32[np.ndarray, "2 d_mlp"], b: Float32[np.ndarray, "2 d_mlp"]
) -> Float32[np.ndarray, "2 d_mlp"]:
    # + 0 makes −0 and 0 one: which of two equal zeros minimum returns depends on their order.
    return np.stack([np.minimum(a[0], b[0]), np.maximum(a[1], b[1])]) + np.float32(0)


def filled(a: Float32[np.ndarray, "*n d_mlp"], b: Float32[np.ndarray, "*n d_mlp"]) -> Float32[np.ndarray, "*n d_mlp"]:
    """Rows that one of two shards has seen (the other has NaN there)."""
    return np.where(np.isnan(a), b, a)


JOINED: dict[str, Callable[[Any, Any], Any]] = {
    **dict.fromkeys(("sums", "linear_sums", "case_sums"), exact_sums.merged),
    **dict.fromkeys(("pre_range", "range", "linear_range"), joined_range),
    **dict.fromkeys(("counts", "histogram", "bucket_sums", "token_sums", "case_counts"), np.add),
    **dict.fromkeys(("sample_high", "sample_low", "draw", "sample_parts", "draw_parts"), filled),
    **dict.fromkeys(("sample_high_at", "sample_low_at"), np.maximum),
}
"""How the arrays of two shards are put together, but for the lists, which :func:`merged_ranking` joins."""


def merged_ranking(a: Ranking, b: Ranking) -> Ranking:
    """The best of two lists of different sequences, ties by place; exact values and parts go with them."""
    value, at, exact, exact_at = (
        np.concatenate([getattr(a, name), getattr(b, name)], axis=1) for name in ("value", "at", "exact", "exact_at")
    )
    order = np.lexsort((at, -strengths(value, a.sign)), axis=1)[:, : a.value.shape[1]]
    parts = taken(np.concatenate([a.parts, b.parts], axis=2), order[None])
    if exact.shape[1]:
        exact, exact_at = taken(exact, order), taken(exact_at, order)
    return Ranking(taken(value, order), taken(at, order), exact, exact_at, parts, a.sign)


def taken(array: Any, order: Any) -> Any:
    return np.take_along_axis(array, order, axis=-1)


def parts_of(rankings: list[Ranking]) -> Float32[np.ndarray, "rankings 2 d_mlp kept"]:
    return np.stack([one.parts for one in rankings])


@dataclass(eq=False)
class ScanState:
    """A scan so far.

    Attributes:
        settings: of the scan.
        layers: one :class:`LayerState` a layer.
        sequences, draws: the random sample, see :mod:`ffnmem.scanning.reduction`; ``draw_positions`` is −1 where not
        yet seen. bucket_counts, token_counts: content tokens by position bucket and by frequent token.
        tokens, n_sequences: content tokens and sequences seen.
        done: the units that were scanned whole, ascending.
    """

    settings: ScanSettings
    layers: list[LayerState]
    sequences: Int64[np.ndarray, " sample"]
    draws: Int64[np.ndarray, " draws"]
    draw_positions: Int32[np.ndarray, " draws"]
    bucket_counts: Int64[np.ndarray, " buckets"]
    token_counts: Int64[np.ndarray, " frequent"]
    tokens: int = 0
    n_sequences: int = 0
    done: Int64[np.ndarray, " units"] = field(default_factory=lambda: np.empty(0, np.int64))

    @staticmethod
    def empty(
        settings: ScanSettings,
        widths: list[int],
        sequences: Int64[np.ndarray, " sample"],
        draws: Int64[np.ndarray, " draws"],
        gated: bool = False,
    ) -> ScanState:
        return ScanState(
            settings=settings,
            layers=[LayerState.empty(width, settings, len(sequences), len(draws), gated) for width in widths],
            sequences=sequences,
            draws=draws,
            draw_positions=np.full(len(draws), -1, np.int32),
            bucket_counts=np.zeros(settings.n_buckets, np.int64),
            token_counts=np.zeros(len(settings.frequent), np.int64),
        )

    @property
    def gated(self) -> bool:
        """Whether its neurons have gates."""
        return any(layer.gate is not None for layer in self.layers)

    def forget_exact(self) -> None:
        """Let every candidate be run again: their lists are about to change. Of a float32 pass all is exact."""
        if self.settings.rescored:
            for layer in self.layers:
                for side in layer.sides:
                    layer.ranking(side).forget_exact()

    def merged(self, other: ScanState) -> ScanState:
        """Both together; their units must be different ones (the caller checks that, and that the settings agree)."""
        return replace(
            self,
            layers=[a.merged(b) for a, b in zip(self.layers, other.layers, strict=True)],
            draw_positions=np.maximum(self.draw_positions, other.draw_positions),
            bucket_counts=self.bucket_counts + other.bucket_counts,
            token_counts=self.token_counts + other.token_counts,
            tokens=self.tokens + other.tokens,
            n_sequences=self.n_sequences + other.n_sequences,
            done=np.sort(np.concatenate([self.done, other.done])),
        )


LAYER_ARRAYS = tuple(f.name for f in fields(LayerState) if f.name != "gate")
GATE_ARRAYS = tuple(f.name for f in fields(GateState))
SHARED_ARRAYS = ("sequences", "draws", "draw_positions", "bucket_counts", "token_counts", "done")
