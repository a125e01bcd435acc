"""Silencing against whole passes with plain hooks, one a cell, and what it says of many facts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import InputError
from ffnmem.tracing import Silencing, silence_fact
from ffnmem.tracing.places import Place

from ..helpers import ARCHITECTURES, allclose, build_gpt2, refuses
from . import plain
from .test_restoring import DEEP, PROMPT, SUBJECT


def whole_pass(
    hf: Any, tokens: Sequence[int], answer: int, kind: str, layers: range, place: Place, written: list[torch.Tensor]
) -> float:
    """The answer's probability in one forward pass with hooks on every silenced module."""

    def silence(layer: int) -> Callable[[torch.Tensor], None]:
        def change(x: torch.Tensor) -> None:
            x[:, list(place.positions)] = written[layer]

        return change

    handles = []
    for layer in layers:
        module = plain.module_of(plain.blocks_of(hf)[layer], kind)
        handles.append(module.register_forward_hook(plain.hooked(silence(layer), len(tokens))))
    try:
        with torch.no_grad():
            logits = hf(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, -1]
    finally:
        for handle in handles:
            handle.remove()
    return float(logits.double().softmax(-1)[answer])


def whole_passes(
    hf: Any, found: Silencing, kind: str, written: list[torch.Tensor], tokens: Sequence[int]
) -> np.ndarray:
    n_layers, window = found.n_layers, found.window
    scores = np.zeros((n_layers, len(found.places)))
    for layer in range(n_layers):
        layers = range(max(0, layer - window // 2), min(n_layers, layer - (-window // 2)))
        for column, place in enumerate(found.places):
            scores[layer, column] = whole_pass(hf, tokens, found.answer_ids[0], kind, layers, place, written)
    return scores


@pytest.mark.parametrize("window", [1, 2])
@pytest.mark.parametrize("name", DEEP)
def test_every_cell_equals_a_whole_pass(name: str, window: int, tokenizer: Any) -> None:
    """In float64 tightly: a layer or position too many, a key of the other run, an FFN that read the old attention."""
    model = fm.load(DEEP[name](), tokenizer=tokenizer, dtype="float64")
    original = DEEP[name]().to(model.dtype)
    found = silence_fact(model, PROMPT, SUBJECT, kinds=("ffn", "attention"), window=window)
    nothing = [torch.zeros(model.d_model, dtype=model.dtype)] * model.n_layers
    for kind in found.kinds:
        expected = whole_passes(original, found, kind, nothing, model.tokenize(PROMPT))
        assert allclose(found.scores[kind], expected, 1e-7 if name == "gpt-neo" else 1e-9)
        assert np.ptp(expected) > 1e-4, "nothing changes the answer, so that anything would pass"


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_float32_equals_whole_passes(name: str, tokenizer: Any) -> None:
    model = fm.load(ARCHITECTURES[name](), tokenizer=tokenizer, dtype="float32")
    found = silence_fact(model, PROMPT, SUBJECT, window=1)
    nothing = [torch.zeros(model.d_model)] * model.n_layers
    expected = whole_passes(ARCHITECTURES[name](), found, "ffn", nothing, model.tokenize(PROMPT))
    assert allclose(found.scores["ffn"], expected, 1e-6)


def test_the_mean_is_what_mean_coefficients_write(tokenizer: Any) -> None:
    """Through the down projection with its bias, of the source's content positions."""
    model = fm.load(build_gpt2(n_layer=3), tokenizer=tokenizer, dtype="float64")
    capture = fm.capture(model, "The city of Paris is in France")
    found = silence_fact(model, PROMPT, SUBJECT, window=1, mean=capture)
    written = [
        capture.coefficients[layer][capture.content].mean(0) @ model.ffn[layer].values + model.ffn[layer].value_bias
        for layer in range(model.n_layers)
    ]
    expected = whole_passes(build_gpt2(n_layer=3).double(), found, "ffn", written, model.tokenize(PROMPT))
    assert allclose(found.scores["ffn"], expected, 1e-9)
    assert found.replaced_by == "mean over a capture"
    zeroed = silence_fact(model, PROMPT, SUBJECT, window=1).scores["ffn"]
    assert np.abs(found.scores["ffn"] - zeroed).max() > 1e-5


def test_it_agrees_with_intervene(tokenizer: Any) -> None:
    """Coefficients of zero write nothing, where FFNs have no bias."""
    model = fm.load(ARCHITECTURES["llama"](), tokenizer=tokenizer, dtype="float32")
    found = silence_fact(model, PROMPT, SUBJECT, window=1)
    position = found.subject[0]
    with fm.intervene(model, {(0, None): 0.0}, positions=[position]):
        logits = fm.capture(model, PROMPT, logits=True).logits
    assert logits is not None
    chance = float(logits[0, -1].softmax(-1)[found.answer_ids[0]])
    assert chance == pytest.approx(found.scores["ffn"][0, position], abs=1e-6)
    assert abs(chance - found.clean) > 1e-5


def test_a_batch_of_any_size_says_the_same(tokenizer: Any) -> None:
    model = fm.load(DEEP["gpt2"](), tokenizer=tokenizer, dtype="float64")
    whole, single = (silence_fact(model, PROMPT, SUBJECT, window=3, batch_tokens=tokens) for tokens in (4096, 1))
    assert allclose(single.scores["ffn"], whole.scores["ffn"], 1e-12)


def test_the_last_layer_is_read_at_the_last_token_alone(tiny: fm.Model) -> None:
    found = silence_fact(tiny, PROMPT, SUBJECT, window=1)
    last = len(found.tokens) - 1
    for column, place in enumerate(found.places):
        assert (found.loss()[-1, column] == 0) == (last not in place.positions), place


def test_refusals(tiny: fm.Model, tokenizer: Any) -> None:
    capture = fm.capture(tiny, PROMPT)
    refused: list[tuple[dict[str, Any], tuple[str, ...]]] = [
        ({"kinds": "ffn"}, ("kinds", "'ffn'")),
        ({"kinds": ("state",)}, ("kind", "'state'", "'attention'")),
        ({"kinds": ()}, ("no kinds",)),
        ({"kinds": ("ffn", "attention"), "mean": capture}, ("mean", "coefficients")),
        ({"target": "zzz"}, ("does not know",)),
    ]
    for options, says in refused:
        with refuses(InputError, ValueError, *says):
            silence_fact(tiny, PROMPT, SUBJECT, **options)
    other = fm.load(build_gpt2(n_layer=3), tokenizer=tokenizer)
    with refuses(InputError, ValueError, "not of this model"):
        silence_fact(other, PROMPT, SUBJECT, mean=capture)
