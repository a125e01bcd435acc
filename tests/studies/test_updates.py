"""How many sub-updates it takes, against sums made one by one."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ffnmem.studies.composition import SHARES, needed_at_random, updates_needed


def naive(m: np.ndarray, values: np.ndarray, shares: tuple[float, ...]) -> tuple[list[list[int]], list[list[int]]]:
    """The definitions, term by term."""
    by_output, by_weight = [], []
    for row in m.astype(np.float64):
        terms = row[:, None] * values.astype(np.float64)
        weights = np.abs(row) * np.linalg.norm(values.astype(np.float64), axis=1)
        order = np.argsort(-weights, kind="stable")
        y = terms.sum(axis=0)
        explained = [1 - ((y - terms[order[:k]].sum(axis=0)) ** 2).sum() / (y**2).sum() for k in range(len(row) + 1)]
        by_output.append([next(k for k, e in enumerate(explained) if e >= share - 1e-12) for share in shares])
        sums = np.cumsum(weights[order])
        by_weight.append([int(np.flatnonzero(sums >= share * sums[-1])[0]) + 1 for share in shares])
    return by_output, by_weight


@given(st.integers(0, 2**32 - 1), st.integers(1, 90), st.integers(1, 70))
def test_against_single_terms(seed: int, d_mlp: int, d_model: int) -> None:
    draw = np.random.default_rng(seed)
    m = draw.normal(size=(5, d_mlp)).astype(np.float32)
    values = draw.normal(size=(d_mlp, d_model)).astype(np.float32) * draw.gamma(1, size=(d_mlp, 1)).astype(np.float32)
    by_output, by_weight = updates_needed(m, values)
    expected = naive(m, values, SHARES)
    assert by_output.tolist() == expected[0]
    assert by_weight.tolist() == expected[1]


def test_known_answers() -> None:
    """Orthogonal values of one length with coefficients 3, 1, 1, 1: a share that is reached exactly is reached."""
    m, values = np.array([[1.0, -3.0, 1.0, 1.0]]), np.eye(4, 6)
    by_output, by_weight = updates_needed(m, values, (0.5, 0.75, 0.8, 1.0))
    assert by_output.tolist() == [[1, 1, 2, 4]]  # 9/12 = .75, 10/12 = .83
    assert by_weight.tolist() == [[1, 3, 3, 4]]  # 3/6, 4/6, 5/6, 6/6


def test_random_order_against_all_orders() -> None:
    """The expected square of what is left is its mean over every subset."""
    draw = np.random.default_rng(7)
    m, values = draw.normal(size=(6, 7)), draw.normal(size=(7, 3))
    for row, counts in zip(m, needed_at_random(m, values, (0.2, 0.5, 0.9)), strict=True):
        terms = row[:, None] * values
        whole = (terms.sum(axis=0) ** 2).sum()
        left = [
            np.mean([(terms[list(rest)].sum(axis=0) ** 2).sum() for rest in combinations(range(7), 7 - k)])
            for k in range(8)
        ]
        expected = [next(k for k in range(8) if left[k] <= (1 - share) * whole) for share in (0.2, 0.5, 0.9)]
        assert counts.tolist() == expected
