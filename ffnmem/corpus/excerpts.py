"""What of a packed corpus is read, and in which batches: always the same ones in the same order.

A :class:`Stretch` is units in the order of the text (a shard, or all of it, up to so many tokens), a
:class:`Selection` is single sequences, such as a random sample. Both give pages: batches that know where their content
is.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from einops import rearrange
from jaxtyping import Bool, Int64

from ..core.errors import InputError
from ..models.model import Model
from .batches import Batch, Sequences, Unit, batches_of
from .packed import Packed

CONTEXT = 128  # tokens: the usual length of examples in this field, unless the model reads less
BATCH_TOKENS = 2048  # what two cores run fastest; larger for a GPU
TOGETHER = 1024  # drawn sequences sorted by length into batches at once


@dataclass(frozen=True)
class TextSettings:
    """How a text is cut and run: what every pass over it depends on.

    Attributes:
        context: the longest sequence in tokens, BOS included.
        bos: the id in front of every sequence, or None.
        special: ids that no statistic sees, ascending.
        batch_tokens: tokens of one forward pass, pads included.
    """

    context: int
    bos: int | None
    special: tuple[int, ...]
    batch_tokens: int

    @staticmethod
    def checked(model: Model, context: int | None, prepend_bos: bool | None, batch_tokens: int) -> TextSettings:
        """With the defaults of a model put in for None; raises InputError."""
        bos = model.prepend_bos if prepend_bos is None else prepend_bos
        if bos and model.bos_token_id is None:
            raise InputError(f"{model.name}'s tokenizer has no beginning-of-sequence token: use prepend_bos=False")
        length = min(CONTEXT, model.n_ctx) if context is None else context
        if length > model.n_ctx:
            raise InputError(f"context {length} is too long: {model.name} reads at most {model.n_ctx} tokens")
        return TextSettings(
            context=length,
            bos=model.bos_token_id if bos else None,
            special=tuple(sorted(model.special_token_ids)),
            batch_tokens=batch_tokens,
        )

    @property
    def prepend_bos(self) -> bool:
        return self.bos is not None

    def sequences(self, packed: Packed) -> Sequences:
        """A corpus cut so."""
        return Sequences(packed, self.context, self.bos)


def check_shard(shard: tuple[int, int]) -> tuple[int, int]:
    """(index, count), checked; raises InputError."""
    index, count = shard
    if not 0 <= index < count:
        raise InputError(f"shard {index} of {count} is none: shards are 0 to {count - 1}")
    return index, count


@dataclass(frozen=True, eq=False)
class Page:
    """A batch, and where its content is: no BOS, pads or special tokens. What is not asked for is not computed.

    Attributes:
        batch: the sequences, right-padded.
        lead: how many tokens of BOS are in front of each.
        special: ids that no statistic sees.
        ends: whether the unit of the corpus that it is of has no further page.
    """

    batch: Batch
    lead: int
    special: Int64[np.ndarray, " special"] = field(repr=False)
    ends: bool = False

    @property
    def n_tokens(self) -> int:
        """Tokens of text, special ones included, BOS left out."""
        return int((self.batch.lengths - self.lead).sum())

    @cached_property
    def mask(self) -> Bool[np.ndarray, " cells"]:
        """``[rows·pos]``, True at content."""
        columns = np.arange(self.batch.tokens.shape[1])
        content = (columns >= self.lead) & (columns < rearrange(self.batch.lengths, "rows -> rows 1"))
        return rearrange(content & ~np.isin(self.batch.tokens, self.special), "rows pos -> (rows pos)")

    @cached_property
    def places(self) -> Int64[np.ndarray, " n"]:
        """The rows of a layer's ``[rows·pos, d_mlp]`` that are content."""
        return np.flatnonzero(self.mask)

    @cached_property
    def tokens(self) -> Int64[np.ndarray, " n"]:
        """The token id at each of the places."""
        return rearrange(self.batch.tokens, "rows pos -> (rows pos)")[self.places]

    @cached_property
    def positions(self) -> Int64[np.ndarray, " n"]:
        """Its position in its sequence; BOS, if any, is 0."""
        return self.places % self.batch.tokens.shape[1]

    @cached_property
    def sequences(self) -> Int64[np.ndarray, " n"]:
        """The number of its sequence within the corpus."""
        return self.batch.sequences[self.places // self.batch.tokens.shape[1]]


class Excerpt(ABC):
    """What of a corpus is read.

    Args:
        sequences: of the corpus. settings: how it was cut, and how large batches are.
    """

    def __init__(self, sequences: Sequences, settings: TextSettings) -> None:
        self.sequences, self.settings = sequences, settings
        self.read_before = 0  # tokens of text that were read by an earlier run, and are in n_tokens

    @property
    @abstractmethod
    def n_tokens(self) -> int:
        """Tokens of text, special ones included, BOS left out."""

    @abstractmethod
    def batches(self) -> Iterator[tuple[Batch, bool]]:
        """The batches, each with whether it is the last of a unit."""

    def pages(self) -> Iterator[Page]:
        """The batches with their content found."""
        special = np.array(self.settings.special, np.int64)
        for batch, ends in self.batches():
            yield Page(batch, self.sequences.lead, special, ends)

    def made_by(self) -> dict[str, Any]:
        """All that its batches depend on, ready for JSON."""
        packed, settings = self.sequences.packed, self.settings
        return {
            "batch_tokens": settings.batch_tokens,
            "corpus": packed.hash,
            "tokenizer": packed.tokenizer_hash,
            "context": settings.context,
            "bos": settings.bos,
            "special": list(settings.special),
        }

    @cached_property
    def token_counts(self) -> Int64[np.ndarray, " vocab"]:
        """How often each token occurs as content."""
        counts = np.zeros(self.sequences.packed.vocab, np.int64)
        for page in self.pages():
            counts += np.bincount(page.tokens, minlength=len(counts))
        return counts


@dataclass(frozen=True)
class Piece:
    """A unit of the corpus up to the sequence ``end``, which is not part of it, and its tokens of text."""

    unit: Unit
    end: int
    tokens: int


class Stretch(Excerpt):
    """Units in the order of the text.

    Args:
        sequences, settings: see :class:`Excerpt`.
        shard: (i, n): only every n-th unit from the i-th.
        tokens: end with the sequence that brings the text to so many.
        done: the indices of units that were read before.

    Attributes:
        pieces: what is left to read.
    """

    def __init__(
        self,
        sequences: Sequences,
        settings: TextSettings,
        shard: tuple[int, int] = (0, 1),
        tokens: int | None = None,
        done: Collection[int] = (),
    ) -> None:
        super().__init__(sequences, settings)
        self.pieces: list[Piece] = []
        total = 0
        for number in range(shard[0], len(sequences.units), shard[1]):
            if tokens is not None and total >= tokens:
                break
            unit = sequences.units[number]
            text = total + np.cumsum(sequences.lengths(unit) - sequences.lead)
            # The text is cut where it is long enough in its own order; a unit's batches begin with its longest.
            count = len(text) if tokens is None else min(len(text), int(np.searchsorted(text, tokens)) + 1)
            size, total = int(text[count - 1]) - total, int(text[count - 1])
            if number in done:
                self.read_before += size
            else:
                self.pieces.append(Piece(unit, unit.first_sequence + count, size))
        self._n_tokens = total

    @property
    def n_tokens(self) -> int:
        return self._n_tokens

    def made_by(self) -> dict[str, Any]:
        ranges = np.array([(piece.unit.first_sequence, piece.end) for piece in self.pieces], np.int64)
        return {**super().made_by(), "sequences": digest_of(ranges)}

    def batches(self) -> Iterator[tuple[Batch, bool]]:
        for piece in self.pieces:
            before: Batch | None = None
            for batch in self.sequences.batches(piece.unit, self.settings.batch_tokens):
                rows = batch.sequences < piece.end
                if not rows.any():
                    continue
                if before is not None:
                    yield before, False
                before = batch if rows.all() else batch.of_rows(rows)
            if before is not None:
                yield before, True


class Selection(Excerpt):
    """Single sequences.

    Args:
        sequences, settings: see :class:`Excerpt`.
        numbers: of the sequences. lengths: what is read of the beginning of each, BOS included; default all of it.
        together: how many are sorted by length into batches at once.
    """

    def __init__(
        self,
        sequences: Sequences,
        settings: TextSettings,
        numbers: Int64[np.ndarray, " n"],
        lengths: Int64[np.ndarray, " n"] | None = None,
        together: int = TOGETHER,
    ) -> None:
        super().__init__(sequences, settings)
        self.numbers, self.lengths, self.together = numbers, lengths, together

    def __len__(self) -> int:
        return len(self.numbers)

    @cached_property
    def n_tokens(self) -> int:
        if self.lengths is not None:
            return int((self.lengths - self.sequences.lead).sum())
        if len(self) == len(self.sequences):
            return self.sequences.packed.n_tokens
        return sum(self.sequences.locate(int(number))[2] for number in self.numbers)

    def made_by(self) -> dict[str, Any]:
        cut = [] if self.lengths is None else [self.lengths]
        return {**super().made_by(), "together": self.together, "sequences": digest_of(self.numbers, *cut)}

    def batches(self) -> Iterator[tuple[Batch, bool]]:
        for start in range(0, len(self.numbers), self.together):
            some = slice(start, start + self.together)
            numbers, cut = self.numbers[some], None if self.lengths is None else self.lengths[some]
            for batch in batches_of(self.sequences.sequence_tokens, numbers, self.settings.batch_tokens, cut):
                yield batch, False


def digest_of(*numbers: Int64[np.ndarray, "..."]) -> str:
    """16 hexadecimal digits that tell choices of sequences apart."""
    return hashlib.blake2b(b"".join(array.tobytes() for array in numbers), digest_size=8).hexdigest()


def draw_sequences(sequences: Sequences, count: int | None, seed: int) -> Int64[np.ndarray, " n"]:
    """Numbers of so many sequences, ascending: uniformly, without replacement.

    Args:
        count: how many; None, or more than there are, for all. seed: without effect where all are taken.
    """
    total = len(sequences)
    if count is None or count >= total:
        return np.arange(total, dtype=np.int64)
    return np.sort(np.random.default_rng([seed, total]).choice(total, count, replace=False)).astype(np.int64)


def draw_tokens(sequences: Sequences, tokens: int | None, seed: int) -> Int64[np.ndarray, " n"]:
    """Numbers of the sequences, ascending, drawn without replacement until they hold so many tokens of text.

    The last one drawn is taken whole. All sequences, whatever the seed, where the corpus holds no more than that, or
    ``tokens`` is None.
    """
    total = len(sequences)
    if tokens is None or tokens >= sequences.packed.n_tokens:
        return np.arange(total, dtype=np.int64)
    order = np.random.default_rng([seed, total]).choice(total, min(total, tokens), replace=False)
    held = taken = 0
    while held < tokens:  # every sequence has a token of text, so the draw suffices
        held += sequences.locate(int(order[taken]))[2]
        taken += 1
    return np.sort(order[:taken]).astype(np.int64)
