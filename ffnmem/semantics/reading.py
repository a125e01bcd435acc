"""One pass over a store's own text, whole or a random sample: each layer's coefficients handed to accumulators.

What a statistic needs that the scan did not keep is read again here. BOS, pads and special tokens are masked out as the
scan masks them. Memory holds one batch's coefficients of one layer, and what the accumulators keep.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from ..core.choices import SEQUENCES_READ
from ..corpus.batching import PAD, Batch, grouped
from ..errors import InputError, check_count, check_seed
from ..models import Model
from ..models.bare_body import BareBody, check_same
from ..scanning.passes import Report
from ..scanning.store import Store

TOGETHER = 1024  # sequences sorted by length into batches at once


@dataclass(frozen=True, eq=False)
class Page:
    """A batch, and where its content is: no BOS, pads or special tokens.

    Attributes:
        batch: the sequences, right-padded.
        mask: ``[rows·pos]``, True at content.
        places: the rows of a layer's ``[rows·pos, d_mlp]`` that are content.
        tokens: the token id at each of them. positions: its position in its sequence (BOS, if any, is 0).
        sequences: the number of its sequence within the corpus.
    """

    batch: Batch
    mask: Bool[np.ndarray, " cells"]
    places: Int64[np.ndarray, " n"]
    tokens: Int64[np.ndarray, " n"]
    positions: Int64[np.ndarray, " n"]
    sequences: Int64[np.ndarray, " n"]


@runtime_checkable
class Accumulator(Protocol):
    """Something that sees every layer of every page; ``coefficients`` and ``pre`` are only lent, and hold pads too."""

    def add(
        self,
        page: Page,
        layer: int,
        pre: Float[Tensor, "cells d_mlp"],
        coefficients: Float[Tensor, "cells d_mlp"],
    ) -> None:
        """Take what is wanted of one layer of one page."""


@dataclass(frozen=True, eq=False)
class Reading:
    """Which sequences of a store's text will be read. Made by :func:`choose`.

    Attributes:
        store: whose text. numbers: of the sequences, ascending.
        seed: that chose them; without effect where all are read.
    """

    store: Store
    numbers: Int64[np.ndarray, " n"]
    seed: int

    def __len__(self) -> int:
        return len(self.numbers)

    def pages(self) -> Iterator[Page]:
        """The sequences in batches of like length, the same ones in the same order each time."""
        sequences, settings = self.store.sequences, self.store.settings
        special = np.array(sorted(settings.special), np.int64)
        for start in range(0, len(self.numbers), TOGETHER):
            numbers = self.numbers[start : start + TOGETHER]
            texts = [sequences.sequence_tokens(int(number)) for number in numbers]
            lengths = np.array([len(text) for text in texts], np.int64)
            for rows in grouped(lengths, settings.batch_tokens):
                tokens = np.full((len(rows), int(lengths[rows[0]])), PAD, np.int64)
                for row, which in enumerate(rows):
                    tokens[row, : lengths[which]] = texts[which]
                yield page_of(Batch(tokens, numbers[rows], lengths[rows]), sequences.lead, special)

    @cached_property
    def token_counts(self) -> Int64[np.ndarray, " vocab"]:
        """How often each token occurs as content in what will be read."""
        counts = np.zeros(self.store.corpus.vocab, np.int64)
        for page in self.pages():
            counts += np.bincount(page.tokens, minlength=len(counts))
        return counts


def page_of(batch: Batch, lead: int, special: Int64[np.ndarray, " special"]) -> Page:
    """A batch with its content found, by the rule of the scan.

    Args:
        batch: right-padded. lead: how many tokens of BOS are in front. special: ids that no statistic sees.
    """
    pos = batch.tokens.shape[1]
    columns = np.arange(pos)
    content = (columns >= lead) & (columns < rearrange(batch.lengths, "rows -> rows 1"))
    content &= ~np.isin(batch.tokens, special)
    mask = rearrange(content, "rows pos -> (rows pos)")
    places = np.flatnonzero(mask)
    tokens = rearrange(batch.tokens, "rows pos -> (rows pos)")[places]
    return Page(batch, mask, places, tokens, places % pos, batch.sequences[places // pos])


def content_counts(store: Store) -> Int64[np.ndarray, " vocab"]:
    """How often each token occurs in the store's corpus; special ones count as never."""
    counts = store.corpus.token_counts.astype(np.int64)
    counts[[token for token in store.settings.special if token < len(counts)]] = 0
    return counts


def choose(store: Store, n_sequences: int | None = SEQUENCES_READ, seed: int = 0) -> Reading:
    """Choose the sequences to read: uniformly, without replacement.

    Args:
        store: from :func:`ffnmem.scan`.
        n_sequences: how many; None, or more than there are, for all.
        seed: of the choice.

    Raises:
        InputError: not a positive number.
    """
    total = store.sequences.n_sequences
    check_seed(seed)
    if n_sequences is None or check_count("n_sequences", n_sequences) >= total:
        return Reading(store, np.arange(total, dtype=np.int64), seed)
    chosen = np.random.default_rng([seed, total]).choice(total, n_sequences, replace=False)
    return Reading(store, np.sort(chosen).astype(np.int64), seed)


def read(model: Model, reading: Reading, accumulators: Sequence[Accumulator], progress: Report | None = None) -> None:
    """Run the model's layers over the chosen sequences once.

    Args:
        model: the one that the store is of, by its fingerprint.
        reading: from :func:`choose`.
        accumulators: each is handed every layer of every page, in order.
        progress: told ("text", sequences done, sequences in all).

    Raises:
        InputError: another model than the store's, or coefficients that are NaN. UnsupportedModelError: hooks change
            what the layers compute.
    """
    reading.store.check_model(model)
    check_same(model)
    body = BareBody(model)
    done = 0
    for page in reading.pages():
        tokens = torch.from_numpy(page.batch.tokens).to(model.device)

        def hand(layer: int, pre: Tensor, coefficients: Tensor, page: Page = page) -> None:
            if not bool(coefficients.sum().isfinite()) and not bool(coefficients.isfinite().all()):
                first, last = int(page.batch.sequences.min()), int(page.batch.sequences.max())
                raise InputError(f"layer {layer} holds NaN or infinite coefficients in sequences {first} to {last}")
            for accumulator in accumulators:
                accumulator.add(page, layer, pre, coefficients)

        body.run(tokens, hand)
        done += len(page.batch.sequences)
        if progress is not None:
            progress("text", done, len(reading))
