"""The inner loops of gated neurons against plain NumPy, however the neurons are shared out."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffnmem.scanning import kernels
from ffnmem.scanning.state import NOWHERE

from ..helpers import allclose

ROWS, POS = 3, 6
SPECIAL = np.array([0.0, -0.0, 1.0, -1.0], np.float32)


def batch(width: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Gates, linear parts, coefficients and a mask; the last row has no content, the second a hole; many ties."""
    random = np.random.default_rng(width)
    gate, linear, m = random.normal(size=(3, ROWS * POS, width)).astype(np.float32)
    for array in (gate, linear, m):
        array[random.random(array.shape) < 0.4] = random.choice(SPECIAL)
    m[random.random(m.shape) < 0.5] = -1.0
    mask = np.zeros((ROWS, POS), bool)
    mask[0, 1:] = mask[1, [0, 1, 3]] = True
    return gate, linear, m, mask.reshape(-1)


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("width", [1, 7, 1600])
def test_cases(width: int, parts: int) -> None:
    """A position that counts twice or not at all, a pad, the second of two equal positions."""
    gate, linear, m, mask = batch(width)
    counts, sums, case_sums = np.ones((4, width), np.int64), np.zeros((4, width)), np.zeros((4, width))
    span = np.repeat(np.array([[np.inf], [-np.inf]], np.float32), width, axis=1)
    best, at = np.empty((4, ROWS, width), np.float32), np.zeros((4, ROWS, width), np.int32)
    bounds = np.linspace(0, width, parts + 1).astype(int).tolist()
    for a, b in pairwise(bounds):
        kernels.cases(gate, linear, m, mask, POS, a, b, counts, case_sums, sums, span, best, at)
    inside = mask[:, None]
    exact = linear[mask].astype(np.float64)
    for power in range(4):
        assert allclose(sums[power], (exact ** (power + 1)).sum(0), 1e-12)
    assert (span == np.stack([exact.min(0), exact.max(0)])).all()
    signs = [(gate > 0, linear > 0), (gate > 0, linear <= 0), (gate <= 0, linear > 0), (gate <= 0, linear <= 0)]
    for k, (g, u) in enumerate(signs):
        here = g & u & inside
        assert (counts[k] == 1 + here.sum(0)).all()
        assert allclose(case_sums[k], np.where(here, m, 0).astype(np.float64).sum(0), 1e-12)
        size = np.where(here, np.abs(m), kernels.NONE).reshape(ROWS, POS, width)
        assert (best[k] == size.max(1)).all()
        found = best[k] >= 0
        assert (at[k] == size.argmax(1))[found].all()
    assert (counts.sum(0) == 4 + mask.sum()).all()


@given(
    st.lists(st.tuples(st.sampled_from([-1.0, 0.0, 0.5, 1.0]), st.integers(0, 99)), unique_by=lambda c: c[1]),
    st.integers(1, 6),
    st.sampled_from([1.0, -1.0, 0.0]),
)
def test_insert_is_a_sort_that_takes_its_parts_along(
    candidates: list[tuple[float, int]], size: int, sign: float
) -> None:
    """A gate of one example beside the coefficient of another."""
    empty = -sign * np.inf if sign else 0.0
    kept, places = np.full((2, size), empty, np.float32), np.full((2, size), NOWHERE)
    parts = np.full((2, 2, size), np.nan, np.float32)
    values = np.array([value for value, _ in candidates], np.float32)
    at = np.array([place for _, place in candidates], np.int64)
    brought = np.stack([at + 0.5, -values]).astype(np.float32)
    kernels.insert(kept, places, parts, np.ones(len(at), np.int64), values, at, brought, sign)
    best = sorted(candidates, key=lambda c: (-sign * c[0] if sign else -abs(c[0]), c[1]))[:size]
    n = len(best)
    assert kept[1, :n].tolist() == [value for value, _ in best]
    assert places[1, :n].tolist() == [place for _, place in best]
    assert parts[0, 1, :n].tolist() == [place + 0.5 for _, place in best]
    assert parts[1, 1, :n].tolist() == [-value for value, _ in best]
    assert np.isnan(parts[:, 1, n:]).all()
    assert np.isnan(parts[:, 0]).all()
    assert (places[1, n:] == NOWHERE).all()
