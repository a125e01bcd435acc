"""What is read of a corpus, and the one pass over it: a new statistic is one class, which goes on where it was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import FileError, InputError, UnsupportedModelError
from ffnmem.corpus import batches, pack
from ffnmem.corpus.batches import Batch, Sequences
from ffnmem.corpus.excerpts import (
    Excerpt,
    Page,
    Selection,
    Stretch,
    TextSettings,
    check_shard,
    draw_sequences,
    draw_tokens,
)
from ffnmem.corpus.passes import STATE, Forward, Statistic, accumulate, read

from ..helpers import allclose, refuses
from ..scanning.texts import tiny_texts


@pytest.fixture
def settings(tiny: fm.Model) -> TextSettings:
    return TextSettings.checked(tiny, 16, None, 48)


@pytest.fixture
def sequences(tiny: fm.Model, settings: TextSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sequences:
    monkeypatch.setattr(batches, "UNIT", 8)
    return settings.sequences(pack(tiny_texts(), tiny, tmp_path / "corpus"))


# -- what is read ----------------------------------------------------------------------------------------------------


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
    counts = np.zeros(sequences.packed.vocab, int)
    np.add.at(counts, [token for ids in rows(drawn).values() for token in ids if token not in settings.special], 1)
    assert drawn.token_counts.tolist() == counts.tolist()


def test_the_seed_decides(sequences: Sequences) -> None:
    """The same call would read other text, every seed the beginning of the corpus, or a part be read for the whole."""
    for draw, some in ((draw_tokens, 60), (draw_sequences, 7)):
        draws = [draw(sequences, some, seed).tolist() for seed in (0, 0, 1)]
        assert draws[0] == draws[1] == sorted(draws[0]) != draws[2]
        assert max(draws[0]) > len(set(draws[0])) == len(draws[0])
        for every in (None, 10**6):
            assert draw(sequences, every, 3).tolist() == list(range(len(sequences)))
    assert len(draws[0]) == 7


def test_drawn_beginnings(sequences: Sequences, settings: TextSettings) -> None:
    """What follows a place that is wanted would be run too, or be missing where it is wanted."""
    numbers, lengths = np.array([7, 2, 5]), np.array([2, 1, 3])
    found = Selection(sequences, settings, numbers, lengths)
    assert rows(found) == {
        n: sequences.sequence_tokens(n)[:k].tolist() for n, k in zip((7, 2, 5), (2, 1, 3), strict=True)
    }
    assert found.n_tokens == lengths.sum() - 3 * sequences.lead


# -- the pass --------------------------------------------------------------------------------------------------------


class Mean(Statistic):
    """The mean coefficient of layer 1: all that a new statistic needs."""

    def __init__(self, model: fm.Model, scale: int | None = None) -> None:
        super().__init__({"sum": np.zeros(model.ffn[1].d_mlp), "count": np.zeros((), np.int64)})
        self.made_by = {} if scale is None else {"scale": scale}

    def add(
        self, page: Page, layer: int, pre: torch.Tensor, coefficients: torch.Tensor, linear: torch.Tensor | None
    ) -> None:
        if layer == 1:
            self.arrays["sum"] += coefficients[page.places].double().sum(0).numpy()
            self.arrays["count"] += len(page.places)


class Other(Mean):
    """Another statistic with the same arrays."""


def test_a_new_statistic_is_one_class(tiny: fm.Model, sequences: Sequences, settings: TextSettings) -> None:
    """It would see other tokens, or other coefficients, than the scan; in shards, some text twice or not at all."""
    mean, shards = Mean(tiny), [Mean(tiny) for _ in range(2)]
    accumulate(tiny, Stretch(sequences, settings), [mean], "text", until=1)
    found = []
    for number in range(len(sequences)):
        ids = torch.from_numpy(sequences.sequence_tokens(number)).unsqueeze(0)
        keep = [int(token) not in tiny.special_token_ids for token in ids[0]]
        found.append(fm.capture(tiny, ids).coefficients[1][0, keep].double())
    expected = torch.cat(found)
    assert mean.arrays["count"] == len(expected)
    assert allclose(mean.arrays["sum"] / mean.arrays["count"], expected.mean(0), 1e-5)
    for index, shard in enumerate(shards):
        accumulate(tiny, Stretch(sequences, settings, (index, 2)), [shard], "text")
    shards[0].merge(shards[1])
    assert shards[0].arrays["count"] == mean.arrays["count"]
    assert allclose(shards[0].arrays["sum"], mean.arrays["sum"], 1e-6)
    nothing = Mean(tiny)
    accumulate(tiny, Stretch(sequences, settings), [nothing], "text", until=0)
    assert not nothing.arrays["count"]


def test_it_goes_on_after_a_kill(tiny: fm.Model, sequences: Sequences, settings: TextSettings, tmp_path: Path) -> None:
    """Pages would be read twice or not at all; several statistics in one pass share its file."""
    whole, told = Mean(tiny), []
    accumulate(tiny, Stretch(sequences, settings), [whole], "text")

    def killer(phase: str, done: int, total: int) -> None:
        assert (phase, total) == ("text", sequences.packed.n_tokens)
        told.append(done)
        if len(told) % 4 == 0:
            raise KeyboardInterrupt

    for _ in range(50):
        again = [Mean(tiny) for _ in range(2)]
        try:
            accumulate(tiny, Stretch(sequences, settings), again, "text", killer, folder=tmp_path, every=-1.0)
        except KeyboardInterrupt:
            continue
        break
    assert told == sorted(told)
    assert told[-1] == sequences.packed.n_tokens
    assert len(told) > 8
    count = len(told)
    accumulate(tiny, Stretch(sequences, settings), last := [Mean(tiny), Mean(tiny)], "text", killer, folder=tmp_path)
    assert len(told) == count  # all of it was kept
    for one in (*again, *last):
        assert all(np.array_equal(one.arrays[name], array) for name, array in whole.arrays.items())


def test_what_another_pass_kept_is_refused(
    tiny: fm.Model, sequences: Sequences, settings: TextSettings, tmp_path: Path
) -> None:
    """Two passes would be mixed in one sum, or a file of another statistic be believed."""

    def go_on(excerpt: Excerpt, statistics: Sequence[Statistic]) -> None:
        accumulate(tiny, excerpt, statistics, "text", folder=tmp_path, every=-1.0)

    wide = Mean(tiny)
    wide.arrays["sum"] = np.zeros(3)
    whole, narrow = Stretch(sequences, settings), replace(settings, batch_tokens=49)
    some, others = (Selection(sequences, settings, np.array([1, other])) for other in (2, 3))
    refused: list[tuple[Any, Any, Any, Any, list[str]]] = [
        (
            whole,
            [Mean(tiny)],
            Stretch(sequences, narrow),
            [Mean(tiny)],
            ["batch_tokens 48, not 49", "remove this folder"],
        ),
        (some, [Mean(tiny)], others, [Mean(tiny)], ["begun with sequences"]),
        (some, [Mean(tiny)], some, [Other(tiny)], ["begun with statistics"]),
        (some, [Mean(tiny)], some, [Mean(tiny), Mean(tiny)], ["begun with statistics"]),
        (some, [Mean(tiny)], some, [wide], ["another statistic: sum is float64 [64], not float64 [3]"]),
        (some, [Mean(tiny, 1)], some, [Mean(tiny, 5)], ["begun with scale 1, not 5"]),
    ]
    for excerpt, statistics, another, wrong, named in refused:
        go_on(excerpt, statistics)
        with refuses(FileError, OSError, str(tmp_path), *named):
            go_on(another, wrong)
        (tmp_path / STATE).unlink()


def test_mistakes(tiny: fm.Model, sequences: Sequences, settings: TextSettings) -> None:
    """After hours, nobody would know which text it was; layers by themselves would be measured without a change."""

    def take(page: Page) -> None:
        raise InputError("layer 1 is broken")

    with refuses(InputError, ValueError, "layer 1 is broken, somewhere in sequences 2 to"):
        read(Selection(sequences, settings, np.array([2, 5]), together=2), take, "text")
    with fm.intervene(tiny, {(0, 3): 0.0}), refuses(UnsupportedModelError, ValueError, "intervention"):
        Forward(tiny, [])
    defaults = TextSettings.checked(tiny, None, None, 64)
    assert (defaults.context, defaults.bos, defaults.prepend_bos) == (tiny.n_ctx, tiny.bos_token_id, True)
    assert not TextSettings.checked(tiny, None, False, 64).prepend_bos
    with refuses(InputError, ValueError, "32"):
        TextSettings.checked(tiny, 1000, None, 64)
    for shard in ((1, 1), (-1, 2), (0, 0)):
        with refuses(InputError, ValueError, "shard"):
            check_shard(shard)
