"""Sequences: windows cover every document once, units and batches are partitions, single access agrees with both."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ffnmem as fm
from ffnmem.core.errors import InputError, OutOfRangeError
from ffnmem.corpus import Packed, open_packed, pack
from ffnmem.corpus import batches as module
from ffnmem.corpus.batches import Batch, Sequences

from ..helpers import refuses
from .packs import log_normal, packed, tokens_of


def windows(lengths: list[int], context: int, bos: int | None) -> dict[tuple[int, int, int], list[int]]:
    """Windows, cut by hand: document, offset in the corpus and length of each, and its tokens."""
    front = [] if bos is None else [bos]
    step = context - len(front)
    found, begin = {}, 0
    for document, length in enumerate(lengths):
        for i in range(0, length, step):
            text = tokens_of(length)[i : i + step]
            found[document, begin + i, len(text)] = front + text
        begin += length
    return found


def batches_of(found: Sequences, limit: int) -> list[Batch]:
    return [batch for unit in found.units for batch in found.batches(unit, limit)]


def padding(batches: list[Batch]) -> float:
    """The share of pads in all that batches hold."""
    return 1 - sum(int(batch.lengths.sum()) for batch in batches) / sum(batch.tokens.size for batch in batches)


@given(
    *(st.lists(st.integers(0, 40), min_size=1, max_size=60).filter(any), st.integers(2, 12)),
    *(st.sampled_from([None, 0, 99]), st.integers(1, 60), st.integers(1, 9)),
)
def test_laws(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], context: int, bos: int | None, limit: int, least: int
) -> None:
    """Against windows cut by hand, for every context, BOS, batch size and unit size."""
    corpus = packed(lengths, tmp_path_factory.mktemp("laws") / "pack")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "UNIT", least)
        patch.setattr(module, "STEP", 7)
        found = Sequences(corpus, context, bos)
        again = Sequences(open_packed(corpus.folder), context, bos)
    wanted = windows(lengths, context, bos)
    texts = list(wanted.values())
    assert found.units == again.units
    assert found.n_sequences == len(found) == len(wanted)
    assert [found.locate(i) for i in range(len(found))] == list(wanted)
    assert [found.sequence_tokens(i).tolist() for i in range(len(found))] == texts
    places = [(number, position) for number, text in enumerate(texts) for position in range(len(text))][::-1]
    at = found.tokens_at(*np.array(places).T)
    assert at.tolist() == [texts[number][position] for number, position in places]
    backwards = np.arange(len(found))[::-1]
    assert found.lengths_of(backwards).tolist() == [len(texts[n]) for n in backwards]
    check_units(found, corpus, least)
    for unit in found.units:
        batches = list(found.batches(unit, limit))
        numbers = [int(n) for batch in batches for n in batch.sequences]
        assert sorted(numbers) == list(range(unit.first_sequence, unit.first_sequence + unit.n_sequences))
        assert found.unit_of(np.array(numbers)).tolist() == [unit.index] * len(numbers)
        assert found.lengths(unit).tolist() == [len(texts[n]) for n in sorted(numbers)]
        firsts = [(-int(batch.lengths[0]), int(batch.sequences[0])) for batch in batches]
        assert firsts == sorted(firsts)
        for batch in batches:
            order = [(-int(n), int(number)) for n, number in zip(batch.lengths, batch.sequences, strict=True)]
            assert order == sorted(order), "the longest first, ties by number"
            assert batch.tokens.shape[1] == batch.lengths[0]
            assert len(batch.tokens) == 1 or batch.tokens.size <= limit
            for row, number in zip(batch.tokens.tolist(), batch.sequences, strict=True):
                assert row == texts[number] + [0] * (len(row) - len(texts[number]))
    assert 0 <= padding(batches_of(found, limit)) < 0.05


def check_units(found: Sequences, corpus: Packed, least: int) -> None:
    """Consecutive whole documents, no larger than they must be; the last has what is left."""
    units, offsets = found.units, corpus.documents
    assert [unit.index for unit in units] == list(range(len(units)))
    assert units[0].first_document == units[0].first_sequence == 0
    assert units[-1].last_document == corpus.n_documents - 1
    for before, after in pairwise(units):
        assert after.first_document == before.last_document + 1
        assert after.first_sequence == before.first_sequence + before.n_sequences
        assert before.n_sequences >= least
    for unit in units:
        documents = range(unit.first_document, unit.last_document + 1)
        counts = [-(-int(offsets[d + 1] - offsets[d]) // found.window) for d in documents]
        assert sum(counts) == unit.n_sequences > 0
        assert sum([count for count in counts if count][:-1]) < least, "a unit went on after it was full"


def test_batches_are_few_and_hardly_padded(tmp_path: Path) -> None:
    """Little padding is easy with a batch for each sequence; each batch has a cost of its own."""
    model, limit = fm.load("atlas"), 2048
    for found in (
        Sequences(packed(log_normal(1024, 5.5, 1.0), tmp_path / "long"), 1024, 0),
        Sequences(pack("atlas", model, tmp_path / "atlas"), model.n_ctx, model.bos_token_id),
    ):
        batches = batches_of(found, limit)
        tokens = sum(int(batch.lengths.sum()) for batch in batches)
        assert padding(batches) < 0.05
        assert len(batches) <= 1.1 * tokens / limit + 14 * len(found.units)
    equal = Sequences(packed([103 * 50], tmp_path / "equal"), 50, None)
    assert [len(batch.tokens) for batch in batches_of(equal, 500)] == [10] * 10 + [3]


def test_mistakes(tmp_path: Path) -> None:
    corpus = packed([5, 0, 1, 12, 4], tmp_path / "pack")
    found = Sequences(corpus, 5, 0)
    assert found.locate(-1) == found.locate(6) == (4, 18, 4)
    with refuses(OutOfRangeError, IndexError, "sequence 7", "0 to 6"):
        found.locate(7)
    for context, bos, limit, named in (
        *((0, None, 9, "context"), (1, 0, 9, "context")),
        *((8, -1, 9, "bos"), (8, 0, 0, "batch_tokens")),
    ):
        with refuses(InputError, ValueError, named, "at least"):
            batches_of(Sequences(corpus, context, bos), limit)
