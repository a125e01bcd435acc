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
from ffnmem.corpus.excerpts import Page, Selection, Stretch, TextSettings, check_shard, draw_tokens

from ..helpers import refuses
from ..scanning.texts import tiny_texts


def checked(model: fm.Model, **changes: Any) -> TextSettings:
    return TextSettings.checked(model, **{"context": None, "prepend_bos": None, "batch_tokens": 64} | changes)


@pytest.fixture
def settings(tiny: fm.Model) -> TextSettings:
    return checked(tiny, context=16)


@pytest.fixture
def sequences(tiny: fm.Model, settings: TextSettings, tmp_path: Path) -> Sequences:
    return settings.sequences(pack(tiny_texts(), tiny, tmp_path / "corpus"))


def held(sequences: Sequences, numbers: np.ndarray) -> int:
    return sum(len(sequences.sequence_tokens(int(number))) - sequences.lead for number in numbers)


# -- settings ---------------------------------------------------------------------------------------------------------


def test_defaults(tiny: fm.Model) -> None:
    """A pass would read other sequences than a scan does."""
    found = checked(tiny)
    assert found.context == tiny.n_ctx
    assert found.prepend_bos
    assert found.bos == tiny.bos_token_id
    assert not checked(tiny, prepend_bos=False).prepend_bos


@pytest.mark.parametrize(
    ("changes", "named"),
    [({"context": 1000}, "32")],
)
def test_refused(tiny: fm.Model, changes: dict[str, Any], named: str) -> None:
    """Settings that cannot be would give numbers."""
    with refuses(InputError, ValueError, named):
        checked(tiny, **changes)


@pytest.mark.parametrize("shard", [(1, 1), (-1, 2), (0, 0)])
def test_that_shards_that_are_none_are_refused(shard: tuple[int, int]) -> None:
    with refuses(InputError, ValueError, "shard"):
        check_shard(shard)


# -- pages ------------------------------------------------------------------------------------------------------------


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


# -- in order ---------------------------------------------------------------------------------------------------------


def rows(excerpt: Stretch | Selection) -> dict[int, list[int]]:
    """The tokens of every sequence that is read."""
    found: dict[int, list[int]] = {}
    for page in excerpt.pages():
        for number, ids, length in zip(page.batch.sequences, page.batch.tokens, page.batch.lengths, strict=True):
            assert int(number) not in found
            found[int(number)] = ids[:length].tolist()
    return found


def test_a_stretch_is_all_of_the_text_in_shards(
    sequences: Sequences, settings: TextSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Text would be lost or doubled when several machines share a pass, or a unit not be known to be over."""
    monkeypatch.setattr(sequences_module, "UNIT", 8)
    sequences = settings.sequences(sequences.packed)
    whole = rows(Stretch(sequences, settings))
    assert whole == {n: sequences.sequence_tokens(n).tolist() for n in range(len(sequences))}
    shards = [Stretch(sequences, settings, (i, 3)) for i in range(3)]
    assert {n: ids for shard in shards for n, ids in rows(shard).items()} == whole
    assert sum(shard.n_tokens for shard in shards) == sequences.packed.n_tokens
    for shard in shards:
        assert sum(page.ends for page in shard.pages()) == len(shard.pieces)
    rest = Stretch(sequences, settings, done={0, 2})
    assert set(rows(rest)) == set(whole) - {
        n for i in (0, 2) for n in range(*sequences.units.sequences[i : i + 2].tolist())
    }
    assert (
        rest.read_before + sum(page.n_tokens for page in rest.pages())
        == rest.n_tokens
        == Stretch(sequences, settings).n_tokens
    )


@pytest.mark.parametrize("tokens", [1, 50, 333])
def test_a_stretch_ends_with_the_sequence_that_brings_it_there(
    sequences: Sequences, settings: TextSettings, tokens: int
) -> None:
    """A limit would be missed by more than the last sequence, or take other text than the first."""
    found = Stretch(sequences, settings, tokens=tokens)
    numbers = sorted(rows(found))
    assert numbers == list(range(len(numbers)))
    assert found.n_tokens == held(sequences, np.array(numbers)) >= tokens
    assert held(sequences, np.array(numbers[:-1])) < tokens
    assert [page.ends for page in found.pages()][-1]


# -- at random --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [1, 50, 333])
def test_so_many_tokens(sequences: Sequences, tokens: int) -> None:
    """A limit would be missed by more than the last sequence."""
    numbers = draw_tokens(sequences, tokens, 0)
    assert tokens <= held(sequences, numbers) < tokens + sequences.context
    assert list(numbers) == sorted(set(numbers.tolist()))


def test_all(sequences: Sequences) -> None:
    """A part would be read for the whole."""
    every = list(range(len(sequences)))
    assert draw_tokens(sequences, None, 0).tolist() == every
    assert draw_tokens(sequences, 10**6, seed=3).tolist() == every


def test_the_seed_decides(sequences: Sequences) -> None:
    """The same call would read other text; or every seed the beginning of the corpus."""
    draws = [draw_tokens(sequences, 60, seed).tolist() for seed in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]
    assert max(draws[0]) > len(draws[0])


def test_drawn_pages_hold_what_was_drawn_once(sequences: Sequences, settings: TextSettings) -> None:
    """Sequences would be left out, read twice, or their BOS and special tokens counted."""
    numbers = draw_tokens(sequences, 100, 0)
    found = Selection(sequences, settings, numbers)
    assert rows(found) == {int(n): sequences.sequence_tokens(int(n)).tolist() for n in numbers}
    assert len(list(found.pages())) > 1
    assert sum(len(page.places) for page in found.pages()) == found.n_tokens == held(sequences, numbers)
    assert not set(np.flatnonzero(found.token_counts)) & set(settings.special)


def test_drawn_beginnings(sequences: Sequences, settings: TextSettings) -> None:
    """What follows a place that is wanted would be run too, or be missing where it is wanted."""
    numbers = np.array([7, 2, 5])
    lengths = np.array([2, 1, 3])
    found = Selection(sequences, settings, numbers, lengths)
    whole = {int(n): sequences.sequence_tokens(int(n))[:k].tolist() for n, k in zip(numbers, lengths, strict=True)}
    assert rows(found) == whole
    assert found.n_tokens == lengths.sum() - 3 * sequences.lead
