"""The ranking is that of the canonical scores, whatever found the candidates."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ffnmem.vocabulary import kernels, scoring, uncompiled
from ffnmem.vocabulary.kernels import score_rows
from ffnmem.vocabulary.scoring import BLOCK, Scorer, in_threads

from ..helpers import allclose
from .making import KINDS, extremes, made


@pytest.fixture(scope="module", params=[kernels, uncompiled], ids=["compiled", "NumPy"], autouse=True)
def loops(request: Any) -> Iterator[ModuleType]:
    """Everything here as much work is done, and as little work is, whose candidates are found as on an accelerator."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scoring, "loops_for", lambda numbers: request.param)
        yield request.param


def brute(vectors: Tensor, tokens: Tensor, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Ids and scores ``[rows, 2, k]``: every token scored canonically, and sorted."""
    scores = np.empty((len(vectors), len(tokens)), vectors.numpy().dtype)
    score_rows(vectors.numpy(), tokens.numpy(), 0, len(vectors), scores)
    order = np.stack([np.argsort(-scores, axis=1, kind="stable"), np.argsort(scores, axis=1, kind="stable")], axis=1)
    ids = order[:, :, :k]
    return ids, np.take_along_axis(scores[:, None], ids, axis=2)


def same(found: tuple[np.ndarray, np.ndarray], expected: tuple[np.ndarray, np.ndarray]) -> bool:
    """Bit for bit."""
    return all(one.tolist() == other.tolist() for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("path", ["float32", "bfloat16"])
@given(
    kind=st.sampled_from(KINDS), seed=st.integers(0, 2**32), k=st.sampled_from([1, 3, 9]), scale=st.integers(-20, 18)
)
def test_both_paths_equal_brute_force(path: str, kind: str, seed: int, k: int, scale: int) -> None:
    """A missed token, or neighbours in the wrong order, in vectors that are made for it."""
    vectors, tokens = (part * 10.0**scale for part in made(kind, seed))
    assert same(extremes(vectors, tokens, k, path), brute(vectors, tokens, k))


def test_float64_all_through() -> None:
    """Near-ties that float32 does not see must be ordered, by either path."""
    vectors, tokens = made("nearly equal", 0, rows=20)
    vectors, tokens = vectors.double(), tokens.double() + 1e-12 * torch.randn(tokens.shape, dtype=torch.float64)
    expected = brute(vectors, tokens, 5)
    assert expected[1].dtype == np.float64
    for path in ("float32", "bfloat16"):
        assert same(extremes(vectors, tokens, 5, path), expected)


def test_canonical_scores_are_the_rounded_exact_ones() -> None:
    """Brute force above shares its scores with us; these are NumPy's own."""
    vectors, tokens = made("random", 3, rows=4, vocab=400, width=300)
    exact = (vectors.double() @ tokens.double().T).float().numpy()
    _, scores = extremes(vectors, tokens, 6)
    assert np.array_equal(scores[:, 0], -np.sort(-exact, axis=1)[:, :6])
    assert np.array_equal(scores[:, 1], np.sort(exact, axis=1)[:, :6])


def test_rows_that_bfloat16_cannot_decide_go_to_float32() -> None:
    """Tokens that differ less than bfloat16 can tell: no proof, so no answer from it."""
    near, tokens = made("nearly equal", 0, rows=3, vocab=2000)
    far = made("random", 1, rows=3, vocab=2000)[1][:2000]
    mixed = torch.cat([tokens[:1000], 5 * far[:1000]])
    scorer = Scorer(tokens, 3, "bfloat16")
    assert same(scorer.extremes(near), brute(near, tokens, 3))
    assert scorer.taken["bfloat16"] == 0
    assert scorer.taken["float32"] + scorer.taken["all tokens"] == 3
    easy = Scorer(mixed, 3, "bfloat16")
    assert same(easy.extremes(near), brute(near, mixed, 3))
    assert easy.taken["bfloat16"] == 3


def test_only_the_undecided_rows_are_done_again() -> None:
    """Rows put back in the wrong places would carry another neuron's tokens."""
    _, tokens = made("random", 1, vocab=1000, width=24)
    tokens[:, 0] = 0
    tokens[:, 1] = 1 + 1e-5 * tokens[:, 1]
    vectors = made("random", 2, rows=40)[0]
    vectors[::3] = 0
    vectors[::3, 1] = 1.0  # sees only the column in which all tokens are nearly equal
    vectors[7] = 0
    scorer = Scorer(tokens, 3, "bfloat16")
    assert same(scorer.extremes(vectors), brute(vectors, tokens, 3))
    assert scorer.taken["bfloat16"] == 40 - 14 - 1
    assert sum(scorer.taken.values()) == 39


@pytest.mark.parametrize("k", [1, 20, 101, 150, 299, 300, 10_000])
def test_any_k(k: int) -> None:
    """Beyond half of the vocabulary the two ends overlap; beyond all of it there is no more."""
    vectors, tokens = made("whole numbers", 0)
    assert same(extremes(vectors, tokens, k), brute(vectors, tokens, k))


def test_nothing_ties_with_everything() -> None:
    """Zero vectors, or zero embeddings, score 0 for all: the lowest ids."""
    vectors, tokens = made("random", 0, vocab=2000)
    vectors[1] = 0
    for row, table in ((1, tokens), (0, torch.zeros_like(tokens))):
        ids, scores = extremes(vectors, table, 4)
        assert ids[row].tolist() == [[0, 1, 2, 3]] * 2
        assert not scores[row].any()


def test_more_twins_than_candidates_fit() -> None:
    """All copies of the best token tie; the lowest ids win, however many there are."""
    vectors, tokens = made("random", 0, rows=2, vocab=3000)
    best = int((vectors[0] @ tokens.T).argmax())
    tokens[500:1500] = tokens[best]
    scorer = Scorer(tokens, 5, "float32")
    found = scorer.extremes(vectors)
    assert same(found, brute(vectors, tokens, 5))
    assert found[0][0, 0].tolist() == sorted({best, *range(500, 505)})[:5]
    assert scorer.taken["all tokens"] >= 1


def test_scores_beyond_float32() -> None:
    """inf orders nothing, and inf − inf is NaN: such rows are ranked by float64 sums, rounded at the end."""
    vectors, tokens = made("random", 0)
    vectors[0] *= 1e30
    tokens = tokens * 1e12
    for path in ("float32", "bfloat16"):
        assert same(extremes(vectors, tokens, 4, path), brute(vectors, tokens, 4))


def test_the_block_does_not_matter() -> None:
    """One neuron asked alone would score otherwise than among all."""
    vectors, tokens = made("nearly equal", 0, rows=BLOCK + 3)
    whole = extremes(vectors, tokens, 3)
    for row in (0, 1, BLOCK - 1, BLOCK, BLOCK + 2):
        alone = extremes(vectors[row : row + 1], tokens, 3)
        assert same(alone, (whole[0][[row]], whole[1][[row]]))


def test_threads_share_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each thread's rows must land in their own places."""
    vectors, tokens = made("random", 0, rows=100)
    alone = extremes(vectors, tokens, 3)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert same(extremes(vectors, tokens, 3), alone)


def test_parts_cover_all_rows_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    for rows in (0, 1, 15, 33, 100):
        seen: list[int] = []
        in_threads(lambda first, last, seen=seen: seen.extend(range(first, last)), rows)
        assert sorted(seen) == list(range(rows))
    with pytest.raises(ZeroDivisionError):
        in_threads(lambda first, last: 1 // 0, 100)


def test_half_precision_is_scored_in_float32() -> None:
    vectors, tokens = made("random", 0)
    found = extremes(vectors, tokens.bfloat16(), 3)
    assert same(found, brute(vectors, tokens.bfloat16().float(), 3))
    assert allclose(found[1], extremes(vectors, tokens, 3)[1], 0.1)


def test_memory_is_one_block() -> None:
    """[neurons, vocab] would be 7 GB for GPT-2 small."""
    vectors, tokens = made("random", 0, rows=3 * BLOCK)
    scorer = Scorer(tokens, 3)
    scorer.extremes(vectors)
    assert {name: len(buffer) for name, buffer in scorer.buffers.items()} == {"float32": BLOCK}


def test_a_sample_that_overflows_says_nothing_about_sums() -> None:
    """Large embeddings were taken for a machine whose bfloat16 rounds its sums, and refused."""
    vectors, tokens = (part * 1e16 for part in made("scales", 0))
    assert same(extremes(vectors, tokens, 3, "bfloat16"), brute(vectors, tokens, 3))
