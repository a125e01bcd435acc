"""What is read: so many tokens, at random or in order, the same ones for the same seed; and where content is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ffnmem as fm
from ffnmem.core.errors import InputError
from ffnmem.corpus import batches as sequences_module
from ffnmem.corpus import pack
from ffnmem.corpus.batches import Batch, Sequences
from ffnmem.corpus.excerpts import Excerpt, Page, Selection, Stretch, TextSettings, check_shard, draw_tokens

from ..helpers import refuses
from ..scanning.texts import tiny_texts


def checked(model: fm.Model, **changes: Any) -> TextSettings:
    return TextSettings.checked(model, **{"context": None, "prepend_bos": None, "batch_tokens": 64} | changes)


@pytest.fixture
def settings(tiny: fm.Model) -> TextSettings:
    return checked(tiny, context=16)


@pytest.fixture
def sequences(tiny: fm.Model, settings: TextSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sequences:
    monkeypatch.setattr(sequences_module, "UNIT", 8)
    return settings.sequences(pack(tiny_texts(), tiny, tmp_path / "corpus"))


def rows(excerpt: Excerpt) -> dict[int, list[int]]:
    """The tokens of every sequence that is read, each once."""
    found: dict[int, list[int]] = {}
    for page in excerpt.pages():
        for number, ids, length in zip(page.batch.sequences, page.batch.tokens, page.batch.lengths, strict=True):
            assert int(number) not in found
            found[int(number)] = ids[:length].tolist()
    return found


def size(found: dict[int, list[int]], lead: int = 1) -> int:
    """Tokens of text."""
    return sum(len(ids) - lead for ids in found.values())


def test_defaults_and_refusals(tiny: fm.Model) -> None:
    """A pass would read other sequences than a scan does, or give numbers for settings that cannot be."""
    found = checked(tiny)
    assert (found.context, found.bos, found.prepend_bos) == (tiny.n_ctx, tiny.bos_token_id, True)
    assert not checked(tiny, prepend_bos=False).prepend_bos
    with refuses(InputError, ValueError, "32"):
        checked(tiny, context=1000)
    for shard in ((1, 1), (-1, 2), (0, 0)):
        with refuses(InputError, ValueError, "shard"):
            check_shard(shard)


@pytest.mark.parametrize("lead", [0, 1])
def test_content(lead: int) -> None:
    """Statistics would be polluted by BOS, pads or special tokens."""
    tokens = np.array([[9, 5, 0, 6], [9, 7, 0, 0]], np.int64)
    page = Page(Batch(tokens, np.array([4, 2]), np.array([4, 2])), lead, np.array([0]))
    assert page.mask.tolist() == [not lead, True, False, True, not lead, True, False, False]
    assert page.tokens.tolist() == [9, 5, 6, 9, 7][lead:3] + [9, 7][lead:]
    assert page.positions.tolist() == [0, 1, 3][lead:] + [0, 1][lead:]
    assert page.sequences.tolist() == [4, 4, 4][lead:] + [2, 2][lead:]
    assert page.n_tokens == 6 - 2 * lead


def test_a_stretch_is_all_of_the_text_in_shards(sequences: Sequences, settings: TextSettings) -> None:
    """Text would be lost or doubled when several machines share a pass, or a unit not be known to be over."""
    whole = rows(Stretch(sequences, settings))
    assert whole == {n: sequences.sequence_tokens(n).tolist() for n in range(len(sequences))}
    shards = [Stretch(sequences, settings, (i, 3)) for i in range(3)]
    assert {n: ids for shard in shards for n, ids in rows(shard).items()} == whole
    assert sum(shard.n_tokens for shard in shards) == sequences.packed.n_tokens
    for shard in shards:
        assert sum(page.ends for page in shard.pages()) == len(shard.pieces)
    rest = Stretch(sequences, settings, done={0, 2})
    assert set(rows(rest)) == {n for n in whole if sequences.unit_of(n) not in (0, 2)}
    assert rest.read_before + size(rows(rest)) == rest.n_tokens == Stretch(sequences, settings).n_tokens


@pytest.mark.parametrize("tokens", [1, 50, 333])
def test_so_many_tokens(sequences: Sequences, settings: TextSettings, tokens: int) -> None:
    """A limit would be missed by more than the last sequence, or in order take other text than the first."""
    first = Stretch(sequences, settings, tokens=tokens)
    found = rows(first)
    assert sorted(found) == list(range(len(found)))
    assert first.n_tokens == size(found) >= tokens > size(found) - (len(found[len(found) - 1]) - 1)
    assert [page.ends for page in first.pages()][-1]
    numbers = draw_tokens(sequences, tokens, 0)
    drawn = Selection(sequences, settings, numbers)
    assert list(numbers) == sorted(set(numbers.tolist()))
    assert rows(drawn) == {int(n): sequences.sequence_tokens(int(n)).tolist() for n in numbers}
    assert tokens <= drawn.n_tokens == size(rows(drawn)) < tokens + sequences.context
    assert sum(len(page.places) for page in drawn.pages()) == drawn.n_tokens
    assert not set(np.flatnonzero(drawn.token_counts)) & set(settings.special)


def test_the_seed_decides(sequences: Sequences) -> None:
    """The same call would read other text, every seed the beginning of the corpus, or a part be read for the whole."""
    draws = [draw_tokens(sequences, 60, seed).tolist() for seed in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]
    assert max(draws[0]) > len(draws[0])
    for tokens in (None, 10**6):
        assert draw_tokens(sequences, tokens, 3).tolist() == list(range(len(sequences)))


def test_drawn_beginnings(sequences: Sequences, settings: TextSettings) -> None:
    """What follows a place that is wanted would be run too, or be missing where it is wanted."""
    numbers, lengths = np.array([7, 2, 5]), np.array([2, 1, 3])
    found = Selection(sequences, settings, numbers, lengths)
    assert rows(found) == {
        int(n): sequences.sequence_tokens(int(n))[:k].tolist() for n, k in zip(numbers, lengths, strict=True)
    }
    assert found.n_tokens == lengths.sum() - 3 * sequences.lead
