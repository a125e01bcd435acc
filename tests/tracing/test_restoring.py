"""Every cell of every kind against the published program's way: one whole forward pass with hooks for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import ffnmem as fm
from ffnmem.facts.questions import find_subject
from ffnmem.models.replaying import PlainLayers, Replay
from ffnmem.tracing import trace_fact
from ffnmem.tracing.restoring import (
    RestoredCell,
    Restoring,
    cell_batches,
    cells_of,
    corrupted,
    probability,
    standard_noise,
)
from ffnmem.tracing.settings import KINDS, SEVERED

from ..helpers import ARCHITECTURES, allclose, build_gpt2, build_gpt_neo, build_gpt_neox, build_opt
from . import plain

PROMPT, SUBJECT, NOISE, SAMPLES = "The Eiffel Tower is in", "Eiffel Tower", 2.0, 2
DEEP: dict[str, Callable[[], Any]] = {
    "gpt2": lambda: build_gpt2(n_layer=4),
    "gpt-neo": lambda: build_gpt_neo(num_layers=3, attention_types=[[["global"], 3]]),
    "gpt-neox parallel": lambda: build_gpt_neox(num_hidden_layers=3),
    "gpt-neox sequential": lambda: build_gpt_neox(num_hidden_layers=3, use_parallel_residual=False),
    "opt": lambda: build_opt(num_hidden_layers=3),
}


def compared(
    build: Callable[[], Any], tokenizer: Any, dtype: str, window: int, kinds: tuple[str, ...]
) -> dict[str, Any]:
    """Ours and the plain way's, for each kind."""
    model = fm.load(build(), tokenizer=tokenizer, dtype=dtype)
    original = build().to(model.dtype)
    trace = trace_fact(model, PROMPT, SUBJECT, kinds=kinds, samples=SAMPLES, noise=NOISE, window=window)
    asked = find_subject(model, PROMPT, SUBJECT)
    noise = NOISE * standard_noise(0, PROMPT, SAMPLES, len(asked.subject), model.d_model)
    return {
        kind: (
            trace.scores[kind],
            plain.trace(original, asked.tokens, asked.subject, noise, trace.answer_ids[0], kind, window),
        )
        for kind in kinds
    }


@pytest.mark.parametrize("name", DEEP)
def test_every_kind_equals_whole_passes(name: str, tokenizer: Any) -> None:
    """In float64 tightly: a restored layer too many, a key of the wrong run, a sample of another row."""
    # GPT-Neo takes its attention scores in float32 whatever its dtype.
    tolerance = 1e-7 if name == "gpt-neo" else 1e-9
    for found, expected in compared(DEEP[name], tokenizer, "float64", 2, (*KINDS, *SEVERED)).values():
        assert allclose(found, expected, tolerance)
        assert np.ptp(expected) > 1e-4, "nothing changes the answer, so that anything would pass"


@pytest.mark.parametrize("window", [1, 3, 10])
@pytest.mark.parametrize("name", ["gpt2", "gpt-neox parallel"])
def test_every_window_equals_whole_passes(name: str, window: int, tokenizer: Any) -> None:
    """Windows that begin at the same layer run as one until they part, and end in the order of their layers."""
    for found, expected in compared(DEEP[name], tokenizer, "float64", window, ("ffn", "attention")).values():
        assert allclose(found, expected, 1e-9)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_float32_equals_whole_passes(name: str, tokenizer: Any) -> None:
    for found, expected in compared(ARCHITECTURES[name], tokenizer, "float32", 1, (*KINDS, *SEVERED)).values():
        assert allclose(found, expected, 1e-5)


def replay_of(model: fm.Model) -> tuple[Replay, range]:
    asked = find_subject(model, PROMPT, SUBJECT)
    embeddings = corrupted(model, asked, NOISE, SAMPLES, 0)
    tokens = torch.tensor([asked.tokens]).repeat(len(embeddings), 1)
    return Replay(PlainLayers(model), tokens, embeddings=embeddings), asked.subject


def test_identities(tokenizer: Any) -> None:
    """The last state of the last token is the clean answer; the last layer elsewhere, and all of it before the
    subject, change nothing; a window of all layers is the same for each."""
    model = fm.load(DEEP["gpt2"](), tokenizer=tokenizer, dtype="float64")
    trace = trace_fact(model, PROMPT, SUBJECT, samples=SAMPLES, noise=NOISE, window=10)
    assert trace.scores["state"][-1, -1] == pytest.approx(trace.clean, abs=1e-12)
    for kind in KINDS:
        assert (trace.scores[kind][:, : trace.subject.start] == trace.corrupted).all()
    assert (trace.scores["state"][-1, :-1] == trace.corrupted).all()
    assert allclose(np.ptp(trace.scores["ffn"], axis=0), np.zeros(len(trace.tokens)), 1e-12)


def test_a_batch_of_any_size_says_the_same(tokenizer: Any) -> None:
    """A window parts from another one only where both are in the same batch."""
    model = fm.load(DEEP["gpt2"](), tokenizer=tokenizer, dtype="float64")
    whole, single = (
        trace_fact(model, PROMPT, SUBJECT, kinds=("ffn",), samples=2, noise=NOISE, window=4, batch_tokens=tokens)
        for tokens in (4096, 30)
    )
    for kind, scores in whole.scores.items():
        assert allclose(single.scores[kind], scores, 1e-12)


def test_nothing_is_changed_in_place(tiny: fm.Model) -> None:
    """The runs are shared by all cells."""
    replay, subject = replay_of(tiny)
    before = {name: getattr(replay, name)[1].clone() for name in ("stream", "ffn", "attention")}
    for kind in (*KINDS, *SEVERED):
        with torch.no_grad():
            Restoring(replay, kind, subject[-1], subject.start).run(cells_of(kind, tiny.n_layers, 2))
    for name, kept in before.items():
        assert torch.equal(getattr(replay, name)[1], kept)


def test_cells_are_the_published_windows() -> None:
    """Range(max(0, l − w//2), min(n, l − (−w//2))), as the published program has it."""
    assert [(c.start, c.end) for c in cells_of("ffn", 5, 3)] == [(0, 2), (0, 3), (1, 4), (2, 5), (3, 5)]
    assert [(c.start, c.end) for c in cells_of("attention", 4, 2)] == [(0, 1), (0, 2), (1, 3), (2, 4)]
    for window in range(1, 12):
        for cell in cells_of("ffn", 7, window):
            assert cell.start == max(0, cell.layer - window // 2)
            assert cell.end == min(7, cell.layer - (-window // 2))
    assert [(c.start, c.end) for c in cells_of("severed_ffn", 3, 9)] == [(0, 3), (1, 3), (2, 3)]
    assert [c.start for c in cells_of("state", 3, 9)] == [0, 1, 2]


def test_chunks() -> None:
    cells = [RestoredCell(i, i, i + 1) for i in range(5)]
    assert [len(chunk) for chunk in cell_batches(cells, 10, 20)] == [2, 2, 1]
    assert [len(chunk) for chunk in cell_batches(cells, 100, 20)] == [1] * 5


def test_probability(tiny: fm.Model) -> None:
    """Of more rows than are unembedded at once, in their order."""
    layers = PlainLayers(tiny)
    final = torch.randn(2, 300, 2, tiny.d_model, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        found = probability(layers, final, (7, 9))
        every = layers.logits(final).double().softmax(-1)
        expected = every[..., 0, 7] * every[..., 1, 9]
    assert found.dtype == torch.float64
    assert allclose(found, expected, 1e-6)
