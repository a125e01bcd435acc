"""What a batch leaves behind of gated neurons: sign cases, linear parts, and lists of examples that carry both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Bool, Float32, Int32, Int64

from . import exact_sums, gate_kernels, kernels
from .cases import CASES
from .state import EXTREMES, GateState, LayerState, Ranking, place_of, strengths

DENSE = 32  # where more than one in so many neurons may enter, a row is read as a whole
Places = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Positions of the extremes of whole rows: of (rows, extremes of all rows)."""


@dataclass(frozen=True, eq=False)
class GatedBatch:
    """One layer of a batch of gated neurons.

    Attributes:
        gate, linear, coefficients: ``[tokens, d_mlp]`` in float32: the gate's pre-activation, the linear part, and the
            activation of the one times the other.
        mask: which tokens are content. pos: tokens a row.
        best, best_at: by case, row and neuron, the largest magnitude of a coefficient and its position; filled by
            :meth:`reduce`.
    """

    gate: Float32[np.ndarray, "tokens d_mlp"]
    linear: Float32[np.ndarray, "tokens d_mlp"]
    coefficients: Float32[np.ndarray, "tokens d_mlp"]
    mask: Bool[np.ndarray, " tokens"]
    pos: int
    best: Float32[np.ndarray, "4 rows d_mlp"] = field(init=False)
    best_at: Int32[np.ndarray, "4 rows d_mlp"] = field(init=False)
    case_sums: np.ndarray = field(init=False)
    sums: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        tokens, width = self.coefficients.shape
        shape = (len(CASES), tokens // self.pos, width)
        object.__setattr__(self, "best", np.empty(shape, np.float32))
        object.__setattr__(self, "best_at", np.zeros(shape, np.int32))
        object.__setattr__(self, "case_sums", np.zeros((len(CASES), width)))
        object.__setattr__(self, "sums", np.zeros((4, width)))

    def reduce(self, start: int, stop: int, state: GateState) -> None:
        """Count and sum some neurons; the sums are added by :meth:`finish`."""
        gate_kernels.cases(
            *(self.gate, self.linear, self.coefficients, self.mask, self.pos, start, stop),
            *(state.case_counts, self.case_sums, self.sums, state.linear_range, self.best, self.best_at),
        )

    def look(self) -> None:
        """Fill ``best`` alone."""
        width = self.coefficients.shape[1]
        counts, span = np.zeros((len(CASES), width), np.int64), np.zeros((2, width), np.float32)
        gate_kernels.cases(
            *(self.gate, self.linear, self.coefficients, self.mask, self.pos, 0, width),
            *(counts, self.case_sums, self.sums, span, self.best, self.best_at),
        )

    def finish(self, state: GateState, where: str) -> None:
        """Add the sums of all neurons. Raises InputError if they are NaN or infinite."""
        exact_sums.add(state.linear_sums, self.sums, where)
        exact_sums.add(state.case_sums, self.case_sums, where)
        state.linear_range += np.float32(0)  # no −0, as where ranges are joined

    def parts(
        self, tokens: Int64[np.ndarray, "*places"], neurons: Int64[np.ndarray, "*places"]
    ) -> Float32[np.ndarray, "2 ..."]:
        """Gate and linear part of some neurons at some tokens."""
        return np.stack([self.gate[tokens, neurons], self.linear[tokens, neurons]])

    def positions(
        self,
        side: str,
        rows: Int64[np.ndarray, " n"],
        neurons: Int64[np.ndarray, " n"],
        extreme: Float32[np.ndarray, " n"],
    ) -> Int64[np.ndarray, " n"]:
        """Where the extremes of a side stand: coefficients of "high" and "low", magnitudes of a case."""
        if side in EXTREMES:
            return kernels.positions_of(self.coefficients, self.mask, self.pos, rows, neurons, extreme)
        return self.best_at[CASES.index(side), rows, neurons].astype(np.int64)

    def keep(
        self,
        state: LayerState,
        sequences: Int64[np.ndarray, " rows"],
        high: Float32[np.ndarray, "rows d_mlp"],
        low: Float32[np.ndarray, "rows d_mlp"],
        places: Places,
        exact: bool,
    ) -> None:
        """Let the batch's sequences compete for the kept ones of every side; parts are noted where they are exact."""
        for side, extreme in zip(state.sides, (high, low, *self.best), strict=True):
            ranking = state.ranking(side)
            sign, is_case = ranking.sign, side not in EXTREMES
            there = extreme > 0 if is_case else np.isfinite(extreme)
            may_enter = there & (strengths(extreme, sign) >= strengths(ranking.value[:, -1], sign))
            dense = np.zeros(len(extreme), bool) if is_case else may_enter.sum(1) > extreme.shape[1] // DENSE
            many = np.flatnonzero(dense)
            at = places(many, extreme)
            for index, row in enumerate(many.tolist()):
                neurons = np.flatnonzero(may_enter[row])
                rows = np.full(len(neurons), row)
                self.insert(ranking, sequences, rows, neurons, at[index, neurons].astype(np.int64), exact)
            rows, neurons = np.nonzero(may_enter & ~dense[:, None])
            found = self.positions(side, rows, neurons, extreme[rows, neurons])
            self.insert(ranking, sequences, rows, neurons, found, exact)

    def insert(
        self,
        ranking: Ranking,
        sequences: Int64[np.ndarray, " rows"],
        rows: Int64[np.ndarray, " n"],
        neurons: Int64[np.ndarray, " n"],
        at: Int64[np.ndarray, " n"],
        exact: bool,
    ) -> None:
        assert ranking.parts is not None
        tokens = rows * self.pos + at
        brought = self.parts(tokens, neurons) if exact else np.full((2, len(rows)), np.nan, np.float32)
        values, places = self.coefficients[tokens, neurons], place_of(sequences[rows], at)
        gate_kernels.insert(ranking.value, ranking.at, ranking.parts, neurons, values, places, brought, ranking.sign)
