"""A neuron's examples: bands of the sample, random positions, and what was kept."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffnmem.scanning.tables import BANDS, choose_by_band, spread

SAMPLE = 40
SHUFFLED = np.random.default_rng(0).permutation(SAMPLE).astype(np.float32)


@pytest.mark.parametrize("bands", [BANDS, (0.0, 1.0), (0.0, 0.31, 0.32, 1.0)])
def test_bands_partition_the_sample(bands: tuple[float, ...]) -> None:
    """A sequence in no band, or in two; a band that is not where its limits say."""
    rows = list(choose_by_band(SHUFFLED, bands, SAMPLE))
    assert sorted(slot for _, slot, _, _ in rows) == list(range(SAMPLE))
    assert [SHUFFLED[slot] for _, slot, _, _ in rows] == sorted(SHUFFLED, reverse=True)
    for _, slot, low, high in rows:
        assert low <= SHUFFLED[slot] / SAMPLE < high  # the values are 0 to 39


@pytest.mark.parametrize("k", [1, 2, 3])
def test_k_limits_every_band(k: int) -> None:
    rows = list(choose_by_band(SHUFFLED, BANDS, k))
    assert [rank for rank, *_ in rows] == list(range(1, k + 1)) * (len(BANDS) - 1)


def test_what_a_shard_has_not_seen_is_left_out_and_ties_come_in_order() -> None:
    """Unseen sequences would be shown with the coefficient NaN at position −1."""
    values = np.zeros(8, np.float32)
    assert [slot for _, slot, _, _ in choose_by_band(values, (0.0, 0.5, 1.0), 9)] == [7, 6, 5, 4, 3, 2, 1, 0]
    values[[0, 5]] = np.nan
    assert sorted(slot for _, slot, _, _ in choose_by_band(values, BANDS, 9)) == [1, 2, 3, 4, 6, 7]
    values[:] = np.nan
    assert list(choose_by_band(values, BANDS, 3)) == []


@given(st.integers(0, 40), st.integers(1, 50))
def test_spread(n: int, k: int) -> None:
    items = np.arange(n) * 3
    found = spread(items, k)
    assert len(found) == min(n, k)
    assert np.isin(found, items).all()
    assert (np.diff(found) > 0).all()
    if min(n, k) > 1:
        assert (found[0], found[-1]) == (items[0], items[-1])
        assert np.ptp(np.diff(found)) <= 3
