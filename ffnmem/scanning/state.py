"""``ScanState``: all that a scan knows so far, as plain arrays; two states of one scan add up in any order."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from jaxtyping import Float32, Int32, Int64

from . import exact_sums
from .bins import BINS
from .settings import ScanSettings

NOWHERE = np.iinfo(np.int64).max  # the place of an empty slot: behind every real one
POSITION_BITS = 20


def place_of(sequence: Any, position: Any) -> Any:
    """A sequence and a position in one integer that sorts by sequence, then position."""
    return (sequence << POSITION_BITS) | position


def sequence_of(place: Any) -> Any:
    return place >> POSITION_BITS


def position_of(place: Any) -> Any:
    return place & ((1 << POSITION_BITS) - 1)


@dataclass(eq=False)
class LayerState:
    """One layer's neurons. ``high``/``low``: kept largest/smallest coefficients of different sequences, best first.

    After a half-precision pass, ``high_exact`` and ``high_exact_at`` hold the same sequences' float32 extremes in
    the order of
    ``high``; NaN until they were run again.
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

    @staticmethod
    def empty(d_mlp: int, settings: ScanSettings, sample: int, draws: int) -> LayerState:
        kept, exact = settings.candidates, settings.candidates if settings.rescored else 0

        def full(value: float, *shape: int) -> Any:
            return np.full(shape, value, np.float32)

        def places(*shape: int) -> Any:
            return np.full(shape, NOWHERE, np.int64)

        span = np.array([[np.inf], [-np.inf]], np.float32)
        return LayerState(
            sums=exact_sums.zeros(8, d_mlp),
            counts=np.zeros((2, d_mlp), np.int64),
            pre_range=np.repeat(span, d_mlp, axis=1),
            range=np.repeat(span, d_mlp, axis=1),
            histogram=np.zeros((d_mlp, BINS), np.int64),
            bucket_sums=np.zeros((settings.n_buckets, d_mlp), np.int64),
            token_sums=np.zeros((len(settings.frequent), d_mlp), np.int64),
            high=full(-np.inf, d_mlp, kept),
            high_at=places(d_mlp, kept),
            low=full(np.inf, d_mlp, kept),
            low_at=places(d_mlp, kept),
            high_exact=full(np.nan, d_mlp, exact),
            high_exact_at=places(d_mlp, exact),
            low_exact=full(np.nan, d_mlp, exact),
            low_exact_at=places(d_mlp, exact),
            sample_high=full(np.nan, sample, d_mlp),
            sample_high_at=np.full((sample, d_mlp), -1, np.int32),
            sample_low=full(np.nan, sample, d_mlp),
            sample_low_at=np.full((sample, d_mlp), -1, np.int32),
            draw=full(np.nan, draws, d_mlp),
        )

    def merged(self, other: LayerState) -> LayerState:
        high, low = (merged_extremes(self, other, name, sign) for name, sign in (("high", 1.0), ("low", -1.0)))
        return LayerState(
            sums=exact_sums.merged(self.sums, other.sums),
            counts=self.counts + other.counts,
            pre_range=joined_range(self.pre_range, other.pre_range),
            range=joined_range(self.range, other.range),
            histogram=self.histogram + other.histogram,
            bucket_sums=self.bucket_sums + other.bucket_sums,
            token_sums=self.token_sums + other.token_sums,
            **high,
            **low,
            sample_high=filled(self.sample_high, other.sample_high),
            sample_high_at=np.maximum(self.sample_high_at, other.sample_high_at),
            sample_low=filled(self.sample_low, other.sample_low),
            sample_low_at=np.maximum(self.sample_low_at, other.sample_low_at),
            draw=filled(self.draw, other.draw),
        )


def joined_range(
    a: Float32[np.ndarray, "2 d_mlp"], b: Float32[np.ndarray, "2 d_mlp"]
) -> Float32[np.ndarray, "2 d_mlp"]:
    # + 0 makes −0 and 0 one: which of two equal zeros minimum returns depends on their order.
    return np.stack([np.minimum(a[0], b[0]), np.maximum(a[1], b[1])]) + np.float32(0)


def filled(a: Float32[np.ndarray, "n d_mlp"], b: Float32[np.ndarray, "n d_mlp"]) -> Float32[np.ndarray, "n d_mlp"]:
    """Rows that one of two shards has seen (the other has NaN there)."""
    return np.where(np.isnan(a), b, a)


def merged_extremes(a: LayerState, b: LayerState, name: str, sign: float) -> dict[str, Any]:
    """The best of two lists of different sequences, by sign·value, ties by place; exact values go with them."""
    names = [name, f"{name}_at", f"{name}_exact", f"{name}_exact_at"]
    value, at, exact, exact_at = (np.concatenate([getattr(a, n), getattr(b, n)], axis=1) for n in names)
    kept = getattr(a, name).shape[1]
    order = np.lexsort((at, -sign * value), axis=1)[:, :kept]
    values = [np.take_along_axis(array, order, axis=1) for array in (value, at)]
    exacts = [np.take_along_axis(x, order, axis=1) if x.shape[1] else x for x in (exact, exact_at)]
    return dict(zip(names, [*values, *exacts], strict=True))


@dataclass(eq=False)
class ScanState:
    """A scan so far.

    Attributes:
        settings: of the scan.
        layers: one :class:`LayerState` a layer.
        sequences, draws: the random sample, see :mod:`.sampling`; ``draw_positions`` is −1 where not yet seen.
        bucket_counts, token_counts: content tokens by position bucket and by frequent token.
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
    ) -> ScanState:
        return ScanState(
            settings=settings,
            layers=[LayerState.empty(width, settings, len(sequences), len(draws)) for width in widths],
            sequences=sequences,
            draws=draws,
            draw_positions=np.full(len(draws), -1, np.int32),
            bucket_counts=np.zeros(settings.n_buckets, np.int64),
            token_counts=np.zeros(len(settings.frequent), np.int64),
        )

    def forget_exact(self) -> None:
        """Let every candidate be run again: their lists are about to change."""
        for layer in self.layers:
            for side in ("high", "low"):
                getattr(layer, f"{side}_exact").fill(np.nan)
                getattr(layer, f"{side}_exact_at").fill(NOWHERE)

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


LAYER_ARRAYS = tuple(f.name for f in fields(LayerState))
SHARED_ARRAYS = ("sequences", "draws", "draw_positions", "bucket_counts", "token_counts", "done")
