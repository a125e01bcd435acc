"""How documents become the batches that a model reads: windows, units of work, sequences of like length."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import SupportsIndex

import numpy as np
from jaxtyping import Bool, Int64

from ..core.errors import check_count, check_index
from .packed import Packed

# Sequences of different lengths into batches: few of them, and hardly any padding.

PADDING = 0.05  # the share of pads below which the batches of a unit stay
PAD = 0


@dataclass(frozen=True, eq=False)
class Batch:
    """Sequences as a model reads them.

    Attributes:
        tokens: ids, with BOS in front if the sequences have one, padded on the right with id 0.
        sequences: the number of each within the corpus, the longest first, ties by number.
        lengths: tokens of each, BOS included; what comes after is padding.
    """

    tokens: Int64[np.ndarray, "rows pos"]
    sequences: Int64[np.ndarray, " rows"]
    lengths: Int64[np.ndarray, " rows"]

    def of_rows(self, rows: Bool[np.ndarray, " rows"]) -> Batch:
        """Some of the rows, at least one, padded no further than they need."""
        lengths = self.lengths[rows]
        return Batch(self.tokens[rows][:, : int(lengths.max())], self.sequences[rows], lengths)


def padded(rows: Sequence[Int64[np.ndarray, " _pos"]], sequences: Int64[np.ndarray, " rows"]) -> Batch:
    """A batch of rows that come longest first."""
    lengths = np.array([len(row) for row in rows], np.int64)
    tokens = np.full((len(rows), len(rows[0])), PAD, np.int64)
    for place, row in enumerate(rows):
        tokens[place, : len(row)] = row
    return Batch(tokens, sequences, lengths)


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
    rows = None if lengths is not None else [read(number) for number in numbers.tolist()]
    if rows is not None:
        lengths = np.array([len(row) for row in rows], np.int64)
    assert lengths is not None
    for chosen in grouped(lengths, limit):
        own = [read(number) for number in numbers[chosen].tolist()] if rows is None else [rows[i] for i in chosen]
        yield padded([row[:n] for row, n in zip(own, lengths[chosen].tolist(), strict=True)], numbers[chosen])


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


# How documents become the sequences that a model reads: windows, units of work, batches of like length.

UNIT = 1024  # sequences, at least, in every unit but the last
STEP = 1 << 20  # documents looked at in one go


@dataclass(frozen=True)
class Unit:
    """Consecutive whole documents, the smallest piece of work of a scan. ``last_document`` is part of it."""

    index: int
    first_sequence: int
    n_sequences: int
    first_document: int
    last_document: int


Windows = tuple[Int64[np.ndarray, " n"], Int64[np.ndarray, " n"], Int64[np.ndarray, " n"]]


class Sequences:
    """The sequences of a packed corpus: every document cut into consecutive windows, each with BOS in front.

    A window has at most ``context`` tokens with its BOS; a document's last one is what is left. Documents never share
    a sequence. Sequences are numbered from 0 in the order of the text. All of it depends only on the packed corpus, the
    context and BOS; nothing here is as long as the corpus.

    Args:
        packed: the corpus.
        context: the longest sequence in tokens, BOS included.
        bos: the token id to put in front of every window, or None for none.

    Raises:
        InputError: a context without room for text. FileError: the corpus is damaged.
    """

    def __init__(self, packed: Packed, context: int, bos: int | None) -> None:
        self.packed = packed
        self.bos = None if bos is None else check_count("bos", bos, least=0)
        self.lead = 0 if bos is None else 1
        self.context = check_count("context", context, least=1 + self.lead)
        bounds = unit_bounds(packed, self.window)
        self.units = [
            Unit(index, sequence, end - sequence, document, end_document - 1)
            for index, ((document, sequence), (end_document, end)) in enumerate(pairwise(bounds))
        ]
        self._ends = np.array([end for _, end in bounds[1:]], np.int64)  # of the units, in sequences
        self._latest: tuple[Unit, Windows] | None = None

    @property
    def window(self) -> int:
        """The most tokens of text in one sequence."""
        return self.context - self.lead

    @property
    def n_sequences(self) -> int:
        return int(self._ends[-1])

    def __len__(self) -> int:
        return self.n_sequences

    def __repr__(self) -> str:
        return (
            f"Sequences({self.n_sequences} of at most {self.context} tokens, bos {self.bos}, {len(self.units)} units)"
        )

    def unit_of(self, sequences: Int64[np.ndarray, "*n"] | int) -> Int64[np.ndarray, "*n"] | np.int64:
        """The index of the unit that each sequence is in."""
        return np.searchsorted(self._ends, sequences, side="right")

    # -- batches -------------------------------------------------------------------------------------------------

    def batches(self, unit: Unit, batch_tokens: int) -> Iterator[Batch]:
        """The unit's sequences in batches of like length, longest first, one at a time.

        Rows × longest stays within ``batch_tokens`` wherever a batch has more than one row, and less than 5% of what
        the unit's batches hold is padding; within these, batches are few. Raises FileError where the tokens are
        damaged.
        """
        limit = check_count("batch_tokens", batch_tokens)
        _, starts, lengths = self._windows(unit)
        text = self.packed.read(int(starts[0]), int(starts[-1] + lengths[-1]))
        begins, ends = (starts - starts[0]).tolist(), (starts - starts[0] + lengths).tolist()

        def read(number: int) -> Int64[np.ndarray, " pos"]:
            at = number - unit.first_sequence
            return self._with_bos(text[begins[at] : ends[at]])

        numbers = np.arange(unit.first_sequence, unit.first_sequence + unit.n_sequences)
        return batches_of(read, numbers, limit, lengths + self.lead)

    def lengths(self, unit: Unit) -> Int64[np.ndarray, " n"]:
        """The tokens of every sequence of a unit, BOS included, in the order of their numbers."""
        return self._windows(unit)[2] + self.lead

    # -- single sequences ----------------------------------------------------------------------------------------

    def locate(self, sequence: SupportsIndex) -> tuple[int, int, int]:
        """Where a sequence comes from: its document, the offset of its first token in the corpus, and its length
        without BOS. Raises OutOfRangeError, FileError."""
        number = check_index("sequence", sequence, self.n_sequences, "the corpus")
        unit = self.units[int(self.unit_of(number))]
        document, start, length = (int(of[number - unit.first_sequence]) for of in self._windows(unit))
        return document, start, length

    def sequence_tokens(self, sequence: SupportsIndex) -> Int64[np.ndarray, " pos"]:
        """The tokens of one sequence, with BOS in front if the sequences have one."""
        _, start, length = self.locate(sequence)
        return self._with_bos(self.packed.read(start, start + length))

    def lengths_of(self, sequences: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
        """The tokens of some sequences by their numbers, BOS included."""
        found = np.zeros(len(sequences), np.int64)
        unit_of = self.unit_of(sequences)
        for index in np.unique(unit_of).tolist():
            unit, rows = self.units[index], unit_of == index
            found[rows] = self.lengths(unit)[sequences[rows] - unit.first_sequence]
        return found

    def tokens_at(
        self, sequences: Int64[np.ndarray, " n"], positions: Int64[np.ndarray, " n"]
    ) -> Int64[np.ndarray, " n"]:
        """The token at a position of a sequence, for many at once, whatever their order."""
        tokens = np.full(len(sequences), -1 if self.bos is None else self.bos, np.int64)
        unit_of = self.unit_of(sequences)
        for index in np.unique(unit_of).tolist():
            unit = self.units[index]
            _, starts, lengths = self._windows(unit)
            text = self.packed.read(int(starts[0]), int(starts[-1] + lengths[-1]))
            rows = np.flatnonzero((unit_of == index) & (positions >= self.lead))
            places = starts[sequences[rows] - unit.first_sequence] - starts[0] + positions[rows] - self.lead
            tokens[rows] = text[places]
        return tokens

    def _with_bos(self, text: np.ndarray) -> Int64[np.ndarray, " pos"]:
        tokens = np.empty(self.lead + len(text), np.int64)
        tokens[: self.lead], tokens[self.lead :] = self.bos or 0, text
        return tokens

    def _windows(self, unit: Unit) -> Windows:
        """The document, the first token and the number of tokens, without BOS, of every sequence of a unit, in
        order."""
        latest = self._latest  # looked at once: another thread may put another unit's in its place
        if latest is not None and latest[0] == unit:
            return latest[1]
        offsets = self.packed.offsets(unit.first_document, unit.last_document + 2)
        counts = windows_of(np.diff(offsets), self.window)
        document = np.repeat(np.arange(len(counts)), counts)
        within = np.arange(unit.n_sequences) - np.repeat(np.cumsum(counts) - counts, counts)
        starts = offsets[document] + within * self.window
        windows = document + unit.first_document, starts, np.minimum(self.window, offsets[document + 1] - starts)
        self._latest = unit, windows  # single sequences are mostly asked for in a row
        return windows


def windows_of(lengths: Int64[np.ndarray, " n"], window: int) -> Int64[np.ndarray, " n"]:
    """How many windows documents of these lengths take: ⌈length / window⌉, none for an empty one."""
    return -(-lengths // window)


def unit_bounds(packed: Packed, window: int) -> list[tuple[int, int]]:
    """Where units begin, in documents and in sequences, followed by the ends of the last.

    A unit ends with the document that brings it to UNIT sequences; the last takes what is left.
    """
    bounds = [(0, 0)]
    total = 0
    for start in range(0, packed.n_documents, STEP):
        offsets = packed.offsets(start, min(start + STEP, packed.n_documents) + 1)
        ends = total + np.cumsum(windows_of(np.diff(offsets), window))
        while (place := int(np.searchsorted(ends, bounds[-1][1] + UNIT))) < len(ends):
            bounds.append((start + place + 1, int(ends[place])))
        total = int(ends[-1])
    if len(bounds) > 1 and total == bounds[-1][1]:  # nothing is left but documents without tokens
        bounds.pop()
    return [*bounds, (packed.n_documents, total)]
