"""Histogram bins that need no calibration: four to each doubling, both signs, the same for every neuron and model.

The bin is read off a float32's exponent and its two highest fraction bits, so any two histograms can be added.
Magnitudes below 1.25·2⁻⁸ share the innermost bin of their sign, those from 1.75·2⁷ the outermost.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64, Int64

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
