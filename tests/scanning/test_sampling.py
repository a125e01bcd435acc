"""The random sample: a function of the seed and the numbers of the sequences, and nothing else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffnmem.corpus import batches
from ffnmem.corpus.batches import Sequences
from ffnmem.scanning import reduction
from ffnmem.scanning.reduction import DRAWS, SEQUENCES, Lowest, choose, uniforms
from ffnmem.scanning.state import place_of

from ..corpus.packs import packed

LENGTHS = [1 + 7 * i % 23 for i in range(300)]
SPECIAL = (5, 11)


@pytest.mark.parametrize("unit", [1, 7, 64])
def test_the_size_of_units_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unit: int) -> None:
    """Shards and a single machine would draw different samples."""
    corpus = packed(LENGTHS, tmp_path / "corpus")
    whole = choose(Sequences(corpus, 10, 0), SPECIAL, 3, 20, 15)
    monkeypatch.setattr(batches, "UNIT", unit)
    pieces = Sequences(corpus, 10, 0)
    assert len(pieces.units) > 1
    found = choose(pieces, SPECIAL, 3, 20, 15)
    for name in ("sequences", "draws", "places", "inputs"):
        assert (getattr(found, name) == getattr(whole, name)).all()
    assert len(whole.sequences) == 20
    assert len(whole.draws) == len(whole.places) == 15
    assert (np.diff(whole.sequences) > 0).all()
    assert (np.diff(whole.draws) > 0).all()


@given(st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.75]), max_size=30), st.integers(1, 6), st.integers(1, 10))
def test_the_lowest_are_the_same_in_any_parts(priorities: list[float], k: int, part: int) -> None:
    """A reservoir that depends on the order of reading; ties go to the lower number."""
    values, numbers = np.array(priorities), np.arange(len(priorities))
    forwards, backwards = Lowest(k), Lowest(k)
    starts = range(0, len(values), part)
    for start in starts:
        forwards.offer(values[start : start + part], numbers[start : start + part])
    for start in reversed(starts):
        backwards.offer(values[start : start + part], numbers[start : start + part])
    best = sorted(range(len(values)), key=lambda i: (values[i], i))[:k]
    assert forwards.numbers().tolist() == backwards.numbers().tolist() == sorted(best)


def test_a_small_corpus_is_taken_whole(tmp_path: Path) -> None:
    found = choose(Sequences(packed([3, 4, 5], tmp_path / "corpus"), 10, None), (), 0, 128, 64)
    assert found.sequences.tolist() == found.draws.tolist() == [0, 1, 2]


def test_inputs_are_kept_at_content_in_random_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pads, BOS or special tokens among them, or the first of the text alone where there are more than are kept."""
    sequences = Sequences(packed(LENGTHS, tmp_path / "corpus"), 10, 0)
    whole = choose(sequences, SPECIAL, 3, 20, 15)
    found = whole.inputs.tolist()
    expected = [
        place_of(int(number), at)
        for number in whole.sequences
        for at, token in enumerate(sequences.sequence_tokens(int(number)).tolist())
        if at > 0 and token not in SPECIAL
    ]
    assert sorted(found) == expected != found
    assert choose(sequences, SPECIAL, 4, 20, 15).inputs.tolist() != found
    monkeypatch.setattr(reduction, "INPUTS", 30)
    assert choose(sequences, SPECIAL, 3, 20, 15).inputs.tolist() == found[:30]


def test_every_sequence_is_as_likely() -> None:
    """Chi-square over 20 sequences, 1,000 seeds, 5 drawn: 19 degrees of freedom, 43.8 at the thousandth."""
    counts = np.zeros(20)
    for seed in range(1000):
        lowest = Lowest(5)
        lowest.offer(uniforms(seed, SEQUENCES, np.arange(20)), np.arange(20))
        counts[lowest.numbers()] += 1
    assert ((counts - 250) ** 2 / 250).sum() < 43.8


def test_draws_are_weighted_by_content(tmp_path: Path) -> None:
    """Random positions would come from short sequences too often; BOS is none of the tokens that count."""
    lengths = np.array([1, 2, 3, 6])
    whole = Sequences(packed(lengths, tmp_path / "corpus"), 10, 0)
    drawn = np.array([choose(whole, (), seed, 1, 1).draws[0] for seed in range(360)])
    expected = 360 * lengths / lengths.sum()
    assert ((np.bincount(drawn, minlength=4) - expected) ** 2 / expected).sum() < 16.3  # 3 degrees of freedom


def test_random_numbers_are_uniform_and_streams_independent() -> None:
    numbers = np.arange(20_000)
    streams = [uniforms(seed, stream, numbers) for seed in (0, 1, 12345) for stream in (SEQUENCES, DRAWS)]
    for values in streams:
        assert values.min() >= 0
        assert values.max() < 1
        counts = np.histogram(values, 50, (0, 1))[0]
        assert ((counts - 400) ** 2 / 400).sum() < 86  # 49 degrees of freedom
    correlations = np.corrcoef(streams) - np.eye(len(streams))
    assert np.abs(correlations).max() < 0.03
    assert not np.isin(streams[0][:100], streams[1]).any()
