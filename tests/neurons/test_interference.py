"""Overlap in pairs and its nulls."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ffnmem.neurons.overlap import (
    BINS,
    NO_OVERLAP,
    QUANTILES,
    isotropic_overlap,
    matched_units,
    overlap,
    unit_moments,
    unit_rows,
)

from ..helpers import allclose


def drawn(n: int, d: int, seed: int = 0, stretch: Tensor | float = 1.0, shift: float = 0.0) -> Tensor:
    """Unit rows of Gaussian vectors."""
    generator = torch.Generator().manual_seed(seed)
    return unit_rows(torch.randn(n, d, generator=generator, dtype=torch.float64) * stretch + shift)


def far(found: dict[str, float]) -> list[float]:
    return [found[name] for name in QUANTILES]


@given(n=st.integers(2, 40), d=st.integers(2, 12), block=st.integers(1, 50), seed=st.integers(0, 99))
def test_equals_the_naive_formulas(n: int, d: int, block: int, seed: int) -> None:
    """Whatever the block: no pair is missed, none counts twice, no row meets itself."""
    units = drawn(n, d, seed)
    all_pairs = np.triu_indices(n, 1)
    expected = (units @ units.T).numpy()[all_pairs]
    found, (one, other) = overlap(units, block=block)
    assert allclose([found["mean"], found["rms"]], [expected.mean(), np.sqrt((expected**2).mean())], 1e-12)
    largest = np.abs(expected).argmax()
    assert allclose(abs(found["max"]), np.abs(expected[largest]))
    assert allclose(found["max"], float(units[one] @ units[other]))
    assert one < other
    steps = np.quantile(np.abs(expected), list(QUANTILES.values()), method="inverted_cdf")
    assert allclose(far(found), steps, 1.01 / BINS)


def test_equal_and_opposite_rows_are_found() -> None:
    units = torch.eye(6, dtype=torch.float64)[[0, 1, 2, 1, 4, 5]]
    found, pair = overlap(units)
    assert (found["max"], pair) == (1.0, (1, 3))
    units[3] *= -1
    found, pair = overlap(units, block=2)
    assert (found["max"], pair) == (-1.0, (1, 3))


def test_no_pair_has_no_null() -> None:
    assert isotropic_overlap(4, 0) == NO_OVERLAP
    assert isotropic_overlap(1, 3) == NO_OVERLAP
    plane = isotropic_overlap(2, 1)  # there |cos| of two directions is the sine of an angle that is uniform
    assert far(plane) == pytest.approx(np.sin(np.pi / 2 * np.array([*QUANTILES.values()])))
    assert (plane["rms"], plane["max"]) == pytest.approx((0.5**0.5, 0.5**0.5))


def test_isotropic_null_is_what_random_directions_do() -> None:
    """The Beta law's parameters, and the maximum's."""
    n, d = 1200, 30
    found, expected = overlap(drawn(n, d).float())[0], isotropic_overlap(d, n * (n - 1) // 2)
    assert expected["rms"] == d**-0.5
    assert found["rms"] == pytest.approx(expected["rms"], rel=0.01)
    assert far(found) == pytest.approx(far(expected), rel=0.01)
    maxima = [abs(overlap(drawn(60, d, seed))[0]["max"]) for seed in range(60)]
    assert np.mean(np.array(maxima) > isotropic_overlap(d, 1770)["max"]) == pytest.approx(0.5, abs=0.15)


CASES = {
    "isotropic": (1.0, 0.0),
    "anisotropic": (torch.arange(1, 41, dtype=torch.float64) ** -1.0, 0.0),
    "common direction": (1.0, 0.7),
    "both": (torch.arange(1, 41, dtype=torch.float64) ** -0.5, 0.2),
}


@pytest.mark.parametrize("case", CASES)
def test_matched_null_fits_gaussian_rows(case: str) -> None:
    """On rows that are nothing but anisotropic, the null must say so: else anisotropy passes for overlap."""
    units = drawn(400, 40, 1, *CASES[case])
    found, null = (overlap(rows)[0] for rows in (units, matched_units(unit_moments(units), [0])))
    assert null["mean"] == pytest.approx(found["mean"], abs=0.005)
    assert null["rms"] == pytest.approx(found["rms"], rel=0.02)
    assert far(null) == pytest.approx(far(found), rel=0.04, abs=0.004)


def test_matched_null_sees_overlap_beyond_anisotropy() -> None:
    """Pairs of equal rows leave the second moment as it is: rms cannot show them, the far quantile does."""
    half = drawn(150, 40, 2, CASES["both"][0])
    units = torch.cat([half, half])
    found, null = (overlap(rows)[0] for rows in (units, matched_units(unit_moments(units), [0])))
    assert found["rms"] == pytest.approx(null["rms"], rel=0.03)
    assert found["q999"] > 1.2 * null["q999"]
    assert found["max"] == pytest.approx(1.0)


def test_matched_null_of_few_rows_and_of_equal_ones() -> None:
    few = matched_units(unit_moments(drawn(5, 40)), [0])
    assert allclose(few.norm(dim=1), torch.ones(5), 1e-5)
    same = drawn(1, 8).expand(6, 8)
    assert overlap(matched_units(unit_moments(same), [0]))[0]["rms"] == pytest.approx(1.0, abs=1e-4)
