"""A scan's settings and state; the numbers that people read of them."""

from __future__ import annotations

import dataclasses
import json
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffnmem.core.errors import InputError
from ffnmem.core.types import CASES
from ffnmem.scanning import exact_sums
from ffnmem.scanning.settings import ScanSettings
from ffnmem.scanning.state import (
    BINS,
    NOWHERE,
    PER_DOUBLING,
    SIDE,
    case_names,
    edges,
    join_ranges,
    place_of,
    position_of,
    sequence_of,
)
from ffnmem.scanning.statistics import bucket_name, moments

from ..helpers import allclose, refuses
from .states import settings

# -- what belongs together -------------------------------------------------------------------------------------------


def test_settings_come_back_and_every_difference_has_a_name() -> None:
    """Two scans that cannot be merged would be, or the message would not say why."""
    one = settings(frequent=(5, 9, 1))
    assert ScanSettings.from_dict(json.loads(json.dumps(one.to_dict()))) == one
    other: dict[str, Any] = {"dtype": "bfloat16", "frequent": (1,), "bos": 7, "special": (7,)}
    for field in dataclasses.fields(ScanSettings):
        value = other.get(field.name, getattr(one, field.name))
        changed = dataclasses.replace(one, **{field.name: value if field.name in other else value + 1})
        (found,) = one.differences(changed)
        assert found.startswith(field.name)
    assert settings().differences(settings(k=4, seed=9)) == ["k 3 and 4", "seed 0 and 9"]


def test_a_range_has_no_negative_zero() -> None:
    """Which of −0 and 0 is the least depends on which came first, and with it the bytes of a store."""
    zero = np.array([[0.0], [-0.0]], np.float32)
    for a, b in ((zero, -zero), (-zero, zero), (zero, zero), (-zero, -zero)):
        assert join_ranges(a, b).tobytes() == np.zeros((2, 1), np.float32).tobytes()


@given(st.integers(0, 1 << 42), st.integers(0, (1 << 20) - 1))
def test_places(sequence: int, position: int) -> None:
    place = place_of(np.int64(sequence), np.int64(position))
    assert (sequence_of(place), position_of(place)) == (sequence, position)
    assert place < place_of(np.int64(sequence + 1), np.int64(0)) <= NOWHERE


# -- bins, cases, buckets --------------------------------------------------------------------------------------------


def test_edges_of_the_histogram() -> None:
    """Bins that overlap or leave a gap would count a value twice or never."""
    found = edges()
    assert len(found) == BINS + 1
    assert (np.diff(found) > 0).all()
    assert (-found[::-1] == found).all()
    assert (found[0], found[SIDE], found[SIDE + 1]) == (-np.inf, 0, 1.25 * 2**-8)
    assert (found[SIDE + 1 + PER_DOUBLING : -1] / found[SIDE + 1 : -1 - PER_DOUBLING] == 2).all()


def test_cases_say_the_signs_and_zero_is_not_above() -> None:
    gate, linear = np.array([1.0, 1.0, 0.0, -0.0]), np.array([2.0, 0.0, 1e-30, -3.0])
    assert case_names(gate, linear) == list(CASES)


@given(st.integers(2, 300))
def test_buckets_tile_the_positions(context: int) -> None:
    """A mean by position would be labelled with other positions, or added to memory that is not ours."""
    named = [bucket_name(bucket, context) for bucket in range(settings(context=context).n_buckets)]
    spans = [[int(end) for end in name.split("–")] for name in named]
    assert [position for span in spans for position in range(span[0], span[-1] + 1)] == list(range(context))
    for position in range(context):
        span = spans[position.bit_length()]
        assert span[0] <= position <= span[-1]
    assert bucket_name(2, 128) == "2–3"


# -- numbers ---------------------------------------------------------------------------------------------------------


def power_sums(values: np.ndarray) -> np.ndarray:
    """The exact sums of the powers of ``values`` [tokens, d_mlp], each token added by itself."""
    sums = np.zeros((exact_sums.LIMBS, 4, values.shape[1]), np.int64)
    for row in values.astype(np.float64):
        exact_sums.add(sums, np.stack([row, row**2, row**3, row**4]), "here")
    return sums


@given(st.integers(0, 1000), st.sampled_from([0.0, 100.0, -500.0]))
def test_moments_are_the_population_s(seed: int, mean: float) -> None:
    """In floats, a large mean² would swallow the variance. Multiples of 1/16: every power is exact."""
    whole = np.random.default_rng(seed).integers(-8, 9, 50)
    found = [float(part[0]) for part in moments(power_sums((mean + whole / 16.0)[:, None]), np.array([50]))]
    exact = [Fraction(int(w), 16) + Fraction(mean) for w in whole]
    average = sum(exact) / len(exact)
    second, third, fourth = (sum((x - average) ** p for x in exact) / len(exact) for p in (2, 3, 4))
    assert found[0] == float(average)
    assert found[1] == np.sqrt(float(second))
    assert allclose(found[2:], [float(third) / float(second) ** 1.5, float(fourth / second**2) - 3], 1e-12)


@pytest.mark.parametrize("constant", [0.0, 0.1, -7.3])
def test_a_constant_has_no_shape(constant: float) -> None:
    """Rounding in sums would look like a spread, with a skewness of any size; nothing seen has no moments at all."""
    mean, std, skewness, kurtosis = moments(power_sums(np.full((30, 1), np.float32(constant))), np.array([30]))
    assert allclose(mean, [np.float32(constant)], 1e-15)
    assert allclose(std, [0.0], 1e-9)  # the powers of 0.1 are rounded to 2⁻⁶⁴
    if constant == 0:
        assert np.isnan([skewness, kurtosis]).all()
    assert np.isnan(moments(np.zeros((exact_sums.LIMBS, 4, 2), np.int64), np.zeros(2, np.int64))).all()


# -- exact sums: their bytes do not depend on the order of adding ----------------------------------------------------

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
