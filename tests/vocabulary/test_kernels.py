"""The compiled loops against NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffnmem.vocabulary.kernels import chunk_ends, collect, dot, norms, rank, score_rows
from ffnmem.vocabulary.scoring import KEYS
from ffnmem.vocabulary.uncompiled import LANES


@pytest.mark.parametrize("width", [1, 63, 64, 65, 200])
def test_the_canonical_product_is_exact(width: int) -> None:
    """Of float32 factors, float64 sums are far better than float32 needs; a lost remainder or lane would show."""
    rng = np.random.default_rng(width)
    vector, row = rng.standard_normal((2, width)).astype(np.float32)
    exact = math.fsum(float(a) * float(b) for a, b in zip(vector, row, strict=True))
    found = dot(vector.astype(np.float64), row, np.empty(LANES))
    assert abs(found - exact) < 1e-13
    assert np.float32(found) == np.float32(exact)


def test_the_canonical_products_order_is_fixed() -> None:
    """In float64 the order of a sum shows: 64 lanes, each in order, then halved. Another one gives other last bits."""
    rng = np.random.default_rng(1)
    vector, row = rng.standard_normal((2, 256)) * 10.0 ** rng.integers(-8, 8, (2, 256))
    products = (vector * row).reshape(4, LANES)
    lanes = ((products[0] + products[1]) + products[2]) + products[3]
    while len(lanes) > 1:
        lanes = lanes[: len(lanes) // 2] + lanes[len(lanes) // 2 :]
    assert dot(vector, row, np.empty(LANES)) == lanes[0]


@pytest.mark.parametrize("columns", [16, 50, 129])
def test_chunk_ends(columns: int) -> None:
    """A chunk whose end is wrong hides its tokens; the last one may be short."""
    keys = next(k for k in KEYS.values() if k.sign.dtype == np.int32)
    scores = np.random.default_rng(0).standard_normal((3, columns)).astype(np.float32)
    chunks = -(-columns // 16)
    high, low = np.zeros((2, 3, chunks), np.int32)
    chunk_ends(scores.view(np.int32), keys.sign, keys.rest, 16, 0, 3, high, low)
    parts = [scores[:, start : start + 16] for start in range(0, columns, 16)]
    assert (keys.floats(high) == np.stack([part.max(axis=1) for part in parts], axis=1)).all()
    assert (keys.floats(low) == np.stack([part.min(axis=1) for part in parts], axis=1)).all()


@given(st.integers(0, 2**32), st.integers(1, 60))
def test_collect_finds_all_beyond_the_bars(seed: int, room: int) -> None:
    """In order, at both ends, and −1 instead of a list that was cut short."""
    keys = next(k for k in KEYS.values() if k.sign.dtype == np.int32)
    scores = np.random.default_rng(seed).standard_normal((2, 70)).astype(np.float32)
    bits = scores.view(np.int32)
    high, low = np.zeros((2, 2, 5), np.int32)
    chunk_ends(bits, keys.sign, keys.rest, 16, 0, 2, high, low)
    ids, counts = np.zeros((2, 2, room), np.int32), np.zeros((2, 2), np.int64)
    least, most = np.array([0.5, 1.5]), np.array([-0.25, -3.0])
    collect(bits, keys.sign, keys.rest, 16, 0, 2, high, low, keys.key(least), keys.key(most), ids, counts)
    for row in range(2):
        for end, hit in enumerate((scores[row] >= least[row], scores[row] <= most[row])):
            expected = np.flatnonzero(hit)
            assert counts[row, end] == (len(expected) if len(expected) <= room else -1)
            if len(expected) <= room:
                assert ids[row, end, : len(expected)].tolist() == expected.tolist()


def test_rank_orders_by_score_then_id() -> None:
    """Equal scores must come in the order of the ids at both ends, and rows without enough candidates be left alone."""
    tokens = np.array([[1.0], [3.0], [2.0], [3.0], [1.0]], np.float32)
    candidates = np.tile(np.arange(5, dtype=np.int32), (2, 2, 1))
    ids, scores = np.full((2, 2, 3), -7, np.int32), np.zeros((2, 2, 3), np.float32)
    rank(np.ones((2, 1), np.float32), tokens, 0, 2, candidates, np.array([[5, 5], [5, -1]]), ids, scores)
    assert ids[0].tolist() == [[1, 3, 2], [0, 4, 2]]
    assert scores[0].tolist() == [[3, 3, 2], [1, 1, 2]]
    assert (ids[1] == -7).all()


def test_rows_and_norms() -> None:
    rng = np.random.default_rng(2)
    vectors, tokens = rng.standard_normal((3, 20)).astype(np.float32), rng.standard_normal((7, 20)).astype(np.float32)
    scores, lengths = np.zeros((3, 7), np.float32), np.zeros(3)
    score_rows(vectors, tokens, 1, 3, scores)
    norms(vectors, 0, 3, lengths)
    assert (scores[0] == 0).all()
    assert (scores[1:] == (vectors[1:].astype(np.float64) @ tokens.T.astype(np.float64)).astype(np.float32)).all()
    assert np.abs(lengths - np.linalg.norm(vectors.astype(np.float64), axis=1)).max() < 1e-12
