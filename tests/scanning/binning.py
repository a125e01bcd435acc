"""The bin of a value by the histogram's edges, against which the scan's kernel is tested."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float32, Int64

from ffnmem.scanning.state import BINS, edges

EDGES = edges()


def bin_of(values: Float32[np.ndarray, "..."]) -> Int64[np.ndarray, "..."]:
    """Half open away from zero on both sides; −0 belongs to the negative bins."""
    above, below = (np.searchsorted(EDGES, values.astype(np.float64), side) - 1 for side in ("right", "left"))
    return np.where(np.signbit(values), below, above).clip(0, BINS - 1)
