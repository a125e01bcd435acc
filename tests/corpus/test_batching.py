"""Batches: every sequence once, hardly any padding, never above the limit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffnmem.corpus.batches import PADDING, cheapest, grouped

from .packs import log_normal

LENGTHS = st.lists(st.integers(1, 60), min_size=1, max_size=120)


def padding(lengths: np.ndarray, batches: list[np.ndarray]) -> float:
    cells = sum(len(batch) * int(lengths[batch].max()) for batch in batches)
    return 1 - int(lengths.sum()) / cells


@given(LENGTHS, st.integers(1, 400))
def test_laws(some: list[int], limit: int) -> None:
    """Each index once; longest first with ties by index; within the limit but for single rows; little padding."""
    lengths = np.array(some)
    batches = grouped(lengths, limit)
    assert sorted(int(i) for batch in batches for i in batch) == list(range(len(some)))
    for batch in batches:
        assert [(-some[i], i) for i in batch] == sorted((-some[i], i) for i in batch)
        assert len(batch) == 1 or len(batch) * some[batch[0]] <= limit
    firsts = [(-some[batch[0]], int(batch[0])) for batch in batches]
    assert firsts == sorted(firsts)
    assert padding(lengths, batches) < PADDING


@pytest.mark.parametrize("limit", [2048, 8192, 16384])
@pytest.mark.parametrize(("mean", "spread", "longest"), [(4.0, 0.8, 128), (5.5, 1.0, 1024)])
def test_batches_are_few(mean: float, spread: float, longest: int, limit: int) -> None:
    """Little padding is easy with a batch for each sequence; each batch has a cost of its own."""
    lengths = np.minimum(np.array(log_normal(1024, mean, spread)), longest)
    batches = grouped(lengths, limit)
    assert padding(lengths, batches) < PADDING
    assert len(batches) <= 1.1 * lengths.sum() / limit + 14


def test_equal_lengths_fill_batches() -> None:
    """Windows of a long document: full batches and one rest."""
    assert [len(batch) for batch in grouped(np.full(103, 50), 500)] == [10] * 10 + [3]


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(1, 4)), min_size=1, max_size=7), st.integers(0, 80))
def test_cheapest_is_the_cheapest(groups: list[tuple[int, int]], price: int) -> None:
    """Against every way to cut, at toy size."""
    values = np.array(sorted({v for v, _ in groups}, reverse=True))
    counts = np.array([c for _, c in groups][: len(values)])
    limit = 4 * 30
    bounds, cells = cheapest(values, counts, limit, price)
    before = np.concatenate(([0], np.cumsum(counts)))

    def best(i: int) -> int:
        if i == len(values):
            return 0
        costs = []
        for j in range(i + 1, len(values) + 1):
            size = int((before[j] - before[i]) * values[i])
            if size <= limit:
                costs.append(price + size + best(j))
        return min(costs)

    assert cells + price * (len(bounds) - 1) == best(0)
    assert bounds[0] == 0
    assert bounds[-1] == counts.sum()
