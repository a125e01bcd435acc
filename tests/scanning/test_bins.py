"""Histogram bins: every float32 has one, and it is the right one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffnmem.scanning.state import BINS, PER_DOUBLING, SIDE, edges

from .binning import bin_of

floats = st.floats(width=32, allow_nan=False)
EDGES = edges()


def inside(value: float, index: int) -> bool:
    """Half open away from zero on both sides; −0 belongs to the negative bins."""
    low, high = EDGES[index : index + 2]
    return low <= value < high if index >= SIDE else low < value <= high


def test_edges() -> None:
    """Bins that overlap or leave a gap would count a value twice or never."""
    assert len(EDGES) == BINS + 1
    assert (np.diff(EDGES) > 0).all()
    assert (-EDGES[::-1] == EDGES).all()
    assert EDGES[0] == -np.inf
    assert EDGES[SIDE] == 0
    ratios = EDGES[SIDE + 1 + PER_DOUBLING : -1] / EDGES[SIDE + 1 : -1 - PER_DOUBLING]
    assert (ratios == 2).all()


@given(floats)
def test_a_value_lies_in_its_bin(value: float) -> None:
    if np.isinf(value):
        return
    assert inside(value, int(bin_of(np.float32(value)[None])[0]))


@pytest.mark.parametrize("power", range(-12, 13))
def test_powers_of_two_and_their_neighbours(power: int) -> None:
    """The bin is read off the bits, so that a slip would show at a change of the exponent."""
    exact = np.float32(2.0**power)
    values = np.array([np.nextafter(exact, np.float32(0)), exact, np.nextafter(exact, np.float32(np.inf))])
    for value in np.concatenate([values, -values]).astype(np.float32):
        assert inside(value, int(bin_of(value[None])[0]))


def test_zeros_denormals_and_the_largest() -> None:
    tiny = np.float32(1e-42)
    found = bin_of(np.array([-np.inf, -3e38, -tiny, -0.0, 0.0, tiny, 3e38, np.inf], np.float32))
    assert found.tolist() == [0, 0, SIDE - 1, SIDE - 1, SIDE, SIDE, BINS - 1, BINS - 1]
