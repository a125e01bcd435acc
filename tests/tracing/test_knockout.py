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
from ffnmem.models.attention import SOFTMAX, Blocking
from ffnmem.models.norms import widen
from ffnmem.tracing import Knockout
from ffnmem.tracing.places import Place
from ffnmem.tracing.settings import WIDEST_KNOCKOUT, check_window

from ..architectures import DECODERS, EVERY, MIXTURES
from ..helpers import allclose, build_gpt2, refuses
from . import plain
from .test_restoring import DEEP, PROMPT, SUBJECT

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


@pytest.mark.parametrize("window", [1, 2])
@pytest.mark.parametrize("name", DEEP)
def test_every_cell_equals_a_masked_pass(name: str, window: int, tokenizer: Any) -> None:
    """In float64 tightly: a layer or key too many, weights that do not add up to one, a run that begins too late."""
    model = fm.load(DEEP[name](), tokenizer=tokenizer, dtype="float64")
    found = fm.knockout(model, PROMPT, SUBJECT, window=window, positions=[1, -1])
    expected = masked_passes(DEEP[name]().to(model.dtype), found, model.tokenize(PROMPT))
    assert allclose(found.scores["edges"], expected, 1e-10)
    assert np.ptp(expected) > 1e-4, "nothing changes the answer, so that anything would pass"


@pytest.mark.parametrize("name", EVERY)
def test_every_architecture(name: str, tokenizer: Any) -> None:
    """Sliding windows, caps, position biases, shared keys: each keeps its own in what is left to look at."""
    model = fm.load(DECODERS[name](), tokenizer=tokenizer, dtype="float64")
    found = fm.knockout(model, PROMPT, SUBJECT, window=1)
    expected = masked_passes(DECODERS[name]().to(model.dtype), found, model.tokenize(PROMPT))
    assert allclose(found.scores["edges"], expected, 1e-8 if name in MIXTURES else 1e-10)  # routers may be in float32


def test_a_batch_of_any_size_says_the_same(tokenizer: Any) -> None:
    model = fm.load(DEEP["gpt2"](), tokenizer=tokenizer, dtype="float64")
    whole, single = (fm.knockout(model, PROMPT, SUBJECT, window=3, batch_tokens=tokens) for tokens in (4096, 1))
    assert allclose(single.scores["edges"], whole.scores["edges"], 1e-12)


def test_what_stands_beside_the_keys_stays() -> None:
    """An attention sink is no key: without any key all weight is its own, and without a sink there is none."""
    scores = torch.zeros(1, 1, 1, 3)
    with Blocking(torch.tensor([[True, True]])) as beside:
        pattern = torch.softmax(scores, -1)
    assert pattern.flatten().tolist() == [0, 0, 1]
    assert (beside.taken, beside.empty) == (1, [])
    with Blocking(torch.tensor([[True, True, True]])) as none:
        SOFTMAX[2](scores, dim=-1)
    assert none.empty == [0]


def test_windows_are_the_papers() -> None:
    """9 of GPT-2 XL's 48 layers, 5 of GPT-J's 28."""
    assert [check_window(None, n, WIDEST_KNOCKOUT) for n in (48, 28, 30, 12, 6, 2)] == [9, 5, 6, 3, 3, 1]


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
