"""What of a store's own text is read again, for what a statistic needs that the scan did not keep."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int64

from ..core.choices import SEQUENCES_READ
from ..corpus.excerpts import Drawn, draw_sequences
from ..errors import check_count, check_seed
from ..scanning.store import Store


def content_counts(store: Store) -> Int64[np.ndarray, " vocab"]:
    """How often each token occurs in the store's corpus; special ones count as never."""
    counts = store.corpus.token_counts.astype(np.int64)
    counts[[token for token in store.settings.special if token < len(counts)]] = 0
    return counts


def sample_of(store: Store, n_sequences: int | None = SEQUENCES_READ, seed: int = 0) -> Drawn:
    """Sequences of a store's text, uniformly, without replacement.

    Args:
        store: from :func:`ffnmem.scan`.
        n_sequences: how many; None, or more than there are, for all.
        seed: of the choice.

    Raises:
        InputError: not a positive number.
    """
    check_seed(seed)
    count = None if n_sequences is None else check_count("n_sequences", n_sequences)
    return Drawn(store.sequences, store.settings.text, draw_sequences(store.sequences, count, seed))
