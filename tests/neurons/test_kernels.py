"""The inner loops against plain sums."""

from __future__ import annotations

import numpy as np
import pytest

from ffnmem.neurons.unembedding import count_active, power_sums

from ..helpers import allclose


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_power_sums(dtype: type) -> None:
    """A wrong power would give a wrong skew; rows outside must stay."""
    draw = np.random.default_rng(0)
    scores, shifts = draw.standard_normal((5, 37)).astype(dtype), draw.standard_normal(5)
    sums = np.ones((5, 4))
    power_sums(scores, shifts, 1, 4, sums)
    x = scores.astype(np.float64) - shifts[:, None]
    expected = np.stack([(x**power).sum(axis=1) for power in (1, 2, 3, 4)], axis=1) + 1
    expected[[0, 4]] = 1
    assert allclose(sums, expected, 1e-12)


def test_count_active() -> None:
    """Zero does not fire; a token outside the pairs, or a neuron outside the block, is not counted."""
    coefficients = np.array([[1.0, -1.0, 0.0], [2.0, 3.0, 4.0], [5.0, 5.0, 5.0]], np.float32)
    counts = np.zeros((2, 3), np.int32)
    count_active(coefficients, np.array([[0, 1], [1, 1]]), 0, 2, counts)
    assert counts.tolist() == [[0, 0, 0], [2, 1, 0]]


def test_count_active_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers wider than a block."""
    draw = np.random.default_rng(1)
    coefficients = draw.standard_normal((4, 3500)).astype(np.float32)
    groups = np.array([0, 2, 0, 1])
    counts = np.zeros((3, 3500), np.int32)
    count_active(coefficients, np.stack([np.arange(4), groups], axis=1), 0, 3500, counts)
    expected = np.stack([(coefficients[groups == group] > 0).sum(axis=0) for group in range(3)])
    assert (counts == expected).all()
