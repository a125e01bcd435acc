"""Sequences of different lengths into batches: few of them, and hardly any padding."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from jaxtyping import Bool, Int64

PADDING = 0.05  # the share of pads below which the batches of a unit stay
PAD = 0


@dataclass(frozen=True, eq=False)
class PlannedBatch:
    """One batch before its tokens are read.

    Attributes:
        sequences: numbers within the corpus, the longest first, ties by number.
        starts: the offset of the first token of each in the corpus.
        lengths: tokens of each, BOS included.
    """

    sequences: Int64[np.ndarray, " rows"]
    starts: Int64[np.ndarray, " rows"]
    lengths: Int64[np.ndarray, " rows"]


@dataclass(frozen=True, eq=False)
class Batch:
    """Sequences as a model reads them.

    Attributes:
        tokens: ids, with BOS in front if the sequences have one, padded on the right with id 0.
        sequences: the number of each within the corpus.
        lengths: tokens of each, BOS included; what comes after is padding.
    """

    tokens: Int64[np.ndarray, "rows pos"]
    sequences: Int64[np.ndarray, " rows"]
    lengths: Int64[np.ndarray, " rows"]

    def of_rows(self, rows: Bool[np.ndarray, " rows"]) -> Batch:
        """Some of the rows, at least one, padded no further than they need."""
        lengths = self.lengths[rows]
        return Batch(self.tokens[rows][:, : int(lengths.max())], self.sequences[rows], lengths)


def batches_of(
    read: Callable[[int], Int64[np.ndarray, " pos"]],
    numbers: Int64[np.ndarray, " n"],
    limit: int,
    lengths: Int64[np.ndarray, " n"] | None = None,
) -> Iterator[Batch]:
    """Single sequences as batches of like length, see :func:`grouped`.

    Args:
        read: gives the tokens of a sequence by its number. numbers: which.
        limit: rows × longest of a batch, at most.
        lengths: the tokens to take of the beginning of each; default all. Then a sequence is read when its batch comes.
    """
    if not len(numbers):
        return
    rows = [read(int(number)) for number in numbers] if lengths is None else None
    sizes = np.array([len(row) for row in rows], np.int64) if rows is not None else lengths
    assert sizes is not None
    for chosen in grouped(sizes, limit):
        tokens = np.full((len(chosen), int(sizes[chosen[0]])), PAD, np.int64)
        for place, index in enumerate(chosen):
            row = read(int(numbers[index])) if rows is None else rows[index]
            tokens[place, : sizes[index]] = row[: sizes[index]]
        yield Batch(tokens, numbers[chosen], sizes[chosen])


def grouped(lengths: Int64[np.ndarray, " n"], limit: int) -> list[Int64[np.ndarray, " rows"]]:
    """Sequences of these lengths as batches: indices into ``lengths``, the longest first, ties by index.

    No batch has rows × longest above ``limit``, but for a single row that is longer. Sequences of one length that fill
    a batch make one; the rest of each length goes together with its neighbours such that the batches are few and less
    than PADDING of what all of them hold is padding. (Filling batches from the longest on, one after another, leaves
    12% of pads where a unit makes eight batches.)
    """
    order = np.argsort(-lengths, kind="stable")
    values, counts = np.unique(lengths, return_counts=True)
    values, counts = values[::-1], counts[::-1]
    ends = np.cumsum(counts)
    rows = np.maximum(1, limit // values)
    rest = counts % rows
    batches = [
        order[begin : begin + int(size)]
        for end, count, size, left in zip(ends, counts, rows, rest, strict=True)
        for begin in range(int(end - count), int(end - left), int(size))
    ]
    some = np.flatnonzero(rest)
    if len(some):
        left = np.concatenate([order[ends[i] - rest[i] : ends[i]] for i in some])
        full = sum(len(batch) * int(lengths[batch[0]]) for batch in batches)
        bounds = divided(values[some], rest[some], limit, full)
        batches += [left[a:b] for a, b in pairwise(bounds)]
    return sorted(batches, key=lambda batch: (-int(lengths[batch[0]]), int(batch[0])))


def divided(values: Int64[np.ndarray, " n"], counts: Int64[np.ndarray, " n"], limit: int, full: int) -> list[int]:
    """Where to cut sequences, ``counts[i]`` of length ``values[i]``, the longest first, between lengths.

    The dearer a batch, the fewer there are: the price goes down until padding is below PADDING of all tokens, ``full``
    others included that have none. At no price at all every length has a batch of its own, and there is none.
    """
    text = full + int((values * counts).sum())
    price = limit
    while True:
        bounds, cells = cheapest(values, counts, limit, price)
        if 1 - text / (full + cells) < PADDING:
            return bounds
        price //= 2


def cheapest(
    values: Int64[np.ndarray, " n"], counts: Int64[np.ndarray, " n"], limit: int, price: int
) -> tuple[list[int], int]:
    """The division that minimises cells + price × batches, by dynamic programming over the lengths; and its cells."""
    before = np.concatenate(([0], np.cumsum(counts)))
    best = np.full(len(before), np.iinfo(np.int64).max)
    best[0] = 0
    came = np.zeros(len(before), dtype=np.int64)
    for i in range(len(values)):
        stop = int(np.searchsorted(before, before[i] + limit // values[i], side="right"))
        cost = best[i] + price + (before[i + 1 : stop] - before[i]) * values[i]
        better = cost < best[i + 1 : stop]
        best[i + 1 : stop][better] = cost[better]
        came[i + 1 : stop][better] = i
    path = [len(values)]
    while path[-1]:
        path.append(int(came[path[-1]]))
    bounds = [int(before[i]) for i in reversed(path)]
    return bounds, int(best[-1]) - price * (len(bounds) - 1)
