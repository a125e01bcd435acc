"""Means and shares with their intervals."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ffnmem.studies.prefixes import mean_interval, share_interval


def test_mean_interval_covers_as_often_as_it_says() -> None:
    """Of 200 samples of a known mean, about 95% of the intervals hold it."""
    draw = np.random.default_rng(0)
    held = 0
    for seed in range(200):
        mean, low, high = mean_interval(draw.exponential(size=60), seed, resamples=200)
        assert low <= mean <= high
        held += low <= 1 <= high
    assert 175 <= held <= 198


def test_share_interval() -> None:
    """Wilson's formula by hand; at 0 of n the upper end is not 0."""
    z, k, n = 1.959963984540054, 7, 40
    centre = (k / n + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * math.sqrt(k / n * (1 - k / n) / n + z**2 / (4 * n**2))
    assert share_interval(k, n) == pytest.approx((k / n, centre - half, centre + half))
    share, low, high = share_interval(0, 50)
    assert (share, low) == (0, 0)
    assert 0.05 < high < 0.1
    assert all(math.isnan(value) for value in share_interval(0, 0))
