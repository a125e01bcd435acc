"""Numbers that people read, against the definitions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffnmem.scanning import exact_sums
from ffnmem.scanning.state import NOWHERE
from ffnmem.scanning.statistics import bucket_name, layer_stats, means, moments

from ..helpers import allclose
from .states import HALF, empty, settings, shards


def power_sums(values: np.ndarray) -> np.ndarray:
    """The exact sums of the powers of ``values`` [tokens, d_mlp], each token added by itself."""
    sums = np.zeros((exact_sums.LIMBS, 4, values.shape[1]), np.int64)
    for row in values.astype(np.float64):
        exact_sums.add(sums, np.stack([row, row**2, row**3, row**4]), "here")
    return sums


def plain(values: np.ndarray) -> list[np.ndarray]:
    centred = values - values.mean(0)
    std = np.sqrt((centred**2).mean(0))
    return [values.mean(0), std, (centred**3).mean(0) / std**3, (centred**4).mean(0) / std**4 - 3]


def test_moments_are_the_populations() -> None:
    """Divided by n, not n − 1; kurtosis in excess of the normal's."""
    values = np.random.default_rng(0).gamma(2.0, size=(500, 6)).astype(np.float32).astype(np.float64)
    for found, expected in zip(moments(power_sums(values), np.full(6, 500)), plain(values), strict=True):
        assert allclose(found, expected, 1e-10)


@given(st.integers(0, 1000), st.sampled_from([0.0, 100.0, -500.0]))
def test_a_large_mean_leaves_the_small_variance(seed: int, mean: float) -> None:
    """In floats, mean² would swallow the variance. Multiples of 1/16: every power is exact."""
    whole = np.random.default_rng(seed).integers(-8, 9, 50)
    values = (mean + whole / 16.0)[:, None]
    found = [float(moment[0]) for moment in moments(power_sums(values), np.array([len(whole)]))]
    exact = [Fraction(int(w), 16) + Fraction(mean) for w in whole]
    average = sum(exact) / len(exact)
    second, third, fourth = (sum((x - average) ** p for x in exact) / len(exact) for p in (2, 3, 4))
    assert found[0] == float(average)
    assert found[1] == np.sqrt(float(second))
    assert allclose(found[2:], [float(third) / float(second) ** 1.5, float(fourth / second**2) - 3], 1e-12)


@pytest.mark.parametrize("constant", [0.0, 0.1, -7.3, 1e-9])
def test_a_constant_has_no_shape(constant: float) -> None:
    value = np.full((30, 1), np.float32(constant))
    mean, std, skewness, kurtosis = moments(power_sums(value), np.array([30]))
    assert allclose(mean, [np.float32(constant)], 1e-15)
    assert allclose(std, [0.0], 1e-9)  # the powers of 0.1 are rounded to 2⁻⁶⁴
    if constant == 0:
        assert np.isnan([skewness, kurtosis]).all()


def test_nothing_seen_has_no_moments() -> None:
    assert np.isnan(moments(np.zeros((exact_sums.LIMBS, 4, 2), np.int64), np.zeros(2, np.int64))).all()


def test_what_never_varied_has_no_spread_in_spite_of_rounded_sums() -> None:
    """Rounding in a batch's sums would look like a spread, with a skewness of any size."""
    state = shards(0, 1, settings())[0]
    layer = state.layers[0]
    constant = np.float32(0.1)
    layer.range[:, 2] = layer.pre_range[:, 3] = constant
    frame = layer_stats(state, 0)
    for neuron, prefix in ((2, ""), (3, "pre_")):
        row = frame.iloc[neuron]
        assert row[f"{prefix}mean"] == constant
        assert row[f"{prefix}std"] == 0
        assert np.isnan([row[f"{prefix}skewness"], row[f"{prefix}kurtosis"]]).all()


def test_stats_of_an_empty_shard_are_unknown() -> None:
    frame = layer_stats(empty(settings()), 1)
    assert (frame["count"] == 0).all()
    assert not frame["dead"].any()  # nothing was seen of them
    assert frame[["mean", "std", "min", "max", "firing_rate", "zero_share", "pre_min"]].isna().all(axis=None)


@given(st.integers(2, 300))
def test_buckets_tile_the_positions(context: int) -> None:
    """A mean by position would be labelled with other positions."""
    named = [bucket_name(bucket, context) for bucket in range(settings(context=context).n_buckets)]
    spans = [[int(end) for end in name.split("–")] for name in named]
    covered = [position for span in spans for position in range(span[0], span[-1] + 1)]
    assert covered == list(range(context))
    for position in range(context):
        span = spans[position.bit_length()]
        assert span[0] <= position <= span[-1]
    assert named[:2] == ["0", "1"]
    assert bucket_name(2, 128) == "2–3"


def test_means_of_nothing_are_unknown() -> None:
    sums = np.zeros(3, np.int64)
    exact_sums.add_small(sums, np.array([1.5, -3.0, 0.0]), "here")
    found = means(sums, np.array([2, 3, 0]))
    assert found[:2].tolist() == [0.75, -1.0]
    assert np.isnan(found[2])


def test_after_a_half_precision_pass_the_exact_values_decide() -> None:
    """Not those that the pass saw; places tie as ever."""
    layer = shards(0, 1, settings(), gated=True)[0].layers[0]
    for found, whole in zip(layer.ranked, (layer.kept, layer.kept_at, layer.parts), strict=True):
        np.testing.assert_array_equal(found, whole)
    layer = shards(0, 2, settings(**HALF), gated=True)[0].layers[0]
    layer.exact[:, 0], layer.exact_at[:, 0] = np.nan, NOWHERE  # a neuron that nothing was run again for
    layer.exact[:, 1], layer.exact_at[:, 1] = [5, 9, 9, -2, np.nan, np.nan], [8, 4, 3, 1, NOWHERE, NOWHERE]
    layer.parts[:, 0, 1] = range(6)
    value, at, parts = (array[..., :3] for array in layer.ranked)
    assert (at[:, 0] == NOWHERE).all()
    high, low = ([9, 9, 5], [3, 4, 8], [2, 1, 0]), ([-2, 5, 9], [1, 8, 3], [3, 0, 2])
    for side, best in enumerate((high, low, high, high, high, high)):
        assert (value[side, 1].tolist(), at[side, 1].tolist(), parts[side, 0, 1].tolist()) == best
