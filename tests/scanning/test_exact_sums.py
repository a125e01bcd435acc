"""Sums whose bytes do not depend on the order of adding."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffnmem.core.errors import InputError
from ffnmem.scanning import exact_sums

from ..helpers import refuses

UNIT = Fraction(1, 1 << exact_sums.UNIT)
numbers = st.builds(
    lambda sign, mantissa, power: sign * mantissa * 10.0**power,
    st.sampled_from([-1.0, 1.0]),
    st.floats(1, 10),
    st.integers(-15, 19),
)
lists = st.lists(st.one_of(numbers, st.just(0.0), st.just(-0.0), st.floats(-1, 1)), min_size=1, max_size=12)


def summed(values: list[float]) -> np.ndarray:
    limbs = np.zeros((exact_sums.LIMBS, 1), np.int64)
    for value in values:
        exact_sums.add(limbs, np.array([value]), "here")
    return limbs


def in_units(value: float) -> int:
    """A float in whole units of 2⁻⁶⁴, halves to even."""
    return round(Fraction(value) / UNIT)


@given(lists)
def test_equals_fractions(values: list[float]) -> None:
    """Rounding would creep in; for negative numbers too, where a borrow from above could swallow what is small."""
    assert exact_sums.as_integers(summed(values))[0] == sum(in_units(value) for value in values)


@given(lists, st.randoms(use_true_random=False), st.integers(0, 12))
def test_any_order_and_grouping(values: list[float], random: object, cut: int) -> None:
    """Two runs of one scan would differ in their last bits, so that nobody could compare stores."""
    shuffled = list(values)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    whole = summed(values)
    assert summed(shuffled).tobytes() == whole.tobytes()
    parts = exact_sums.merged(summed(shuffled[:cut]), summed(shuffled[cut:]))
    assert parts.tobytes() == whole.tobytes()


@given(lists, lists)
def test_merged_sums_are_canonical(first: list[float], second: list[float]) -> None:
    """Equal numbers with different limbs: a merged store would not equal the one of a single scan."""
    limbs = exact_sums.merged(summed(first), summed(second))
    assert (limbs[:2] >= 0).all()
    assert (limbs[:2] < 1 << exact_sums.BITS).all()
    assert exact_sums.as_integers(limbs)[0] == sum(in_units(value) for value in first + second)


def test_many_columns_at_once_equal_one_by_one() -> None:
    """Neurons would leak into their neighbours."""
    random = np.random.default_rng(0)
    values = random.normal(size=(20, 3, 7)) * 10.0 ** random.integers(-15, 20, (20, 3, 7))
    together = np.zeros((exact_sums.LIMBS, 3, 7), np.int64)
    for row in values:
        exact_sums.add(together, row, "here")
    for i, j in np.ndindex(3, 7):
        assert together[:, i, j].tolist() == summed(values[:, i, j].tolist())[:, 0].tolist()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 2.0**77, -1e300])
def test_refuses_what_is_no_usable_number(value: float) -> None:
    """One NaN would poison a neuron's sums in silence, and a huge number wrap around to a negative one."""
    limbs = np.zeros((exact_sums.LIMBS, 2), np.int64)
    with refuses(InputError, ValueError, "layer 3", "no usable number"):
        exact_sums.add(limbs, np.array([1.0, value]), "layer 3")
    assert not limbs.any()
    with refuses(InputError, ValueError, "layer 3", "no usable number"):
        exact_sums.add_small(np.zeros(2, np.int64), np.array([1.0, value]), "layer 3")


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_refuses_to_grow_beyond_its_range(sign: float) -> None:
    """Integers wrap around: a sum that grew too large would come back with the other sign."""
    limbs, small = np.zeros((exact_sums.LIMBS, 1), np.int64), np.zeros(1, np.int64)
    with refuses(InputError, ValueError, "layer 3", "beyond what they can hold"):
        for _ in range(3):
            exact_sums.add(limbs, np.array([sign * 0.9 * exact_sums.LARGEST]), "layer 3")
    with refuses(InputError, ValueError, "layer 3", "beyond what they can hold"):
        for _ in range(3):
            exact_sums.add_small(small, np.array([sign * 0.9 * exact_sums.SMALL_LARGEST]), "layer 3")


@given(st.lists(st.floats(-1e6, 1e6), max_size=12), st.randoms(use_true_random=False))
def test_small_sums(values: list[float], random: object) -> None:
    """The single limb: each addend to 2⁻²⁵, then exact, in any order."""
    found = []
    for _ in range(2):
        sums = np.zeros(1, np.int64)
        for value in values:
            exact_sums.add_small(sums, np.array([value]), "here")
        found.append(exact_sums.small_as_floats(sums)[0])
        random.shuffle(values)  # type: ignore[attr-defined]
    assert found[0] == found[1]
    unit = Fraction(1, 1 << exact_sums.SMALL_UNIT)
    assert Fraction(float(found[0])) == sum(round(Fraction(value) / unit) for value in values) * unit
