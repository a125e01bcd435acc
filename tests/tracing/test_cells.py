"""Every cell of every map against the published programs' way: one whole forward pass with hooks for each."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import UnsupportedModelError
from ffnmem.models.attention import SOFTMAX, Blocking
from ffnmem.tracing import noise_scale
from ffnmem.tracing.restoring import standard_noise

from ..architectures import DECODERS, MIXTURES, SWEEP
from ..helpers import allclose, build_gpt2, build_gpt_neox, refuses
from . import plain

PROMPT, SUBJECT, NOISE, SAMPLES = "The Eiffel Tower is in", "Eiffel Tower", 2.0, 2
DEEP = {"serial": lambda: build_gpt2(n_layer=4), "parallel": lambda: build_gpt_neox(num_hidden_layers=3)}
WAYS: dict[str, Callable[..., Any]] = {
    "trace": partial(fm.trace_fact, samples=SAMPLES, noise=NOISE),
    "silence": partial(fm.trace_fact, way="silence", kinds=("ffn", "attention")),
    "knockout": partial(fm.knockout, positions=[1, -1]),
}


def check(build: Callable[[], Any], way: str, tokenizer: Any, tolerance: float, tokens: int = 1, **options: Any) -> Any:
    """A map, compared with that of whole passes; ``tokens``: of its answer, which is what the model says."""
    model = fm.load(build(), tokenizer=tokenizer, dtype="float64")
    prompt = model.tokenize(PROMPT)
    said: list[int] = []
    for _ in range(tokens):
        said.append(int(model.hf_model(torch.tensor([[*prompt, *said]])).logits[0, -1].argmax()))
    target = model.tokenizer.decode(said) if tokens > 1 else None
    found = WAYS[way](model, PROMPT, SUBJECT, target=target, **options)
    assert found.answer_ids == tuple(said)
    own: dict[str, Any] = {}
    if way == "trace":
        own["noise"] = NOISE * standard_noise(0, PROMPT, SAMPLES, len(found.subject), model.d_model)
    expected = getattr(plain, way)(build().to(model.dtype), found, prompt, **own)
    for kind in found.kinds:
        assert allclose(found.scores[kind], expected[kind], tolerance)
        assert np.ptp(expected[kind]) > 1e-5, "nothing changes the answer, so that anything would pass"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("window", [1, 2, pytest.param(3, marks=pytest.mark.exhaustive), 10])
@pytest.mark.parametrize("name", DEEP)
def test_every_cell_equals_a_whole_pass(way: str, name: str, window: int, tokenizer: Any) -> None:
    """A layer or position too many, a key of another run, a sample of another row, an FFN that read old attention.

    Answers have one or two tokens, and batches any size."""
    check(
        DEEP[name], way, tokenizer, 1e-10, 1 + window % 2, window=window, batch_tokens={1: 4096, 2: 1}.get(window, 30)
    )


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", SWEEP)
def test_every_architecture(way: str, name: str, tokenizer: Any) -> None:
    """Sliding windows, caps, position biases, shared keys, experts: each keeps its own. Routers may be in float32."""
    check(DECODERS[name], way, tokenizer, 1e-8 if name in MIXTURES else 1e-10, window=1)


def test_noise(tiny: fm.Model) -> None:
    """Three deviations of all numbers of the subjects' tokens; facts that cannot be asked are left out."""
    facts = [fm.Fact(SUBJECT, prompt="The {} is in", target_true="x"), fm.Fact("Rome", prompt="of {}", target_true="x")]
    ids = [tiny.token_id(token) for token in (" Eiffel", " Tower", " Rome")]
    deviation = float(tiny.embedding.detach()[ids].double().std())
    long = fm.Fact("Rome", prompt="{}" + " the" * 40, target_true="x")
    assert noise_scale(tiny, [*facts, long]) == pytest.approx(3 * deviation)
    assert noise_scale(tiny, facts, factor=1) == pytest.approx(deviation)
    with refuses(ValueError, ValueError, tiny.name, "noise"):
        noise_scale(tiny, [long])
    before, many = torch.get_rng_state(), standard_noise(0, "a", 200, 3, 50)
    assert (abs(float(many.mean())) < 0.02, abs(float(many.std()) - 1) < 0.02) == (True, True)
    assert torch.equal(torch.get_rng_state(), before)


def test_attention_without_keys(tiny: fm.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """An attention sink is no key: without any key all weight is its own, and without a sink there is none."""
    scores = torch.zeros(1, 1, 1, 3)
    for hidden, empty in ((2, []), (3, [0])):
        with Blocking(torch.ones(1, hidden, dtype=torch.bool)) as blocking:
            pattern = torch.softmax(scores, -1)
        assert (blocking.taken, blocking.empty) == (1, empty)
        assert empty or pattern.flatten().tolist() == [0, 0, 1]
    with Blocking(torch.ones(1, 3, dtype=torch.bool)) as blocking:
        SOFTMAX[2](scores, dim=-1)
    assert blocking.empty == [0]
    monkeypatch.setattr("ffnmem.models.attention.SOFTMAX", ())
    with refuses(UnsupportedModelError, ValueError, "GPT2", "layer 0", "no softmax"):
        fm.knockout(tiny, PROMPT, SUBJECT)
