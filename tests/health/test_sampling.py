"""Which sequences are read: so many tokens, at random, the same ones for the same seed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ffnmem as fm
from ffnmem.corpus import Sequences
from ffnmem.editing.accumulating import packed_corpus
from ffnmem.health.sampling import pages, sample
from tests.scanning.texts import tiny_texts


@pytest.fixture
def sequences(tiny: fm.Model, tmp_path: Path) -> Sequences:
    return Sequences(packed_corpus(tiny, tiny_texts(), tmp_path / "corpus"), 16, tiny.bos_token_id)


def held(sequences: Sequences, numbers: np.ndarray) -> int:
    return sum(len(sequences.sequence_tokens(int(number))) - sequences.lead for number in numbers)


@pytest.mark.parametrize("tokens", [1, 50, 333])
def test_so_many_tokens(sequences: Sequences, tokens: int) -> None:
    """A limit would be missed by more than the last sequence."""
    numbers = sample(sequences, tokens)
    assert tokens <= held(sequences, numbers) < tokens + sequences.context
    assert list(numbers) == sorted(set(numbers.tolist()))


def test_all(sequences: Sequences) -> None:
    """A part would be read for the whole."""
    every = list(range(len(sequences)))
    assert sample(sequences, None).tolist() == every
    assert sample(sequences, 10**6, seed=3).tolist() == every


def test_the_seed_decides(sequences: Sequences) -> None:
    """The same call would read other text; or every seed the beginning of the corpus."""
    draws = [sample(sequences, 60, seed).tolist() for seed in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]
    assert max(draws[0]) > len(draws[0])


def test_pages_hold_what_was_drawn_once(sequences: Sequences, tiny: fm.Model) -> None:
    """Sequences would be left out, read twice, or their BOS and special tokens counted."""
    numbers = sample(sequences, 100)
    special = sorted(tiny.special_token_ids)
    found = list(pages(sequences, numbers, 64, special))
    assert len(found) > 1
    assert sorted(n for page in found for n in page.batch.sequences.tolist()) == numbers.tolist()
    assert sum(len(page.places) for page in found) == held(sequences, numbers)
    assert not set(np.concatenate([page.tokens for page in found])) & set(special)
