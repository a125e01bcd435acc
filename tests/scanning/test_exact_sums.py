"""Sums whose bytes do not depend on the order of adding."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffnmem.core.errors import InputError
from ffnmem.scanning import exact_sums

from ..helpers import refuses

numbers = st.builds(
    lambda sign, mantissa, power: sign * mantissa * 10.0**power,
    st.sampled_from([-1.0, 1.0]),
    st.floats(1, 10),
    st.integers(-15, 19),
)
lists = st.lists(st.one_of(numbers, st.just(0.0), st.just(-0.0), st.floats(-1, 1)), min_size=1, max_size=12)


def summed(values: list[Any], *shape: int) -> np.ndarray:
    limbs = np.zeros((exact_sums.LIMBS, *(shape or (1,))), np.int64)
    for value in values:
        exact_sums.add(limbs, np.reshape(value, limbs.shape[1:]), "here")
    return limbs


@given(lists, st.randoms(use_true_random=False), st.integers(0, 12))
def test_equals_fractions_in_any_order_and_grouping(values: list[float], random: Any, cut: int) -> None:
    """Rounding would creep in; equal numbers with different limbs would make two runs of one scan differ."""
    whole = summed(values)
    unit = Fraction(1, 1 << exact_sums.UNIT)
    assert exact_sums.as_integers(whole)[0] == sum(round(Fraction(value) / unit) for value in values)
    shuffled = list(values)
    random.shuffle(shuffled)
    parts = exact_sums.merged(summed(shuffled[:cut]), summed(shuffled[cut:]))
    assert summed(shuffled).tobytes() == whole.tobytes() == parts.tobytes()
    assert ((whole[:2] >= 0) & (whole[:2] < 1 << exact_sums.BITS)).all()


def test_many_columns_at_once_equal_one_by_one() -> None:
    """Neurons would leak into their neighbours."""
    random = np.random.default_rng(0)
    values = random.normal(size=(20, 3, 7)) * 10.0 ** random.integers(-15, 20, (20, 3, 7))
    together = summed(list(values), 3, 7)
    for i, j in np.ndindex(3, 7):
        assert together[:, i, j].tolist() == summed(values[:, i, j].tolist())[:, 0].tolist()


@given(st.lists(st.floats(-1e6, 1e6), max_size=12), st.randoms(use_true_random=False))
def test_small_sums(values: list[float], random: Any) -> None:
    """The single limb: each addend to 2⁻²⁵, then exact, in any order."""
    unit = Fraction(1, 1 << exact_sums.SMALL_UNIT)
    expected = sum(round(Fraction(value) / unit) for value in values) * unit
    for _ in range(2):
        sums = np.zeros(1, np.int64)
        for value in values:
            exact_sums.add_small(sums, np.array([value]), "here")
        assert Fraction(float(exact_sums.small_as_floats(sums)[0])) == expected
        random.shuffle(values)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 2.0**77, -1e300])
def test_refuses_what_is_no_usable_number(value: float) -> None:
    """One NaN would poison a neuron's sums in silence, and a huge number wrap around to a negative one."""
    limbs, small = np.zeros((exact_sums.LIMBS, 2), np.int64), np.zeros(2, np.int64)
    for add, sums in ((exact_sums.add, limbs), (exact_sums.add_small, small)):
        with refuses(InputError, ValueError, "layer 3", "no usable number"):
            add(sums, np.array([1.0, value]), "layer 3")
    assert not limbs.any()


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_refuses_to_grow_beyond_its_range(sign: float) -> None:
    """Integers wrap around: a sum that grew too large would come back with the other sign."""
    limbs, small = np.zeros((exact_sums.LIMBS, 1), np.int64), np.zeros(1, np.int64)
    largest = exact_sums.LARGEST, exact_sums.SMALL_LARGEST
    for add, sums, most in zip((exact_sums.add, exact_sums.add_small), (limbs, small), largest, strict=True):
        with refuses(InputError, ValueError, "layer 3", "beyond what they can hold"):
            for _ in range(3):
                add(sums, np.array([sign * 0.9 * most]), "layer 3")
