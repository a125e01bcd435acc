"""``ScanState``: all that a scan knows so far, as plain arrays; two states of one scan add up in any order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float, Float32, Float64, Int64

from ..core.neuron_names import ExpertSizes
from ..core.types import CASES
from ..corpus.passes import Statistic
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


# The four sign cases of a gated neuron: the signs of its gate's pre-activation and of its linear part.
#
# A gated neuron's coefficient is act(gate·x)·(key·x). Where the activation keeps the sign of what it is given (SiLU,
# GELU), the coefficient is positive if both signs agree: the largest coefficients then mix two cases that mean
# different things, and so do the smallest (Gerstner and Schütze 2025).

COLUMNS = ("gate_pos_linear_pos", "gate_pos_linear_neg", "gate_neg_linear_pos", "gate_neg_linear_neg")
"""What the names of the cases' statistics end in."""

PARTS = ("gate", "linear")
"""Of an example: the gate's pre-activation and the linear part, which the activation leaves as it is."""


def case_names(gate: Float[np.ndarray, " n"], linear: Float[np.ndarray, " n"]) -> list[str]:
    """The case of each pair of numbers in words."""
    index = 2 * ~(gate > 0) + ~(linear > 0)
    return [CASES[one] for one in index.tolist()]


NOWHERE = np.iinfo(np.int64).max  # the place of an empty slot: behind every real one
POSITION_BITS = 20


def place_of(sequence: Any, position: Any) -> Any:
    """A sequence and a position in one integer that sorts by sequence, then position."""
    return (sequence << POSITION_BITS) | position


def sequence_of(place: Any) -> Any:
    return place >> POSITION_BITS


def position_of(place: Any) -> Any:
    return place & ((1 << POSITION_BITS) - 1)


# The lists of kept sequences: of the largest and the smallest coefficients, and of gated neurons of the largest
# magnitudes of each sign case. An empty slot is infinite, or of a case 0, and nowhere.

SIDES = ("top", "bottom", *CASES)
EXTREMES = 2  # of the sides: the others are cases
SIGNS = np.array([1, -1, 0, 0, 0, 0], np.float32)
LISTS = ("kept", "kept_at", "exact", "exact_at", "parts")


def strengths(values: Float32[np.ndarray, "sides d_mlp n"]) -> Float32[np.ndarray, "sides d_mlp n"]:
    """What lists are ordered by, the largest first: the values, their opposites, or of a case their magnitudes."""
    signs = SIGNS[: len(values), None, None]
    return np.where(signs == 0, np.abs(values), signs * values)


# What a state consists of.


def join_ranges(a: Float32[np.ndarray, "ends d_mlp"], b: Float32[np.ndarray, "ends d_mlp"]) -> Any:
    """Ranges, least and largest by turns, that hold both."""
    joined = np.empty_like(a)
    joined[::2], joined[1::2] = np.minimum(a[::2], b[::2]), np.maximum(a[1::2], b[1::2])
    return joined + np.float32(0)  # makes −0 and 0 one: which of two equal zeros minimum returns depends on their order


def fill_unseen(a: Float32[np.ndarray, "..."], b: Float32[np.ndarray, "..."]) -> Float32[np.ndarray, "..."]:
    """What one of two shards has seen (the other has NaN there)."""
    return np.where(np.isnan(a), b, a)


@dataclass(frozen=True)
class Array:
    """An array of a state.

    Attributes:
        dtype, axes: of it; an axis is a number or a name, see :func:`sizes_of`.
        join: how those of two shards become one; None for lists, see :func:`merge_lists`.
        empty: what it holds where nothing was seen; of an array the first rows.
    """

    dtype: str
    axes: str
    join: Callable[[Any, Any], Any] | None = np.add
    empty: Any = 0

    def shape(self, sizes: Mapping[str, int]) -> list[int]:
        """With the sizes of axes."""
        return [int(size) if size.isdigit() else sizes[size] for size in self.axes.split()]

    def make(self, sizes: Mapping[str, int]) -> np.ndarray:
        """The array before anything was seen."""
        array = np.empty(self.shape(sizes), self.dtype)
        array[...] = self.empty[: len(array)] if isinstance(self.empty, np.ndarray) else self.empty
        return array


SPAN = np.array([[np.inf], [-np.inf]] * 2, np.float32)
NO_VALUE = np.array([-np.inf, np.inf, 0, 0, 0, 0], np.float32)[:, None, None]
LAYER = {
    # Of pre-activations, coefficients, and of gated neurons linear parts: the powers' sums, and coefficients by case.
    "sums": Array("int64", "3 sums d_mlp", exact_sums.merged),
    "counts": Array("int64", "counts d_mlp"),  # firings, zeros, and of gated neurons tokens by case
    "pre_range": Array("float32", "ends d_mlp", join_ranges, SPAN),  # and of gated neurons that of linear parts
    "range": Array("float32", "2 d_mlp", join_ranges, SPAN),
    "histogram": Array("int64", "d_mlp bins"),
    "bucket_sums": Array("int64", "buckets d_mlp"),
    "token_sums": Array("int64", "frequent d_mlp"),
    # Whose each neuron is, ascending, shared experts as one behind the others; and the content tokens that were routed
    # there, by position bucket and by frequent token. A dense layer is one expert that every token is routed to.
    "expert": Array("int32", "d_mlp", lambda a, _: a),
    "bucket_counts": Array("int64", "experts buckets"),
    "token_counts": Array("int64", "experts frequent"),
    # The lists, best first: coefficients and their places; after a half-precision pass also the same sequences' float32
    # extremes, NaN until run again; and of gated neurons gate and linear part there.
    "kept": Array("float32", "sides d_mlp kept", None, NO_VALUE),
    "kept_at": Array("int64", "sides d_mlp kept", None, NOWHERE),
    "exact": Array("float32", "sides d_mlp exact", None, np.nan),
    "exact_at": Array("int64", "sides d_mlp exact", None, NOWHERE),
    "parts": Array("float32", "sides parts d_mlp kept", None, np.nan),
    # The random sample's largest and smallest coefficients and their positions, and its random positions; NaN where
    # a neuron's expert was not routed to.
    "sample": Array("float32", "2 sample d_mlp", fill_unseen, np.nan),
    "sample_at": Array("int32", "2 sample d_mlp", np.maximum, -1),
    "sample_parts": Array("float32", "2 parts sample d_mlp", fill_unseen, np.nan),
    "draw": Array("float32", "draws d_mlp", fill_unseen, np.nan),
    "draw_parts": Array("float32", "parts draws d_mlp", fill_unseen, np.nan),
    # What the FFN read at random positions, in random order; NaN where not yet seen.
    "inputs": Array("float32", "inputs d_model", fill_unseen, np.nan),
}
"""The arrays of a layer."""
SHARED: dict[str, Callable[[Any, Any], Any]] = {
    "sequences": lambda a, _: a,
    "draws": lambda a, _: a,
    "draw_positions": np.maximum,
    "totals": np.add,
    "done": np.union1d,
}
"""How the other arrays are put together."""


def sizes_of(
    settings: ScanSettings,
    d_mlp: int,
    experts: int,
    sample: int,
    draws: int,
    gated: bool,
    inputs: tuple[int, int],
) -> dict[str, int]:
    """The sizes of the axes that :data:`LAYER` names."""
    gate = {"sides": 6, "parts": 2, "sums": 16, "counts": 6, "ends": 4}
    return {
        **(gate if gated else {"sides": EXTREMES, "parts": 0, "sums": 8, "counts": 2, "ends": 2}),
        "d_mlp": d_mlp,
        "experts": experts,
        "kept": settings.candidates,
        "exact": settings.candidates if settings.rescored else 0,
        "bins": BINS,
        "buckets": settings.n_buckets,
        "frequent": len(settings.frequent),
        "sample": sample,
        "draws": draws,
        "inputs": inputs[0],
        "d_model": inputs[1],
    }


class LayerState:
    """The arrays of one layer, those of :data:`LAYER`, as attributes; each is read when it is first asked for.

    Args:
        read: gives an array of a state by its name. layer: which.
    """

    def __init__(self, read: Callable[[str], np.ndarray], layer: int) -> None:
        self.read, self.layer = read, layer

    def __getattr__(self, name: str) -> Any:
        if name not in LAYER:
            raise AttributeError(name)
        array = self.__dict__[name] = self.read(f"{self.layer}.{name}")
        return array

    @property
    def gated(self) -> bool:
        """Whether its neurons have gates."""
        return len(self.kept) > EXTREMES

    @property
    def routed(self) -> Int64[np.ndarray, " experts"]:
        """Content tokens that were routed to each expert; all of them in a dense layer, and to shared experts."""
        return self.bucket_counts.sum(1)

    @cached_property
    def ranked(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The kept values and their places, best first, ``[sides, d_mlp, kept]``, and of gated neurons gate and linear
        part there ``[sides, 2, d_mlp, kept]``: as scanned, or ranked again by their float32 values. Places are NOWHERE
        where there are fewer."""
        if not self.exact.shape[-1]:
            return self.kept, self.kept_at, self.parts
        worst = np.where(np.isnan(self.exact), np.inf, -strengths(self.exact))
        order = np.lexsort((self.exact_at, worst), axis=-1)
        return take_slots(self.exact, order), take_slots(self.exact_at, order), take_slots(self.parts, order)

    def forget_exact(self) -> None:
        """Let every candidate be run again."""
        self.exact.fill(np.nan)
        self.exact_at.fill(NOWHERE)
        self.parts.fill(np.nan)


class ScanState(Statistic):
    """A scan so far.

    Attributes:
        settings: of the scan.
        arrays: those of each layer, "0.sums", "0.counts", …, see :data:`LAYER`; and of all

            sequences, draws: the random sample, see :mod:`ffnmem.scanning.reduction`. draw_positions: −1 where not
            yet seen.
            totals: content tokens and sequences seen.
            done: the units that were scanned whole, ascending.
    """

    def __init__(self, settings: ScanSettings, arrays: Mapping[str, np.ndarray]) -> None:
        super().__init__(arrays)
        self.settings = settings

    @staticmethod
    def empty(
        settings: ScanSettings,
        widths: list[int],
        sequences: Int64[np.ndarray, " sample"],
        draws: Int64[np.ndarray, " draws"],
        gated: bool = False,
        experts: Sequence[ExpertSizes | None] = (),
        inputs: tuple[int, int] = (0, 0),
    ) -> ScanState:
        """Before anything was seen. ``inputs``: at how many positions the FFNs' inputs are kept, and d_model."""
        arrays: dict[str, np.ndarray] = {}
        for layer, width in enumerate(widths):
            sizes = (experts[layer] if experts else None) or ExpertSizes(1, width, 0)
            count = sizes.experts + bool(sizes.shared)
            axes = sizes_of(settings, width, count, len(sequences), len(draws), gated, inputs)
            arrays |= {f"{layer}.{name}": array.make(axes) for name, array in LAYER.items()}
            arrays[f"{layer}.expert"][:] = np.minimum(np.arange(width) // sizes.neurons, sizes.experts)
        return ScanState(
            settings,
            {
                **arrays,
                "sequences": sequences,
                "draws": draws,
                "draw_positions": np.full(len(draws), -1, np.int32),
                "totals": np.zeros(2, np.int64),
                "done": np.empty(0, np.int64),
            },
        )

    @property
    def layers(self) -> list[LayerState]:
        count = sum(name.endswith(".kept") for name in self.arrays)
        return [LayerState(self.arrays.__getitem__, layer) for layer in range(count)]

    @property
    def tokens(self) -> int:
        """Content tokens seen."""
        return int(self.arrays["totals"][0])

    @property
    def done(self) -> Int64[np.ndarray, " units"]:
        return self.arrays["done"]

    def mark_done(self, units: list[int]) -> None:
        """Note that units were scanned whole."""
        self.arrays["done"] = np.union1d(self.done, np.array(units, np.int64))

    def forget_exact(self) -> None:
        """Let every candidate be run again: their lists are about to change. Of a float32 pass all is exact."""
        if self.settings.rescored:
            for layer in self.layers:
                layer.forget_exact()

    def merge(self, other: ScanState) -> None:
        """Take in another; its units must be different ones (the caller checks that, and that the settings agree)."""
        lists = [merge_lists(*both) for both in zip(self.layers, other.layers, strict=True)]
        for name, array in self.arrays.items():
            join = SHARED.get(name) or LAYER[name.partition(".")[2]].join
            if join is not None:
                self.arrays[name] = join(array, other.arrays[name])
        for layer, arrays in enumerate(lists):
            self.arrays |= {f"{layer}.{name}": array for name, array in arrays.items()}


def merge_lists(a: LayerState, b: LayerState) -> dict[str, np.ndarray]:
    """The best of both layers' lists, of different sequences, ties by place; exact values and parts go with them."""
    both = {name: np.concatenate([getattr(a, name), getattr(b, name)], axis=-1) for name in LISTS}
    order = np.lexsort((both["kept_at"], -strengths(both["kept"])), axis=-1)[..., : a.kept.shape[-1]]
    return {name: take_slots(array, order) if array.shape[-1] else array for name, array in both.items()}


def take_slots(array: np.ndarray, order: Int64[np.ndarray, "sides d_mlp k"]) -> np.ndarray:
    """Some slots of each list, of an array ``[sides, d_mlp, kept]`` or ``[sides, parts, d_mlp, kept]``."""
    return np.take_along_axis(array, order if array.ndim == order.ndim else order[:, None], axis=-1)
