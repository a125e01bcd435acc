"""The one pass: a new statistic is one class; it goes on where it was, tells how far it is, and where a mistake was."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import InputError, UnsupportedModelError
from ffnmem.corpus import pack
from ffnmem.corpus.batches import Sequences
from ffnmem.corpus.excerpts import Drawn, Page, Stretch, TextSettings
from ffnmem.corpus.passes import Accumulator, Checkpoint, Forward, read

from ..helpers import allclose, refuses
from ..scanning.texts import tiny_texts


class Mean(Accumulator):
    """The mean coefficient of layer 1: all that a new statistic needs."""

    def __init__(self) -> None:
        self.sum: torch.Tensor | float = 0.0
        self.count = 0

    def add(
        self, page: Page, layer: int, pre: torch.Tensor, coefficients: torch.Tensor, linear: torch.Tensor | None
    ) -> None:
        if layer == 1:
            self.sum = self.sum + coefficients[page.places].double().sum(0)
            self.count += len(page.places)


@pytest.fixture
def settings(tiny: fm.Model) -> TextSettings:
    return TextSettings.checked(tiny, 16, None, 48)


@pytest.fixture
def sequences(tiny: fm.Model, settings: TextSettings, tmp_path: Path) -> Sequences:
    return settings.sequences(pack(tiny_texts(), tiny, tmp_path / "corpus"))


def test_a_new_statistic_is_one_class(tiny: fm.Model, sequences: Sequences, settings: TextSettings) -> None:
    """It would see other tokens, or other coefficients, than the scan."""
    mean = Mean()
    read(Stretch(sequences, settings), Forward(tiny, [mean], until=1), "mean")
    found = []
    for number in range(len(sequences)):
        ids = torch.from_numpy(sequences.sequence_tokens(number)).unsqueeze(0)
        keep = [int(token) not in tiny.special_token_ids for token in ids[0]]
        found.append(fm.capture(tiny, ids).coefficients[1][0, keep].double())
    expected = torch.cat(found)
    assert mean.count == len(expected)
    assert allclose(mean.sum / mean.count, expected.mean(0), 1e-5)


def test_progress_is_in_tokens_of_text_up_to_the_end(sequences: Sequences, settings: TextSettings) -> None:
    """A bar would stand still, or end at another number than it announced."""
    for excerpt in (Stretch(sequences, settings), Drawn(sequences, settings, np.array([5, 2]))):
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
        read(Drawn(sequences, settings, np.array([2, 5]), together=2), take, "text")


def test_a_model_that_is_changed_is_refused(tiny: fm.Model) -> None:
    """Its layers by themselves would be measured without the change."""
    with fm.intervene(tiny, {(0, 3): 0.0}), refuses(UnsupportedModelError, ValueError, "intervention"):
        Forward(tiny, [])
