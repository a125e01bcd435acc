"""A neuron's histogram for eyes: fewer bins, and its drawing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import pandas as pd

from ..scanning.neuron import Neuron

DRAWN = 40  # bars of a page's drawing
LISTED = 16  # rows of a text or a table
HEIGHT = 100.0


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


def bins(neuron: Neuron, most: int) -> tuple[Bin, ...]:
    """The neuron's histogram in at most ``most`` bins; its ends are the least and the largest coefficient."""
    return merged(clipped(neuron.histogram, neuron.stats["min"], neuron.stats["max"]), most)


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


@dataclass(frozen=True)
class Column:
    """One bar of the drawing, in 0…1000 × 0…:data:`HEIGHT`."""

    x: float
    width: float
    y: float
    height: float
    fires: bool
    title: str


@dataclass(frozen=True)
class Drawing:
    """A histogram as geometry. ``zero``: where 0 is, in 0…1000; ``lines``: heights of whole powers of ten."""

    columns: tuple[Column, ...]
    lines: tuple[float, ...]
    low: float
    high: float
    zero: float | None
    text: str


def drawing(neuron: Neuron) -> Drawing | None:
    """The coefficient's histogram: heights are densities on a logarithmic scale. None where nothing was counted."""
    found = bins(neuron, DRAWN)
    if not found:
        return None
    low, high = found[0].low, found[-1].high
    span = (high - low) or 1.0
    total = sum(b.count for b in found)
    densities = [b.density for b in found if b.density > 0] or [1.0]
    floor, top = math.log10(min(densities)) - 0.4, math.log10(max(densities))
    scale = HEIGHT / max(top - floor, 1e-9)

    def column(b: Bin) -> Column:
        height = round((math.log10(b.density) - floor) * scale, 2) if b.density else 0.0
        x, end = (round(1000 * (edge - low) / span, 2) for edge in (b.low, b.high))
        title = f"{b.low:.4g} to {b.high:.4g}: {b.count:,} tokens, {b.count / total:.2%}"
        return Column(x, round(end - x, 2), round(HEIGHT - height, 2), height, b.low >= 0, title)

    tens = range(math.ceil(floor), math.floor(top) + 1)
    fires = sum(b.count for b in found if b.low >= 0)
    return Drawing(
        columns=tuple(column(b) for b in found),
        lines=tuple(round(HEIGHT - (ten - floor) * scale, 2) for ten in tens),
        low=low,
        high=high,
        zero=round(1000 * -low / span, 2) if low <= 0 <= high else None,
        text=f"Histogram of the coefficient from {low:.3g} to {high:.3g}; {fires / total:.1%} of tokens at 0 or above",
    )
