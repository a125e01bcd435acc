"""Sequences of a corpus drawn at random until they hold as many tokens as asked for, and batches of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Int64

from ..corpus import Sequences
from ..editing.convergence import batches_of
from ..semantics.reading import TOGETHER, Page, page_of


def sample(sequences: Sequences, tokens: int | None, seed: int = 0) -> Int64[np.ndarray, " n"]:
    """Numbers of the sequences to read, ascending: drawn without replacement until they hold ``tokens`` tokens.

    The last one drawn is read whole. All sequences, whatever the seed, where the corpus holds no more than that.

    Args:
        sequences: of a packed corpus.
        tokens: of text, BOS left out; None for all.
        seed: of the draw.
    """
    total = sequences.n_sequences
    if tokens is None or tokens >= sequences.packed.n_tokens:
        return np.arange(total, dtype=np.int64)
    order = np.random.default_rng([seed, total]).choice(total, min(total, tokens), replace=False)
    held = taken = 0
    while held < tokens:  # every sequence has a token of text, so the draw suffices
        held += sequences.locate(int(order[taken]))[2]
        taken += 1
    return np.sort(order[:taken]).astype(np.int64)


def pages(
    sequences: Sequences, numbers: Int64[np.ndarray, " n"], batch_tokens: int, special: Sequence[int]
) -> Iterator[Page]:
    """The sequences in batches of like length, each with where its content is: no BOS, pads or special tokens."""
    masked = np.array(special, np.int64)
    for start in range(0, len(numbers), TOGETHER):
        some = numbers[start : start + TOGETHER]
        texts = [sequences.sequence_tokens(int(number)) for number in some]
        for batch in batches_of(texts, some, batch_tokens):
            yield page_of(batch, sequences.lead, masked)
