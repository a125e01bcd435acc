"""A neuron's histogram for eyes: fewer bins, none over zero."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import pandas as pd


@dataclass(frozen=True)
class Bin:
    """How many tokens had a coefficient from ``low`` up to ``high``."""

    low: float
    high: float
    count: int

    @property
    def density(self) -> float:
        """Tokens per unit of the coefficient, so that wide bins look no fuller than narrow ones."""
        return self.count / (self.high - self.low) if self.high > self.low else 0.0


def clipped(histogram: pd.DataFrame, least: float, largest: float) -> list[Bin]:
    """The bins of :meth:`ffnmem.Store.histogram`, the outer ones as wide as what was seen in them."""
    found = [Bin(float(low), float(high), int(count)) for low, high, count in histogram.itertuples(index=False)]
    if not found or not any(b.count for b in found):
        return []
    first, last = found[0], found[-1]
    # A lower edge may be the least value itself; then the bin keeps its width, where it has one.
    if first.low < least < first.high:
        found[0] = Bin(least, first.high, first.count)
    if found[-1].low < largest < last.high:
        found[-1] = Bin(found[-1].low, largest, last.count)
    return [b for b in found if math.isfinite(b.low) and math.isfinite(b.high)]


def merged(found: Sequence[Bin], most: int) -> tuple[Bin, ...]:
    """At most ``most`` (two or more) bins: the neighbours that are narrowest together are joined, but never over zero.

    Near zero bins are many and narrow, so this ends in bins of about one width.
    """
    result = list(found)
    while len(result) > most:
        widths = [
            (after.high - before.low, index)
            for index, (before, after) in enumerate(pairwise(result))
            if before.high != 0 and after.low != 0
        ]
        if not widths:
            break
        index = min(widths)[1]
        low, high = result[index : index + 2]
        result[index : index + 2] = [Bin(low.low, high.high, low.count + high.count)]
    return tuple(result)


def log_share(count: int, largest: int) -> float:
    """A bar's length from 0 to 1 on a logarithmic scale on which a single token still shows."""
    return math.log1p(count) / math.log1p(largest) if count else 0.0
