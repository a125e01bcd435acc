"""Prefixes of a store's text, and means and shares with their intervals."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import ffnmem as fm
from ffnmem.scanning import Store
from ffnmem.studies.prefixes import batches, followers, mean_interval, random_places, share_interval, triggers


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
    longest = max(range(len(text)), key=lambda n: len(text.sequence_tokens(n)))
    length = len(text.sequence_tokens(longest)) - 1
    at = [random_places(tiny_store, len(text), seed).positions[longest] - 1 for seed in range(200)]
    assert np.bincount(at, minlength=length).max() <= 6 * 200 / length  # every position about as often


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


def test_mean_interval_covers_as_often_as_it_says() -> None:
    """Of 200 samples of a known mean, about 95% of the intervals hold it."""
    draw = np.random.default_rng(0)
    ends = [mean_interval(draw.exponential(size=60), seed, resamples=200) for seed in range(200)]
    assert all(low <= mean <= high for mean, low, high in ends)
    assert 175 <= sum(low <= 1 <= high for _, low, high in ends) <= 198
    np.testing.assert_equal(mean_interval(np.array([2.0, np.nan])), (2, np.nan, np.nan))
    np.testing.assert_equal(mean_interval(np.array([np.nan])), (np.nan,) * 3)


def test_share_interval() -> None:
    """Wilson's formula by hand; at 0 of n the upper end is not 0."""
    z, k, n = 1.959963984540054, 7, 40
    centre = (k / n + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * (k / n * (1 - k / n) / n + z**2 / (4 * n**2)) ** 0.5
    assert share_interval(k, n) == pytest.approx((k / n, centre - half, centre + half))
    share, low, high = share_interval(0, 50)
    assert (share, low) == (0, 0)
    assert 0.05 < high < 0.1
    assert np.isnan(share_interval(0, 0)).all()
