"""No token that could be among the best is left out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ffnmem.vocabulary.scoring import Candidates, chunk_for, select_compiled, select_in_torch

from .making import KINDS, made

TYPES = [torch.bfloat16, torch.float32, torch.float64]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@given(kind=st.sampled_from(KINDS), seed=st.integers(0, 2**32), k=st.integers(1, 9), width=st.sampled_from([0, 0.1, 2]))
def test_every_possible_token_is_a_candidate(dtype: torch.dtype, kind: str, seed: int, k: int, width: float) -> None:
    """All within the slack of the true k-th score, at both ends, by either way."""
    vectors, tokens = made(kind, seed)
    scores = (vectors @ tokens.T).to(dtype)
    plain = scores.double().numpy()

    def within(extreme: np.ndarray) -> np.ndarray:
        return width * extreme + 1e-30

    chunk = chunk_for(k, scores.shape[1])
    assert chunk is not None
    for found in (select_compiled(scores, k, within, chunk, 300), select_in_torch(scores, k, within, 300)):
        for row, values in enumerate(plain):
            margin = width * np.abs(values).max()
            for end, signed in enumerate((values, -values)):
                must = np.flatnonzero(signed >= np.sort(signed)[-k] - margin)
                kept = found.ids[row, end, : found.counts[row, end]]
                assert set(must) <= set(kept.tolist())
                assert (np.diff(kept) > 0).all()


def both(scores: torch.Tensor, k: int, room: int) -> list[Candidates]:
    def nothing(extreme: np.ndarray) -> np.ndarray:
        return 0 * extreme

    return [select_compiled(scores, k, nothing, 16, room), select_in_torch(scores, k, nothing, room)]


def test_too_many_ties_are_reported() -> None:
    """A list that was cut would take the first of equal tokens without knowing the rest."""
    scores = torch.zeros(2, 100)
    scores[1] = torch.arange(100.0)
    for found in both(scores, 3, 50):
        assert found.counts[0].tolist() == [-1, -1]
        assert (found.counts[1] >= 3).all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_say_nothing_are_reported(bad: float) -> None:
    """inf − inf and NaN order nothing."""
    scores = torch.randn(2, 100, generator=torch.Generator().manual_seed(0))
    scores[0, 7] = bad
    for found in both(scores, 3, 90):
        assert found.counts[0].tolist() == [-1, -1]
        assert (found.counts[1] >= 3).all()
