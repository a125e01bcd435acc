"""Prefixes of a store's text: those that trigger keys, random ones, what follows them, and how they are batched."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from jaxtyping import Int, Int64
from torch import Tensor

from ..corpus import Sequences
from ..corpus.batching import PAD, grouped
from ..scanning import Store
from ..scanning.writing import EXAMPLES

BATCH_TOKENS = 2048  # as scans have it
DRAW, KEYS, REMOVE, UNIGRAM = 1, 2, 3, 4  # independent streams of one seed


@dataclass(frozen=True, eq=False)
class Places:
    """Positions of a corpus, one of each of some sequences.

    Attributes:
        sequences: in ascending order. positions: within each, BOS counted.
        prefixes: the token ids up to and with each position, BOS in front if the sequences have one.
    """

    sequences: Int64[np.ndarray, " n"]
    positions: Int64[np.ndarray, " n"]
    prefixes: tuple[np.ndarray, ...]

    def __len__(self) -> int:
        return len(self.sequences)


def random_places(store: Store, count: int, seed: int) -> Places:
    """One uniformly random position, of no special token, of each of ``count`` random sequences (fewer if the corpus
    has fewer)."""
    generator = np.random.default_rng([seed, DRAW])
    text = store.sequences
    chosen = np.sort(generator.choice(len(text), min(count, len(text)), replace=False))
    special = np.array(store.settings.special, np.int64)
    sequences, positions, prefixes = [], [], []
    for sequence in chosen.tolist():
        ids = text.sequence_tokens(sequence)
        content = np.flatnonzero(~np.isin(ids, special))
        content = content[content >= text.lead]
        if len(content):
            position = int(generator.choice(content))
            sequences.append(sequence)
            positions.append(position)
            prefixes.append(ids[: position + 1])
    return Places(np.array(sequences, np.int64), np.array(positions, np.int64), tuple(prefixes))


def triggers(store: Store, layer: int, most: int | None = None) -> pd.DataFrame:
    """The trigger prefixes of a layer's keys: the positions of their largest coefficients, at most one of a sequence.

    Returns:
        neuron, rank, activation (above 0), sequence, position, by neuron and rank; at most ``most`` a neuron.
    """
    rows = store.table(EXAMPLES, layer)
    rows = rows[(rows["kind"] == "top") & (rows["activation"] > 0)]
    rows = rows if most is None else rows[rows["rank"] <= most]
    names = ["neuron", "rank", "activation", "sequence", "position"]
    return rows[names].sort_values(["neuron", "rank"], ignore_index=True)


def followers(
    text: Sequences, sequences: Int64[np.ndarray, " n"], positions: Int64[np.ndarray, " n"]
) -> Int64[np.ndarray, " n"]:
    """The token that follows each position within its sequence, or −1 where the sequence ends there."""
    last = np.zeros(len(sequences), np.int64)
    unit_of = np.searchsorted(text.units.sequences, sequences, side="right") - 1
    for index in np.unique(unit_of).tolist():
        unit, rows = text.units[index], unit_of == index
        last[rows] = text.lengths(unit)[sequences[rows] - unit.first_sequence] - 1
    found = np.full(len(sequences), -1, np.int64)
    inside = positions < last
    found[inside] = text.tokens_at(sequences[inside], positions[inside] + 1)
    return found


def batches(
    prefixes: Sequence[np.ndarray], device: torch.device, limit: int = BATCH_TOKENS
) -> Iterator[tuple[Int64[np.ndarray, " rows"], Int[Tensor, "rows pos"], Int[Tensor, " rows"]]]:
    """Prefixes of like length together: which ones, their tokens padded on the right, and where each one's last
    token is."""
    lengths = np.array([len(ids) for ids in prefixes], np.int64)
    for rows in grouped(lengths, limit) if len(lengths) else []:
        tokens = np.full((len(rows), int(lengths[rows].max())), PAD, np.int64)
        for place, row in enumerate(rows.tolist()):
            tokens[place, : lengths[row]] = prefixes[row]
        yield rows, torch.from_numpy(tokens).to(device), torch.from_numpy(lengths[rows] - 1).to(device)
