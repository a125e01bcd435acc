"""The geometry of bars on one scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Axis:
    """A scale from logits to 0…1000, the width of every bar's drawing; zero is always on it."""

    low: float
    high: float

    @classmethod
    def over(cls, values: Sequence[float]) -> Axis:
        finite = [value for value in values if math.isfinite(value)]
        low, high = min([0.0, *finite]), max([0.0, *finite])
        return cls(low, high if high > low else low + 1.0)

    def at(self, value: float) -> float:
        return round(1000 * (value - self.low) / (self.high - self.low), 2) if math.isfinite(value) else self.at(0.0)


@dataclass(frozen=True)
class Bar:
    """From ``start`` to ``end``, both in 0…1000, as ``x`` and ``width`` that never vanish."""

    start: float
    end: float
    zero: float
    adds: bool

    @property
    def x(self) -> float:
        return min(self.start, self.end, 997.0)

    @property
    def width(self) -> float:
        return max(abs(self.end - self.start), 3.0)


def bar(axis: Axis, logit: float, before: float = 0.0) -> Bar:
    return Bar(axis.at(before), axis.at(before + logit), axis.at(0.0), logit >= 0)
