"""LongRoPE, which turns positions by other factors in texts that are longer than the model's first ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import InputError
from ffnmem.corpus import batches
from ffnmem.models.answers import Question, answer, generate, written_on
from ffnmem.models.layer_pass import LayerPass
from ffnmem.models.replaying import PlainLayers

from ..helpers import PROMPT, allclose, build, refuses

SHORT = 8
TEXTS = ("Paris", " ".join([PROMPT] * 2), "so it is")
ROPE = {
    "rope_type": "longrope",
    "rope_theta": 10_000.0,
    "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [1.5, 2.0, 3.0, 4.0],
}


@pytest.fixture(scope="module")
def long_rope(tokenizer: Any) -> fm.Model:
    sizes = {"rope_parameters": ROPE, "max_position_embeddings": 96, "original_max_position_embeddings": SHORT}
    return fm.load(build("Phi3", **sizes), tokenizer=tokenizer, dtype="float64")


def test_rows_are_prompts_of_their_own(long_rope: fm.Model) -> None:
    """Hugging Face takes the factors of the longest row for all: short prompts would answer otherwise beside a long
    one. Attention takes its softmax in float32, LayerPass's does not."""
    alone = [fm.capture(long_rope, text, logits=True) for text in TEXTS]
    lengths = torch.tensor([one.length() for one in alone])
    assert (lengths <= SHORT).tolist() == [True, False, True]
    together = fm.capture(long_rope, TEXTS, logits=True)
    found: dict[int, torch.Tensor] = {}
    body = LayerPass(long_rope)
    body.run(together.tokens, lambda layer, _pre, m: found.update({layer: m.clone()}), lengths=lengths)
    for row, one in enumerate(alone):
        assert allclose(together.logits_at(row, one.length() - 1), one.logits_at(0, one.length() - 1), 1e-6)
        own: dict[int, torch.Tensor] = {}
        body.run(one.tokens, lambda layer, _pre, m, own=own: own.update({layer: m.clone()}))  # type: ignore[misc]
        for layer, m in own.items():
            assert allclose(found[layer].unflatten(0, together.tokens.shape)[row, : one.length()], m, 1e-12)
            assert allclose(one.coefficients[layer][0], m, 1e-6)


def test_an_answer_inside_a_long_prompt_is_of_other_factors(long_rope: fm.Model) -> None:
    """What runs the prompt again up to the answer would take the short ones; attribution runs nothing again."""
    capture = fm.capture(long_rope, TEXTS[1])
    assert fm.attribute(capture, position=3).error < 1e-12
    for run in (fm.attribute_paths, fm.causal_scores, fm.faithfulness, fm.minimal_circuit, fm.ablate):
        with refuses(InputError, ValueError, f"{capture.length()} tokens", "position 3", "capture the prompt up to"):
            run(capture, position=3)
        assert run(capture, position=SHORT).position == SHORT


def test_answers_and_texts(long_rope: fm.Model) -> None:
    """A text that grows past the length is read anew from there on, as Hugging Face's own generation does."""
    layers, prompts = PlainLayers(long_rope), [long_rope.tokenize(text) for text in TEXTS]
    questions = [Question(tuple(prompt), ((5,), (6, 7))) for prompt in prompts]
    together, _ = answer(layers, questions)
    for question, found in zip(questions, together, strict=True):
        (expected,), _ = answer(layers, [question])
        assert allclose(torch.cat(found.log_probabilities), torch.cat(expected.log_probabilities), 1e-6)
    rooms = [12, 4, 9]
    expected_texts = [generate(long_rope, prompt, room) for prompt, room in zip(prompts, rooms, strict=True)]
    assert written_on(layers, prompts, rooms) == expected_texts
    assert written_on(layers, prompts, rooms, keep=lambda _: None) == expected_texts


def test_what_is_read_in_pages(long_rope: fm.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Statistics of a corpus would depend on which sequences share a batch."""
    monkeypatch.setattr(batches, "PADDING", 0.5)  # short ones beside long ones
    texts = [PROMPT[begin:] for begin in range(len(PROMPT))]
    found = [
        fm.neurons.neuron_health(long_rope, texts, tokens=None, batch_tokens=n).neurons.select_dtypes("number")
        for n in (1, 4096)
    ]
    assert allclose(*(torch.from_numpy(one.to_numpy(float)) for one in found), 1e-12)
    stores = [fm.scan(long_rope, texts, tmp_path / str(n), batch_tokens=n) for n in (1, 4096)]
    assert allclose(*(torch.tensor(one.stats()["mean"].to_numpy(float)) for one in stores), 1e-5)
