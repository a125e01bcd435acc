"""The inner loops, compiled and in NumPy: the same bits, in one order of sums."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffnmem.vocabulary import kernels, uncompiled
from ffnmem.vocabulary.uncompiled import LANES

BOTH = pytest.mark.parametrize("loops", [kernels, uncompiled], ids=["compiled", "NumPy"])
SPECIAL = (0.0, -0.0, 1.0, -1.0, 1e-42, 3e38, np.inf, -np.inf)


def product(loops: ModuleType, vector: np.ndarray, row: np.ndarray) -> Any:
    """The canonical score of one token."""
    score = np.empty((1, 1), vector.dtype)
    loops.score_rows(vector[None], row[None], 0, 1, score)
    return score[0, 0]


@BOTH
@pytest.mark.parametrize("width", [1, 63, 64, 65, 200])
def test_the_canonical_product_is_exact(loops: ModuleType, width: int) -> None:
    """Of float32 factors, float64 sums are far better than float32 needs; a lost remainder or lane would show."""
    vector, row = np.random.default_rng(width).standard_normal((2, width)).astype(np.float32)
    exact = math.fsum(float(a) * float(b) for a, b in zip(vector, row, strict=True))
    assert abs(product(loops, vector.astype(np.float64), row.astype(np.float64)) - exact) < 1e-13
    assert product(loops, vector, row) == np.float32(exact)


@BOTH
def test_the_canonical_products_order_is_fixed(loops: ModuleType) -> None:
    """In float64 the order of a sum shows: 64 lanes, each in order, then halved. Another one gives other last bits."""
    rng = np.random.default_rng(1)
    vector, row = rng.standard_normal((2, 256)) * 10.0 ** rng.integers(-8, 8, (2, 256))
    products = (vector * row).reshape(4, LANES)
    lanes = ((products[0] + products[1]) + products[2]) + products[3]
    while len(lanes) > 1:
        lanes = lanes[: len(lanes) // 2] + lanes[len(lanes) // 2 :]
    assert product(loops, vector, row) == lanes[0]


def same(one: np.ndarray, other: np.ndarray) -> bool:
    """To the bit, but for which of the many NaN one is."""
    return np.array_equal(one, other, equal_nan=True) and bool((np.signbit(one) == np.signbit(other))[one == 0].all())


@given(st.integers(0, 2**32), st.integers(1, 200), st.sampled_from((np.float32, np.float64)), st.booleans())
def test_both_have_the_same_bits(seed: int, width: int, dtype: Any, special: bool) -> None:
    """Numbers of all sizes, in which every last bit of a sum depends on its order; more tokens than vectors, fewer."""
    rng = np.random.default_rng(seed)
    rows = (rng.standard_normal((10, width)) * 10.0 ** rng.integers(-6, 6, (10, width))).astype(dtype)
    if special:
        rows = np.where(rng.random(rows.shape) < 0.3, rng.choice(SPECIAL, rows.shape).astype(dtype), rows)
    for vectors, tokens in ((rows[:3], rows[3:]), (rows[3:], rows[:3])):
        scores, lengths = np.full((2, len(vectors), len(tokens)), 7, dtype), np.full((2, len(vectors)), 7.0)
        for place, loops in enumerate((kernels, uncompiled)):
            loops.score_rows(vectors, tokens, 1, len(vectors), scores[place])
            loops.norms(vectors, 1, len(vectors), lengths[place])
        assert same(*scores)
        assert same(*lengths)
        assert (scores[:, 0] == 7).all(), "a row outside was written"
        if not special:
            assert np.allclose(lengths[0, 1:], np.linalg.norm(vectors[1:].astype(np.float64), axis=1), rtol=1e-12)
