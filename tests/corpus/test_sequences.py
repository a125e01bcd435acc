"""Sequences: windows cover every document once, units and batches are partitions, single access agrees with both."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ffnmem as fm
from ffnmem.core.errors import FileError, InputError, OutOfRangeError
from ffnmem.corpus import Packed, open_packed, pack
from ffnmem.corpus import batches as sequences
from ffnmem.corpus.batches import Sequences

from ..helpers import refuses
from .packs import log_normal, packed, tokens_of

LENGTHS = st.lists(st.integers(0, 40), min_size=1, max_size=60).filter(any)


def expected(lengths: list[int], window: int, bos: int | None) -> list[list[int]]:
    """Windows, cut by hand."""
    front = [] if bos is None else [bos]
    texts = [tokens_of(n) for n in lengths]
    return [front + text[i : i + window] for text in texts for i in range(0, len(text), window)]


@given(LENGTHS, st.integers(2, 12), st.sampled_from([None, 0, 99]), st.integers(1, 60), st.integers(1, 9))
def test_laws(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], context: int, bos: int | None, limit: int, least: int
) -> None:
    """Against windows cut by hand, for every context, BOS, batch size and unit size."""
    corpus = packed(lengths, tmp_path_factory.mktemp("laws") / "pack")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sequences, "UNIT", least)
        patch.setattr(sequences, "STEP", 7)
        found = Sequences(corpus, context, bos)
    wanted = expected(lengths, context - (bos is not None), bos)
    assert found.n_sequences == len(found) == len(wanted)
    check_units(found, corpus, least)
    seen: list[int] = []
    for unit in found.units:
        batches = list(found.batches(unit, limit))
        numbers = [int(n) for batch in batches for n in batch.sequences]
        assert sorted(numbers) == list(range(unit.first_sequence, unit.first_sequence + unit.n_sequences))
        seen += numbers
        for batch in batches:
            assert batch.tokens.shape[1] == batch.lengths[0]
            assert len(batch.tokens) == 1 or batch.tokens.size <= limit
            for row, number, length in zip(batch.tokens.tolist(), batch.sequences, batch.lengths, strict=True):
                assert row[:length] == wanted[number]
                assert row[length:] == [0] * (len(row) - length)
    assert sorted(seen) == list(range(len(wanted)))
    assert [found.sequence_tokens(i).tolist() for i in range(len(wanted))] == wanted
    assert 0 <= padding(found, limit) < 0.05


def check_units(found: Sequences, corpus: Packed, least: int) -> None:
    """Consecutive whole documents, no larger than they must be."""
    units = list(found.units)
    assert [unit.index for unit in units] == list(range(len(units)))
    assert units[0].first_document == units[0].first_sequence == 0
    assert units[-1].last_document == corpus.n_documents - 1
    for before, after in pairwise(units):
        assert after.first_document == before.last_document + 1
        assert after.first_sequence == before.first_sequence + before.n_sequences
        assert before.n_sequences >= least
    offsets = corpus.documents
    for unit in units:
        assert unit.n_sequences > 0
        documents = range(unit.first_document, unit.last_document + 1)
        windows = [-(-int(offsets[d + 1] - offsets[d]) // found.window) for d in documents]
        assert sum(windows) == unit.n_sequences
        kept = [w for w in windows if w]
        assert sum(kept[:-1]) < least, "a unit went on after it was full"


def test_locate(tmp_path: Path) -> None:
    lengths = [5, 0, 1, 12, 4]
    corpus = packed(lengths, tmp_path / "pack")
    found = Sequences(corpus, 5, 0)
    places = [(0, 0, 4), (0, 4, 1), (2, 5, 1), (3, 6, 4), (3, 10, 4), (3, 14, 4), (4, 18, 4)]
    assert [found.locate(i) for i in range(len(found))] == places
    assert found.locate(-1) == places[-1]
    with refuses(OutOfRangeError, IndexError, "sequence 7", "0 to 6"):
        found.locate(7)


def test_units_are_a_sequence(tmp_path: Path) -> None:
    found = Sequences(packed([1] * 3000, tmp_path / "pack"), 8, None)
    assert [unit.n_sequences for unit in found.units] == [1024, 1024, 952]
    assert found.units[-1] == found.units[2]
    assert found.units[1:] == [found.units[1], found.units[2]]
    with refuses(OutOfRangeError, IndexError, "unit 3", "0 to 2"):
        found.units[3]
    assert "3000" in repr(found)


def test_documents_without_tokens_at_the_end(tmp_path: Path) -> None:
    """They belong to the last unit that has sequences."""
    found = Sequences(packed([1] * 1024 + [0] * 5, tmp_path / "pack"), 8, None)
    assert [(u.n_sequences, u.last_document) for u in found.units] == [(1024, 1028)]


def padding(found: Sequences, limit: int) -> float:
    """The share of pads in all that batches of the whole corpus hold."""
    batches = [batch for unit in found.units for batch in found.batches(unit, limit)]
    return 1 - sum(int(batch.lengths.sum()) for batch in batches) / sum(batch.tokens.size for batch in batches)


@pytest.mark.parametrize("limit", [2048, 8192])
def test_padding_of_the_bundled_corpus(atlas: fm.Model, tmp_path: Path, limit: int) -> None:
    found = Sequences(pack("atlas", atlas, tmp_path / "pack"), atlas.n_ctx, atlas.bos_token_id)
    assert len(found) > 4000
    assert padding(found, limit) < 0.05


def test_padding_of_log_normal_lengths(tmp_path: Path) -> None:
    found = Sequences(packed(log_normal(3000, 4.5, 1.0), tmp_path / "pack"), 512, 0)
    assert padding(found, 8192) < 0.05


def test_random_access_is_quick(tmp_path: Path) -> None:
    """A page of examples asks for hundreds. A quarter of a millisecond; here every call is type-checked on the way."""
    found = Sequences(packed([30] * 5_000, tmp_path / "pack"), 16, 0)
    times = []
    for number in np.random.default_rng(0).integers(0, len(found), 50):
        start = time.perf_counter()
        found.sequence_tokens(number)
        times.append(time.perf_counter() - start)
    assert min(times) < 4e-3


def test_opened_again_it_is_the_same(tmp_path: Path) -> None:
    """A scan that resumes must find the same batches."""
    corpus = packed(log_normal(2000, 3, 1), tmp_path / "pack")
    one, other = Sequences(corpus, 32, 0), Sequences(open_packed(corpus.folder), 32, 0)
    assert list(one.units) == list(other.units)
    for unit in one.units:
        for a, b in zip(one.batches(unit, 500), other.batches(unit, 500), strict=True):
            assert (a.tokens == b.tokens).all()
            assert (a.sequences == b.sequences).all()


def test_damaged_tokens_are_refused(tmp_path: Path) -> None:
    corpus = packed([100] * 50, tmp_path / "pack")
    path = corpus.folder / "tokens.bin"
    data = bytearray(path.read_bytes())
    data[10] ^= 1
    path.write_bytes(data)
    found = Sequences(open_packed(corpus.folder), 16, 0)
    with refuses(FileError, OSError, str(path), "damaged"):
        list(found.batches(found.units[0], 500))
    with refuses(FileError, OSError, str(path), "damaged"):
        found.sequence_tokens(0)


@pytest.mark.parametrize(("context", "bos", "named"), [(0, None, "context"), (1, 0, "context"), (8, -1, "bos")])
def test_settings_that_cannot_be(tmp_path: Path, context: int, bos: int | None, named: str) -> None:
    with refuses(InputError, ValueError, named, "at least"):
        Sequences(packed([3], tmp_path / "pack"), context, bos)
    with refuses(InputError, ValueError, "batch_tokens"):
        found = Sequences(packed([3], tmp_path / "pack"), 8, 0)
        list(found.batches(found.units[0], 0))
