"""What tests of a scan's state share: settings, a comparison to the bit, the bin of a value."""

from __future__ import annotations

from typing import Any

import numpy as np

from ffnmem.scanning.settings import ScanSettings
from ffnmem.scanning.state import BINS, ScanState, edges

D_MODEL = 6


def settings(**changes: Any) -> ScanSettings:
    base: dict[str, Any] = {
        "context": 16,
        "bos": 99,
        "special": (),
        "dtype": "float32",
        "batch_tokens": 64,
        "seed": 0,
        "k": 3,
        "sample": 4,
        "draws": 3,
        "frequent": (7, 2),
    }
    return ScanSettings(**{**base, **changes})


def difference(a: ScanState, b: ScanState) -> list[str]:
    """The names of the arrays that are not the same in both, bit for bit."""
    assert a.arrays.keys() == b.arrays.keys()
    return [
        name
        for name, array in a.arrays.items()
        if (array.dtype, array.shape, array.tobytes())
        != (b.arrays[name].dtype, b.arrays[name].shape, b.arrays[name].tobytes())
    ]


def bin_of(values: np.ndarray) -> np.ndarray:
    """The bin of each value by the histogram's edges, half open away from zero; −0 is negative."""
    above, below = (np.searchsorted(edges(), values.astype(np.float64), side) - 1 for side in ("right", "left"))
    return np.where(np.signbit(values), below, above).clip(0, BINS - 1)
