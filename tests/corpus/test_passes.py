"""The one pass: a new statistic is one class; it goes on where it was, tells how far it is, and where a mistake was."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import FileError, InputError, UnsupportedModelError
from ffnmem.core.progress import Progress
from ffnmem.corpus import batches, pack
from ffnmem.corpus.batches import Sequences
from ffnmem.corpus.excerpts import Excerpt, Page, Selection, Stretch, TextSettings
from ffnmem.corpus.passes import STATE, Checkpoint, Forward, Statistic, accumulate, read

from ..helpers import allclose, refuses
from ..scanning.texts import tiny_texts


class Mean(Statistic):
    """The mean coefficient of layer 1: all that a new statistic needs."""

    def __init__(self, model: fm.Model) -> None:
        super().__init__({"sum": np.zeros(model.ffn[1].d_mlp), "count": np.zeros((), np.int64)})

    def add(
        self, page: Page, layer: int, pre: torch.Tensor, coefficients: torch.Tensor, linear: torch.Tensor | None
    ) -> None:
        if layer == 1:
            self.arrays["sum"] += coefficients[page.places].double().sum(0).numpy()
            self.arrays["count"] += len(page.places)


@pytest.fixture
def settings(tiny: fm.Model) -> TextSettings:
    return TextSettings.checked(tiny, 16, None, 48)


@pytest.fixture
def sequences(tiny: fm.Model, settings: TextSettings, tmp_path: Path) -> Sequences:
    return settings.sequences(pack(tiny_texts(), tiny, tmp_path / "corpus"))


def test_a_new_statistic_is_one_class(tiny: fm.Model, sequences: Sequences, settings: TextSettings) -> None:
    """It would see other tokens, or other coefficients, than the scan."""
    mean = Mean(tiny)
    accumulate(tiny, Stretch(sequences, settings), [mean], "text", until=1)
    found = []
    for number in range(len(sequences)):
        ids = torch.from_numpy(sequences.sequence_tokens(number)).unsqueeze(0)
        keep = [int(token) not in tiny.special_token_ids for token in ids[0]]
        found.append(fm.capture(tiny, ids).coefficients[1][0, keep].double())
    expected = torch.cat(found)
    assert mean.arrays["count"] == len(expected)
    assert allclose(mean.arrays["sum"] / mean.arrays["count"], expected.mean(0), 1e-5)


def killer(after: int) -> Progress:
    """A progress that ends a pass as a kill would, but for what a checkpoint left."""
    calls = iter(range(after))

    def progress(phase: str, done: int, total: int) -> None:
        if next(calls, None) is None:
            raise KeyboardInterrupt

    return progress


@pytest.mark.parametrize("count", [1, 2])
def test_it_goes_on_after_a_kill(
    tiny: fm.Model, sequences: Sequences, settings: TextSettings, tmp_path: Path, count: int
) -> None:
    """Every statistic would need a file, and a rule of its own for what is in it; several in one pass share it."""
    whole = Mean(tiny)
    accumulate(tiny, Stretch(sequences, settings), [whole], "text")
    told: list[int] = []
    for _ in range(50):
        again = [Mean(tiny) for _ in range(count)]
        try:
            accumulate(tiny, Stretch(sequences, settings), again, "text", killer(3), folder=tmp_path, every=-1.0)
        except KeyboardInterrupt:
            continue
        break
    accumulate(
        *(tiny, Stretch(sequences, settings), again := [Mean(tiny) for _ in range(count)], "text"),
        progress=lambda _phase, done, _total: told.append(done),
        folder=tmp_path,
    )
    assert all(np.array_equal(one.arrays[name], whole.arrays[name]) for one in again for name in whole.arrays)
    assert not told  # all of it was kept


def test_what_another_pass_kept_is_refused(
    tiny: fm.Model, sequences: Sequences, settings: TextSettings, tmp_path: Path
) -> None:
    """Two passes would be mixed in one sum, or a file of another statistic be believed."""

    def go_on(excerpt: Excerpt, *statistics: Statistic) -> None:
        accumulate(tiny, excerpt, statistics, "text", folder=tmp_path, every=-1.0)

    go_on(Stretch(sequences, settings), Mean(tiny))
    with refuses(FileError, OSError, str(tmp_path), "batch_tokens 48, not 49", "remove this folder"):
        go_on(Stretch(sequences, replace(settings, batch_tokens=49)), Mean(tiny))
    with refuses(FileError, OSError, "begun with sequences"):
        go_on(Stretch(sequences, settings, tokens=20), Mean(tiny))
    with refuses(FileError, OSError, "sequences"):
        (tmp_path / STATE).unlink()
        go_on(Selection(sequences, settings, np.array([1, 2])), Mean(tiny))
        go_on(Selection(sequences, settings, np.array([1, 3])), Mean(tiny))
    some = Selection(sequences, settings, np.array([1, 2]))
    for others in ([Other(tiny)], [Mean(tiny), Mean(tiny)]):
        with refuses(FileError, OSError, "begun with statistics"):
            go_on(some, *others)
    wide = Mean(tiny)
    wide.arrays["sum"] = np.zeros(3)
    with refuses(FileError, OSError, "holds another statistic: sum is float64 [64], not float64 [3]"):
        go_on(some, wide)
    (tmp_path / STATE).unlink()
    go_on(some, Scaled(tiny, 1), Scaled(tiny, 2))
    with refuses(FileError, OSError, "begun with 0.scale 1, not 5"):
        go_on(some, Scaled(tiny, 5), Scaled(tiny, 2))


class Other(Mean):
    """Another statistic with the same arrays."""


class Scaled(Mean):
    """Its numbers depend on one that it was made with."""

    def __init__(self, model: fm.Model, scale: int) -> None:
        super().__init__(model)
        self.made_by = {"scale": scale}


def test_shards_are_joined(
    tiny: fm.Model, settings: TextSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Text would be lost or doubled when several machines share a pass, one of them killed on the way."""
    monkeypatch.setattr(batches, "UNIT", 8)
    sequences = settings.sequences(pack(tiny_texts(), tiny, tmp_path / "corpus"))
    whole, shards = Mean(tiny), [Mean(tiny) for _ in range(2)]
    accumulate(tiny, Stretch(sequences, settings), [whole], "text")
    (tmp_path / "kept").mkdir()
    with pytest.raises(KeyboardInterrupt):
        accumulate(
            *(tiny, Stretch(sequences, settings, (1, 2)), [Mean(tiny)], "text", killer(2)),
            folder=tmp_path / "kept",
            every=-1.0,
        )
    for index, shard in enumerate(shards):
        folder = tmp_path / "kept" if index else None
        accumulate(tiny, Stretch(sequences, settings, (index, 2)), [shard], "text", folder=folder)
    shards[0].merge(shards[1])
    assert shards[0].arrays["count"] == whole.arrays["count"]
    assert allclose(shards[0].arrays["sum"], whole.arrays["sum"], 1e-6)


def test_progress_is_in_tokens_of_text_up_to_the_end(sequences: Sequences, settings: TextSettings) -> None:
    """A bar would stand still, or end at another number than it announced."""
    for excerpt in (Stretch(sequences, settings), Selection(sequences, settings, np.array([5, 2]))):
        told: list[tuple[str, int, int]] = []
        read(excerpt, lambda _page: None, "text", lambda *now, told=told: told.append(now))
        assert {(phase, total) for phase, _, total in told} == {("text", excerpt.n_tokens)}
        assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)
        assert told[-1][1] == excerpt.n_tokens


def test_it_goes_on_where_the_checkpoint_was(sequences: Sequences, settings: TextSettings) -> None:
    """Pages would be read twice or not at all, or a checkpoint say another number than it holds."""
    every: list[list[int]] = []
    read(Stretch(sequences, settings), lambda page: every.append(page.batch.sequences.tolist()), "text")
    kept, taken = [], []

    def take(page: Page) -> None:
        taken.append(page.batch.sequences.tolist())
        if len(taken) == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        read(Stretch(sequences, settings), take, "text", checkpoint=Checkpoint(0, kept.append, -1.0))
    assert kept == [1, 2, 3]
    rest: list[list[int]] = []
    told: list[int] = []
    read(
        Stretch(sequences, settings),
        lambda page: rest.append(page.batch.sequences.tolist()),
        "text",
        lambda _phase, done, _total: told.append(done),
        Checkpoint(3, kept.append),
    )
    assert every[:3] + rest == every
    assert told[0] > sum(len(sequences.sequence_tokens(n)) - 1 for page in every[:3] for n in page)


def test_a_mistake_says_where_it_was(sequences: Sequences, settings: TextSettings) -> None:
    """After hours, nobody would know which text it was."""

    def take(page: Page) -> None:
        raise InputError("layer 1 is broken")

    with refuses(InputError, ValueError, "layer 1 is broken, somewhere in sequences 2 to"):
        read(Selection(sequences, settings, np.array([2, 5]), together=2), take, "text")


def test_a_model_that_is_changed_is_refused(tiny: fm.Model) -> None:
    """Its layers by themselves would be measured without the change."""
    with fm.intervene(tiny, {(0, 3): 0.0}), refuses(UnsupportedModelError, ValueError, "intervention"):
        Forward(tiny, [])
