"""Histogram bins: every float32 has one, and it is the right one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffnmem.scanning.state import BINS, PER_DOUBLING, SIDE, edges, quantile

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


@given(st.lists(floats, min_size=1, max_size=40), st.floats(0, 1))
def test_a_quantile_lies_in_the_true_ones_bin(values: list[float], share: float) -> None:
    """A quantile from the histogram is off by less than its bin, or by nothing to speak of."""
    ordered = np.array(values, np.float32)
    ordered = ordered[np.lexsort((ordered, bin_of(ordered)))]  # −0 before 0
    counts = np.bincount(bin_of(ordered), minlength=BINS)
    assert counts.sum() == len(values)
    found = quantile(counts, share)
    # Between two order statistics any value will do: the histogram may take either one's bin.
    rank = share * len(values)
    first, last = int(np.clip(np.ceil(rank) - 1, 0, len(values) - 1)), int(np.clip(np.floor(rank), 0, len(values) - 1))
    low, high = EDGES[bin_of(ordered[[first]])[0]], EDGES[bin_of(ordered[[last]])[0] + 1]
    assert low <= found <= high
    assert np.isfinite(found)


def test_quantiles_ascend_and_none_of_nothing() -> None:
    values = np.random.default_rng(0).normal(size=999).astype(np.float32)
    counts = np.bincount(bin_of(values), minlength=BINS)
    found = [quantile(counts, share) for share in np.linspace(0, 1, 41)]
    assert found == sorted(found)
    assert abs(found[20] - np.median(values)) < 0.02
    assert np.isnan(quantile(np.zeros(BINS, np.int64), 0.5))
