"""Estimates, p-values and intervals."""

from __future__ import annotations

import numpy as np
import pytest
from jaxtyping import TypeCheckError

from ffnmem.core.errors import InputError
from ffnmem.neurons.verdicts import Estimate, interval, p_values

from ..helpers import allclose, refuses


def test_columns() -> None:
    numbers = [np.array([float(i), i + 0.5]) for i in range(5)]
    estimate = Estimate(*numbers)
    columns = estimate.columns("ms")
    assert list(columns) == ["ms", "ms_low", "ms_high", "ms_null", "ms_p"]
    assert all(column is number for column, number in zip(columns.values(), numbers, strict=True))
    assert len(estimate) == 2


def test_parts_must_agree() -> None:
    with pytest.raises((InputError, TypeCheckError)):
        Estimate(*[np.zeros(n) for n in (2, 2, 2, 2, 3)])


def test_p_is_the_share_of_draws_as_extreme() -> None:
    value = np.array([0.0, 2.0, 3.0, np.nan])
    null = np.array([[1.0, 2.0, 3.0, np.nan]])
    assert allclose(p_values(value, null)[:3], [4 / 4, 3 / 4, 2 / 4])
    assert allclose(p_values(value, null, "less")[:3], [1 / 4, 3 / 4, 4 / 4])
    assert np.isnan(p_values(value, null)[3])
    assert np.isnan(p_values(value, np.full((1, 3), np.nan))).all()


@pytest.mark.parametrize("direction", ["greater", "less"])
def test_shared_draws_are_as_ones_own(direction: str) -> None:
    """One row serves all neurons, by a sort instead of a comparison with each."""
    random = np.random.default_rng(0)
    value, null = random.integers(0, 9, 40).astype(np.float64), random.integers(0, 9, 30).astype(np.float64)
    null[3] = value[5] = np.nan
    own = p_values(value, np.tile(null, (40, 1)), direction)
    np.testing.assert_array_equal(p_values(value, null[None], direction), own)


def test_p_is_nominal_under_its_null() -> None:
    random = np.random.default_rng(1)
    p = p_values(random.standard_normal(4000), random.standard_normal((4000, 19)))
    assert (p <= 0.05).mean() == pytest.approx(0.05, abs=0.012)
    assert p.min() == 1 / 20


def test_intervals() -> None:
    draws = np.random.default_rng(2).standard_normal((3, 50))
    draws[1, :20] = np.nan
    draws[2] = np.nan
    low, high = interval(draws)
    for row in (0, 1):
        known = draws[row][np.isfinite(draws[row])]
        assert allclose([low[row], high[row]], np.quantile(known, (0.025, 0.975)))
    assert np.isnan([low[2], high[2]]).all()
    assert np.isnan(interval(np.empty((2, 0)))).all()


def test_unknown_direction() -> None:
    with refuses(InputError, ValueError, "direction", "'more'", "'less'"):
        p_values(np.zeros(1), np.zeros((1, 1)), "more")
