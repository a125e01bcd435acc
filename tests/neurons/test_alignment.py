"""Input–output cosines and mismatched pairs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ffnmem.neurons.layer_geometry import alignment, mismatched
from ffnmem.neurons.overlap import cosines
from ffnmem.neurons.read_write import derangements

from ..helpers import allclose


@given(n=st.integers(1, 40), count=st.integers(0, 12), seed=st.integers(0, 99))
def test_derangements(n: int, count: int, seed: int) -> None:
    """A neuron paired with itself would bring the truth into its null."""
    found = derangements(n, count, [seed])
    assert found.shape == (min(count, n - 1), n)
    for place, permutation in enumerate(found):
        assert sorted(permutation) == list(range(n))
        assert not (permutation == np.arange(n)).any()
        for other in found[:place]:
            assert not (permutation == other).any()


def test_mismatched_pairs_are_of_different_neurons() -> None:
    keys = torch.eye(4, dtype=torch.float64)
    assert allclose(mismatched(keys, keys, [0]), torch.zeros(12))  # 3 partners each, never itself


def test_chance_is_within_the_null() -> None:
    """Independent keys and values: 5% beyond, whatever they have in common as a layer."""
    generator = torch.Generator().manual_seed(0)
    common = torch.randn(32, generator=generator, dtype=torch.float64)
    keys, values = (torch.randn(2000, 32, generator=generator, dtype=torch.float64) + common for _ in range(2))
    found = alignment(cosines(keys, values), mismatched(keys, values, [0]), 0.5, -0.5)
    assert found["mean"] > 0.3
    assert found["beyond"] == pytest.approx(0.05, abs=0.015)


def test_numbers_written_out() -> None:
    own = torch.tensor([-0.9, -0.6, -0.1, 0.0, 0.2, 0.7, torch.nan], dtype=torch.float64)
    null = torch.linspace(-0.4, 0.4, 81, dtype=torch.float64)
    found = alignment(own, null, 0.5, -0.5)
    assert found["mean"] == pytest.approx(-0.7 / 6)
    assert found["q50"] == pytest.approx(-0.05)
    assert [found["null_low"], found["null_high"]] == pytest.approx([-0.38, 0.38])
    assert found["beyond"] == 0.5
    assert [found["strengthening"], found["weakening"]] == pytest.approx([1 / 6, 2 / 6])


def test_nothing_to_align() -> None:
    empty = torch.empty(0, dtype=torch.float64)
    assert np.isnan([*alignment(empty, empty, 0.5, -0.5).values()]).all()
    one = torch.ones(1, 3, dtype=torch.float64)
    assert len(mismatched(one, one, [0])) == 0
