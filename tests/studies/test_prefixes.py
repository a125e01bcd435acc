"""Prefixes of a store's text."""

from __future__ import annotations

import numpy as np
import torch

import ffnmem as fm
from ffnmem.scanning import Store
from ffnmem.studies.prefixes import batches, followers, random_places, triggers


def test_random_places(tiny_store: Store) -> None:
    """One position of content in each of different sequences, a function of the seed."""
    text = tiny_store.sequences
    found = random_places(tiny_store, 20, 3)
    assert len(found) == 20
    assert (np.diff(found.sequences) > 0).all()
    for sequence, position, prefix in zip(
        found.sequences.tolist(), found.positions.tolist(), found.prefixes, strict=True
    ):
        ids = text.sequence_tokens(sequence)
        assert 1 <= position < len(ids)
        assert prefix.tolist() == ids[: position + 1].tolist()
        assert prefix[0] == text.bos
        assert prefix[-1] not in tiny_store.settings.special
    again, other = random_places(tiny_store, 20, 3), random_places(tiny_store, 20, 4)
    assert again.positions.tolist() == found.positions.tolist()
    assert (other.sequences.tolist(), other.positions.tolist()) != (found.sequences.tolist(), found.positions.tolist())
    assert len(random_places(tiny_store, 10**6, 0)) == len(text)


def test_random_places_are_uniform(tiny_store: Store) -> None:
    """Over many seeds every position of a sequence comes up about as often."""
    longest = max(range(len(tiny_store.sequences)), key=lambda n: len(tiny_store.sequences.sequence_tokens(n)))
    length = len(tiny_store.sequences.sequence_tokens(longest)) - 1
    counts = np.zeros(length)
    for seed in range(200):
        counts[random_places(tiny_store, len(tiny_store.sequences), seed).positions[longest] - 1] += 1
    assert counts.sum() == 200
    assert counts.max() <= 6 * 200 / length


def test_followers(tiny_store: Store) -> None:
    """The next token where the sequence has one, and −1 at its end; many at once as one by one."""
    text = tiny_store.sequences
    places = [(n, p) for n in range(len(text)) for p in range(1, len(text.sequence_tokens(n)))]
    sequences, positions = (np.array(column) for column in zip(*places, strict=True))
    found = followers(text, sequences, positions)
    for (number, position), token in zip(places, found.tolist(), strict=True):
        ids = text.sequence_tokens(number)
        assert token == (ids[position + 1] if position + 1 < len(ids) else -1)
    assert followers(text, sequences[:0], positions[:0]).tolist() == []


def test_triggers_are_the_stores_top(tiny_store: Store) -> None:
    rows = triggers(tiny_store, 1)
    for neuron in (0, 17, 63):
        mine = rows[rows["neuron"] == neuron]
        expected = tiny_store.example_rows(1, neuron, kind="top")
        expected = expected[expected["coefficient"] > 0]
        assert mine["coefficient"].tolist() == expected["coefficient"].tolist()
        assert mine["position"].tolist() == expected["position"].tolist()
        assert mine["rank"].tolist() == list(range(1, len(mine) + 1))
    assert triggers(tiny_store, 1, most=2)["rank"].max() == 2
    assert (rows["coefficient"] > 0).all()


def test_batches(tiny: fm.Model) -> None:
    """Every prefix once, padded on the right, its last token where it says."""
    draw = np.random.default_rng(0)
    prefixes = [draw.integers(1, 100, size=draw.integers(1, 30)) for _ in range(57)]
    seen = []
    for rows, tokens, ends in batches(prefixes, torch.device("cpu"), limit=120):
        assert tokens.numel() <= 120 or len(tokens) == 1
        for row, line, end in zip(rows.tolist(), tokens, ends.tolist(), strict=True):
            assert line[: end + 1].tolist() == prefixes[row].tolist()
            assert not line[end + 1 :].any()
        seen += rows.tolist()
    assert sorted(seen) == list(range(57))
    assert list(batches([], torch.device("cpu"))) == []
