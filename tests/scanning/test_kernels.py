"""The inner loops against plain NumPy, however the neurons are shared out; what they add up and keep is tested with the
state (``test_reduction.py``)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest

from ffnmem.scanning import kernels
from ffnmem.scanning.reduction import runs
from ffnmem.scanning.state import BINS, NO_VALUE

from ..helpers import allclose
from .binning import bin_of

WIDTHS = [1, 7, 128, 300]  # no multiples of a strip's width, but for one
SPECIAL = np.array([0.0, -0.0, 1e-42, -1e-42, 1.0, -1.0], np.float32)
POS = 20
SEQUENCES = np.array([3, 4, 8, 11])  # of a batch's rows


@dataclass(frozen=True)
class Case:
    """A batch of four rows of POS positions: the first is whole, the second has holes, the third has no content."""

    pre: np.ndarray
    coefficients: np.ndarray
    linear: np.ndarray | None
    mask: np.ndarray

    @property
    def groups(self) -> np.ndarray:
        tokens = np.flatnonzero(self.mask)
        return runs(tokens, tokens // POS * 100 + tokens % POS // kernels.TOGETHER)

    def strengths(self, tokens: np.ndarray) -> list[np.ndarray]:
        """What each side is ordered by, at some tokens."""
        x, m = self.pre[tokens], self.coefficients[tokens]
        if self.linear is None:
            return [m, -m]
        u = self.linear[tokens] > 0
        cases = [(x > 0) & u, (x > 0) & ~u, ~(x > 0) & u, ~(x > 0) & ~u]
        return [m, -m, *(np.where(here, np.abs(m), 0) for here in cases)]


def case(width: int, gated: bool = False) -> Case:
    random = np.random.default_rng(0)
    pre, m, linear = random.normal(size=(3, 4 * POS, width)).astype(np.float32)
    m[random.random(m.shape) < 0.3] = random.choice(SPECIAL, 1)  # many equal ones, so that there are ties
    m[random.random(m.shape) < 0.3] = -1.0
    for array in (pre, linear):
        array[random.random(array.shape) < 0.2] = random.choice(SPECIAL)
    mask = np.zeros((4, POS), bool)
    mask[0, 1:] = mask[1, [0, 1, 3, 9, 10, 19]] = mask[3, :17] = True
    return Case(pre, m, linear if gated else None, mask.reshape(-1))


def shares(width: int, parts: int) -> list[tuple[int, int]]:
    return list(pairwise(np.linspace(0, width, parts + 1).astype(int).tolist()))


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("width", WIDTHS)
def test_extremes_and_where_they_stand(width: int, gated: bool, parts: int) -> None:
    """The wrong row's maximum, or one at a pad or BOS; the second of two equal positions; −0 not found for 0."""
    batch = case(width, gated)
    batch.coefficients[[2, 5, 9], 0] = [-0.0, 0.0, -0.0]
    batch.coefficients[1:POS, 0] -= 5.0 * (batch.coefficients[1:POS, 0] > 0)
    best = np.empty((6 if gated else 2, 4, width), np.float32)
    best[:] = NO_VALUE[: len(best)]
    at = np.zeros(best.shape, np.int32)
    arguments = (batch.pre, batch.coefficients, batch.linear)
    for start, stop in shares(width, parts):
        kernels.reduce(*arguments, batch.groups, POS, start, stop, best, at, SEQUENCES, *[None] * 6)
    for row in (0, 1, 3):
        tokens = np.flatnonzero(batch.mask.reshape(4, POS)[row]) + row * POS
        for side, strength in enumerate(batch.strengths(tokens)):
            assert (best[side, row] == (-1 if side == 1 else 1) * strength.max(0)).all()
            there = np.flatnonzero(best[side, row] != 0) if side > 1 else np.arange(width)
            where = np.full(len(there), row), there
            places = kernels.places(*arguments, batch.mask, POS, best[side], at[side], side - 2, *where)
            assert (places == tokens[strength.argmax(0)][there] - row * POS).all()
    assert (best[:, 2] == NO_VALUE[: len(best), 0]).all()


@pytest.mark.parametrize("width", WIDTHS)
def test_grouped(width: int) -> None:
    batch = case(width)
    chosen = np.array([[1, 2], [3, 0], [4, 2], [9, 1], [9, 2]])
    sums, expected = np.ones((3, width)), np.ones((3, width))
    for start, stop in shares(width, 2):
        kernels.grouped(batch.coefficients, chosen, start, stop, sums)
    for token, group in chosen:
        expected[group] += batch.coefficients[token].astype(np.float64)
    assert (sums == expected).all()


def summed(batch: Case, pos: int, groups: np.ndarray, parts: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """The powers' sums and the histogram of a classic batch."""
    width, rows = batch.pre.shape[1], len(batch.pre) // pos
    histogram, sums, best = (
        np.zeros((width, BINS), np.int64),
        np.zeros((8, width)),
        np.zeros((2, rows, width), np.float32),
    )
    others = np.zeros((2, width), np.int64), np.zeros((2, width), np.float32), histogram, np.zeros((20, width))
    for start, stop in shares(width, parts):
        kernels.reduce(
            *(batch.pre, batch.coefficients, None, groups, pos, start, stop, best, np.zeros(best.shape, np.int32)),
            *(SEQUENCES, None, sums, *others),
        )
    return sums, histogram


@pytest.mark.parametrize("width", WIDTHS)
def test_sums_and_histogram(width: int) -> None:
    """Every content token of every neuron counts once, in the bin that ``bin_of`` says, numbers of any size too."""
    batch = case(width)
    sums, _ = summed(batch, POS, batch.groups, 3)
    exact = [a[batch.mask].astype(np.float64) for a in (batch.pre, batch.coefficients)]
    assert allclose(sums, np.stack([(a**power).sum(0) for a in exact for power in (1, 2, 3, 4)]), 1e-12)
    batch.coefficients[:] *= np.float32(2.0) ** np.random.default_rng(1).integers(
        -14, 14, batch.coefficients.shape
    ).astype(np.float32)
    batch.coefficients[1:9, 0] = [0.0, -0.0, 1e-42, -1e-42, 3e38, -3e38, 256.0, -(2.0**-8)]
    _, histogram = summed(batch, POS, batch.groups, 3)
    bins = bin_of(batch.coefficients[batch.mask])
    for neuron in {0, width // 2, width - 1}:
        assert (histogram[neuron] == np.bincount(bins[:, neuron], minlength=BINS)).all()


def test_a_bin_that_is_fuller_than_a_strip_can_count() -> None:
    """65,536 tokens in one batch would count as none."""
    tokens = 2 * kernels.FULL
    m = np.ones((tokens, 1), np.float32)
    groups = np.array([[t, min(8, tokens - t)] for t in range(0, tokens, 8)])
    assert summed(Case(m, m, None, np.ones(tokens, bool)), tokens, groups)[1].max() == tokens
