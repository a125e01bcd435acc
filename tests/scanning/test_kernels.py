"""The inner loops against plain NumPy, however the neurons are shared out; what they add up and keep is tested with the
state (``test_reduction.py``)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest

from ffnmem.scanning import kernels
from ffnmem.scanning.reduction import runs
from ffnmem.scanning.state import BINS

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
