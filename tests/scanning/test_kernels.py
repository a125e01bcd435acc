"""The inner loops against plain NumPy, however the neurons are shared out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffnmem.scanning import kernels
from ffnmem.scanning.state import BINS, NOWHERE

from ..helpers import allclose
from .binning import bin_of

WIDTHS = [1, 7, 256, 513, 1100]  # no multiples of a block's width, but for one
SPECIAL = np.array([0.0, -0.0, 1e-42, -1e-42, 1.0, -1.0], np.float32)
Block = Callable[[int, int], None]


@dataclass(frozen=True)
class Case:
    """A batch of three rows of six positions: the last row has no content, the second a hole."""

    pre: np.ndarray
    coefficients: np.ndarray
    mask: np.ndarray
    segments: np.ndarray
    pos: int = 6


def case(width: int, seed: int = 0) -> Case:
    random = np.random.default_rng(seed)
    pre, m = random.normal(size=(2, 18, width)).astype(np.float32)
    m[random.random(m.shape) < 0.3] = random.choice(SPECIAL, 1)  # many equal ones, so that there are ties
    pre[random.random(pre.shape) < 0.2] = random.choice(SPECIAL)
    mask = np.zeros((3, 6), bool)
    mask[0, 1:] = mask[1, [0, 1, 3]] = True
    segments = np.array([[1, 2, 1], [2, 4, 2], [4, 6, 3], [6, 7, 0], [7, 8, 1], [9, 10, 2]])
    return Case(pre, m, mask.reshape(-1), segments)


def shared_out(block: Block, width: int, parts: int) -> None:
    bounds = np.linspace(0, width, parts + 1).astype(int)
    for start, stop in pairwise(bounds):
        block(int(start), int(stop))


@pytest.mark.parametrize("parts", [1, 2, 5])
@pytest.mark.parametrize("width", WIDTHS)
def test_moments(width: int, parts: int) -> None:
    """Sums, firings, zeros and ranges over content only, in the order of the text: bit for bit what a loop gives."""
    batch = case(width)
    sums, counts, buckets = np.zeros((8, width)), np.zeros((2, width), np.int64), np.zeros((4, width))
    span = np.repeat(np.array([[np.inf], [-np.inf]], np.float32), width, axis=1)

    def block(start: int, stop: int) -> None:
        kernels.moments(batch.pre, batch.coefficients, batch.segments, start, stop, sums, counts, span, buckets)

    shared_out(block, width, parts)
    content = batch.mask
    x, m = batch.pre[content].astype(np.float64), batch.coefficients[content].astype(np.float64)
    powers = [power for a in (x, m) for power in (a, a * a, a * a * a, (a * a) * (a * a))]
    in_order = np.stack([np.add.accumulate(power, axis=0)[-1] for power in powers])
    rows = [0, 1, 2, 3, 5, 6, 7]  # the sum of coefficients goes by buckets: another order
    assert sums[rows].tobytes() == in_order[rows].tobytes()
    assert allclose(sums[4], in_order[4], 1e-12)
    assert counts.tolist() == [(x > 0).sum(0).tolist(), (m == 0).sum(0).tolist()]
    assert (span == np.stack([x.min(0), x.max(0)])).all()
    expected = np.zeros((4, width))
    for first, end, bucket in batch.segments:
        expected[bucket] += batch.coefficients[first:end].astype(np.float64).sum(0)
    assert allclose(buckets, expected, 1e-12)


def test_moments_add_to_what_is_there() -> None:
    """A second batch would replace the first."""
    batch = case(9)
    found = []
    for times in (1, 2):
        sums, counts, buckets = np.zeros((8, 9)), np.zeros((2, 9), np.int64), np.zeros((4, 9))
        span = np.repeat(np.array([[np.inf], [-np.inf]], np.float32), 9, axis=1)
        for _ in range(times):
            kernels.moments(batch.pre, batch.coefficients, batch.segments, 0, 9, sums, counts, span, buckets)
        found.append((sums, counts, buckets))
    for once, twice in zip(*found, strict=True):
        assert (2 * once == twice).all()


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("width", WIDTHS)
def test_extremes(width: int, parts: int) -> None:
    """The wrong row's maximum, or one at a pad or BOS."""
    batch = case(width)
    high, low = np.empty((3, width), np.float32), np.empty((3, width), np.float32)

    def block(start: int, stop: int) -> None:
        kernels.extremes(batch.coefficients, batch.mask, batch.pos, start, stop, high, low)

    shared_out(block, width, parts)
    by_row = batch.coefficients.reshape(3, 6, width)
    for row in range(2):
        content = by_row[row][batch.mask.reshape(3, 6)[row]]
        assert (high[row] == content.max(0)).all()
        assert (low[row] == content.min(0)).all()
    assert (high[2] == -np.inf).all()
    assert (low[2] == np.inf).all()


@pytest.mark.parametrize("width", WIDTHS)
def test_grouped(width: int) -> None:
    batch = case(width)
    chosen = np.array([[1, 2], [3, 0], [4, 2], [9, 1], [9, 2]])
    sums = np.ones((3, width))
    shared_out(lambda a, b: kernels.grouped(batch.coefficients, chosen, a, b, sums), width, 2)
    expected = np.ones((3, width))
    for token, group in chosen:
        expected[group] += batch.coefficients[token].astype(np.float64)
    assert (sums == expected).all()


@pytest.mark.parametrize("width", WIDTHS)
def test_histogram(width: int) -> None:
    """Every content token of every neuron counts once, in the bin that ``bin_of`` says."""
    batch = case(width)
    values = batch.coefficients * np.float32(2.0) ** np.random.default_rng(1).integers(-14, 14, (18, width)).astype(
        np.float32
    )
    values[:8, 0] = [0.0, -0.0, 1e-42, -1e-42, 3e38, -3e38, 256.0, -(2.0**-8)]
    counts = np.ones((width, BINS), np.int64)
    shared_out(lambda a, b: kernels.histogram(values.view(np.int32), batch.mask, a, b, counts), width, 3)
    bins = bin_of(values[batch.mask])
    for neuron in {0, width // 2, width - 1}:
        assert (counts[neuron] == 1 + np.bincount(bins[:, neuron], minlength=BINS)).all()
    assert (counts.sum(1) == BINS + batch.mask.sum()).all()


def test_positions_of_is_the_first_occurrence() -> None:
    """Ties would be broken by chance, and −0 not be found where 0 is looked for."""
    batch = case(40)
    by_row = batch.coefficients.reshape(3, 6, 40)
    by_row[0, 1:, 0] = -5.0
    by_row[0, [2, 4], 0] = [-0.0, 0.0]
    content = np.where(batch.mask.reshape(3, 6, 1), by_row, -np.inf)[:2]
    rows, neurons = (index.reshape(-1) for index in np.indices((2, 40)))
    values = content.max(1)[rows, neurons]
    found = kernels.positions_of(batch.coefficients, batch.mask, 6, rows, neurons, values)
    expected = [int(np.flatnonzero(content[r, :, n] == v)[0]) for r, n, v in zip(rows, neurons, values, strict=True)]
    assert found.tolist() == expected
    assert found[0] == 2


@given(
    st.lists(st.tuples(st.sampled_from([-1.0, -0.0, 0.0, 0.5, 1.0]), st.integers(0, 99)), unique_by=lambda c: c[1]),
    st.integers(1, 6),
    st.sampled_from([1.0, -1.0]),
)
def test_insert_is_a_sort(candidates: list[tuple[float, int]], size: int, sign: float) -> None:
    """The kept ones are the best by value, ties by the earlier place, whatever the order they came in."""
    kept, places = np.full((2, size), -sign * np.inf, np.float32), np.full((2, size), NOWHERE)
    values = np.array([value for value, _ in candidates], np.float32)
    at = np.array([place for _, place in candidates], np.int64)
    none, nothing = np.empty((0, 2, size), np.float32), np.empty((0, len(values)), np.float32)
    kernels.insert(kept, places, none, np.ones(len(values), np.int64), values, at, nothing, sign)
    best = sorted(candidates, key=lambda c: (-sign * c[0], c[1]))[:size]
    assert kept[1, : len(best)].tolist() == [value for value, _ in best]
    assert places[1, : len(best)].tolist() == [place for _, place in best]
    assert (places[1, len(best) :] == NOWHERE).all()
    assert (places[0] == NOWHERE).all()
