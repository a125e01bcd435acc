"""The bin of a value, against which the scan's kernel is tested."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float32, Int64

from ffnmem.scanning.state import OFFSET, SIDE


def bin_of(values: Float32[np.ndarray, "..."]) -> Int64[np.ndarray, "..."]:
    """The bin of each value, as the scan's kernel takes it."""
    bits = np.ascontiguousarray(values).view(np.int32).astype(np.int64)
    magnitude = np.clip(((bits & 0x7FFFFFFF) >> 21) - OFFSET, 0, SIDE - 1)
    return np.where(bits < 0, SIDE - 1 - magnitude, SIDE + magnitude)
