"""The loops in NumPy against the compiled ones: the same bits, whatever is asked of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ffnmem.vocabulary import kernels, uncompiled
from ffnmem.vocabulary.scoring import KEYS, LITTLE, Scorer, loops_for
from ffnmem.vocabulary.uncompiled import dots

TYPES = (np.float32, np.float64)
SPECIAL = (0.0, -0.0, 1.0, -1.0, 1e-42, 3e38, np.inf, -np.inf)


def drawn(seed: int, rows: int, width: int, dtype: Any, special: bool = False) -> np.ndarray:
    """Numbers of all sizes, in which every last bit of a sum depends on its order."""
    rng = np.random.default_rng(seed)
    found = (rng.standard_normal((rows, width)) * 10.0 ** rng.integers(-6, 6, (rows, width))).astype(dtype)
    others = rng.choice(SPECIAL, (rows, width)).astype(dtype)
    return np.where(rng.random((rows, width)) < 0.3, others, found) if special else found


def same(one: np.ndarray, other: np.ndarray) -> bool:
    """To the bit, but for which of the many NaN one is."""
    return np.array_equal(one, other, equal_nan=True) and bool((np.signbit(one) == np.signbit(other))[one == 0].all())


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32), st.integers(1, 200), st.sampled_from(TYPES), st.booleans())
def test_products_and_norms(seed: int, width: int, dtype: Any, special: bool) -> None:
    vectors, tokens = drawn(seed, 3, width, dtype, special), drawn(seed + 1, 7, width, dtype, special)
    lanes = np.empty(kernels.LANES)
    each = [kernels.dot(vectors[0].astype(np.float64), token, lanes) for token in tokens]
    assert same(dots(vectors[0], tokens), np.array(each))
    for rows, columns in ((vectors, tokens), (tokens, vectors)):  # more tokens than vectors, and fewer
        mine, compiled = np.full((2, len(rows), len(columns)), 7, dtype)
        for loops, scores in ((uncompiled, mine), (kernels, compiled)):
            loops.score_rows(rows, columns, 1, len(rows), scores)
        assert same(mine, compiled)
    lengths = np.zeros((2, 7))
    uncompiled.norms(tokens, 1, 7, lengths[0])
    kernels.norms(tokens, 1, 7, lengths[1])
    assert same(*lengths)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32), st.integers(1, 90), st.integers(1, 30), st.sampled_from((16, 64)), st.sampled_from(TYPES))
def test_candidates_and_their_ranks(seed: int, columns: int, room: int, chunk: int, dtype: Any) -> None:
    """With ties, which come in the order of the ids; lists that are too short are left alone."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(-3, 4, (columns, 5)).astype(dtype)
    vectors = rng.standard_normal((4, 5)).astype(dtype)
    keys = KEYS[torch.float32 if dtype is np.float32 else torch.float64]
    whole: Any = np.int32 if dtype is np.float32 else np.int64
    bits = (vectors @ tokens.T).view(whole)
    bars = keys.key(rng.standard_normal(4)), keys.key(rng.standard_normal(4))
    found = []
    for loops in (uncompiled, kernels):
        high, low = np.zeros((2, 4, -(-columns // chunk)), whole)
        loops.chunk_ends(bits, keys.sign, keys.rest, chunk, 0, 4, high, low)
        ids, counts = np.zeros((4, 2, room), np.int32), np.zeros((4, 2), np.int64)
        loops.collect(bits, keys.sign, keys.rest, chunk, 1, 4, high, low, *bars, ids, counts)
        for row, end in np.ndindex(4, 2):
            ids[row, end, max(0, counts[row, end]) :] = 0  # behind the last one anything may lie
        best, scores = np.full((4, 2, 2), -7, np.int32), np.full((4, 2, 2), -7, dtype)
        loops.rank(vectors, tokens, 0, 4, ids, counts, best, scores)
        found.append((high, low, ids, counts, best, scores))
    for mine, compiled in zip(*found, strict=True):
        assert same(mine, compiled)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_scorer_with_either(dtype: torch.dtype) -> None:
    """What is little work alone is none of it among many rows: the result may not change."""
    generator = torch.Generator().manual_seed(3)
    tokens, vectors = (torch.randn(rows, 48, generator=generator, dtype=dtype) for rows in (3000, 20))
    little, much = Scorer(tokens, 7, rows=20), Scorer(tokens, 7, rows=LITTLE)
    assert little.loops is uncompiled
    assert much.loops is kernels
    one, other = little.extremes(vectors), much.extremes(vectors)
    for name in ("promoted", "promoted_scores", "suppressed", "suppressed_scores"):
        assert torch.equal(getattr(one, name), getattr(other, name))


def test_which_loops() -> None:
    assert loops_for(LITTLE) is uncompiled
    assert loops_for(LITTLE + 1) is kernels
