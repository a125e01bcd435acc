"""Silencing against whole passes with plain hooks, one a cell, and what it says of many facts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

import ffnmem as fm
from ffnmem.core.errors import InputError
from ffnmem.tracing import Silencing, silence_fact
from ffnmem.tracing.places import Place

from ..helpers import build_gpt2, refuses
from . import plain
from .test_restoring import PROMPT, SUBJECT


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
