"""Knockout against plain forward passes with masked attention, one a cell, and what it says of many facts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import ffnmem as fm
from ffnmem.core.errors import InputError, OutOfRangeError, UnsupportedModelError
from ffnmem.models.norms import widen
from ffnmem.tracing import Knockout
from ffnmem.tracing.places import Place

from ..helpers import build_gpt2, refuses
from . import plain
from .test_restoring import PROMPT, SUBJECT

LOWEST = torch.finfo(torch.float32).min


def masking(place: Place, length: int) -> Callable[..., Any]:
    """A hook that hands an attention module another mask: the last query does not see a place."""

    def hook(_module: nn.Module, args: Any, kwargs: Any) -> Any:
        mask = kwargs.get("attention_mask")
        if mask is None:  # as Hugging Face leaves it out where it is causal alone
            triangle = torch.ones(length, length).triu(1).bool()[None, None]
            mask = torch.zeros(1, 1, length, length, dtype=torch.float64).masked_fill(triangle, LOWEST)
        mask = mask.clone()
        hidden = list(place.positions)
        if mask.dtype == torch.bool:  # MPT's, true where nothing is seen
            mask[:, :, -1, hidden] = True
        else:
            mask[:, :, -1, hidden] = LOWEST
        return args, {**kwargs, "attention_mask": mask}

    return hook


def masked_pass(hf: Any, tokens: Sequence[int], layers: range, place: Place) -> torch.Tensor:
    """The answer's probabilities in one forward pass whose attention gets a mask of its own in some layers."""
    handles = []
    for layer in layers:
        module = plain.module_of(plain.blocks_of(hf)[layer], "attention")
        handles.append(module.register_forward_pre_hook(masking(place, len(tokens)), with_kwargs=True))
    try:
        with torch.no_grad():
            logits = hf(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, -1]
    finally:
        for handle in handles:
            handle.remove()
    return logits.double().softmax(-1)


def masked_passes(hf: Any, found: Knockout, tokens: Sequence[int]) -> np.ndarray:
    hf.config._attn_implementation = "eager"
    widen(hf)  # float64 models count their norms in float64
    n_layers, window = found.n_layers, found.window
    scores = np.zeros((n_layers, len(found.places)))
    for layer in range(n_layers):
        layers = range(max(0, layer - window // 2), min(n_layers, layer - (-window // 2)))
        for column, place in enumerate(found.places):
            scores[layer, column] = masked_pass(hf, tokens, layers, place)[found.answer_ids[0]]
    return scores


REFUSED: list[tuple[tuple[str, str], dict[str, Any], type[Exception], tuple[str, ...]]] = [
    ((PROMPT, "Colosseum"), {}, InputError, ("'Colosseum'",)),
    ((PROMPT, SUBJECT), {"positions": [99]}, OutOfRangeError, ("position", "99")),
    (("The", "The"), {"prepend_bos": False}, InputError, ("one token",)),
    (("Paris", "Paris"), {"prepend_bos": False}, InputError, ("positions 0, 1, 2, 3, 4", "nothing left to look at")),
    ((PROMPT, SUBJECT), {"target": "zzz"}, InputError, ("does not know",)),
]


def test_refusals(tiny: fm.Model, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for arguments, options, error, says in REFUSED:
        with refuses(error, IndexError if error is OutOfRangeError else ValueError, *says):
            fm.knockout(tiny, *arguments, **options)
    model = fm.load(build_gpt2(), tokenizer=tokenizer)
    monkeypatch.setattr("ffnmem.models.attention.SOFTMAX", ())
    with refuses(UnsupportedModelError, ValueError, "GPT2", "layer 0", "no softmax"):
        fm.knockout(model, PROMPT, SUBJECT)
