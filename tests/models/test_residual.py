"""What is added to the residual stream, and how the final norm reads it: linear once scales are frozen."""

from __future__ import annotations

import pytest
import torch

import ffnmem as fm
from ffnmem.models.layout import inner
from ffnmem.models.residual import FinalNorm, pulled_through

from ..architectures import DECODERS
from ..helpers import PROMPT, Pair, added, allclose


def some_rows(model: fm.Model, n: int = 5) -> torch.Tensor:
    generator = torch.Generator().manual_seed(2)
    return 3 * torch.randn(n, model.d_model, generator=generator, dtype=model.dtype) + 1


def test_scale_is_the_norms_own(pair64: Pair) -> None:
    """Another ε, or the unbiased variance, would put a small error into every attribution."""
    model = pair64.model
    norm, x = FinalNorm(model), some_rows(model)
    centred = (x - x.mean(-1, keepdim=True) * model.centred) / norm.scale(x).unsqueeze(-1) * norm.gain
    assert allclose(centred + (0 if norm.bias is None else norm.bias), inner(model.layout.final_norm)(x), 1e-13)


@pytest.mark.parametrize("foil", [None, 7])
def test_directions_give_the_logit(pair64: Pair, foil: int | None) -> None:
    """logit = x·u/σ + constant is what the whole attribution rests on; nothing of the model may change for it."""
    model, before = pair64.model, pair64.model.fingerprint
    norm, x = FinalNorm(model), some_rows(model)
    targets = torch.tensor([3, 0, 200, 7, 3])
    u, constant = norm.directions(targets, foil)
    logits = model.logits_of(inner(model.layout.final_norm)(x))
    cap = model.layout.soft_cap
    logits = logits if cap is None else cap * torch.atanh(logits / cap)
    expected = logits[range(5), targets] - (0 if foil is None else logits[:, foil])
    assert allclose((x * u).sum(-1) / norm.scale(x) + constant, expected, 1e-12)
    assert model.fingerprint == before


@pytest.mark.parametrize("name", ["GPT-2", "Gemma 2", "Granite"])
def test_directions_come_through_what_is_behind_the_ffn(name: str, tokenizer: object) -> None:
    """A neuron's part of a logit would be that of a model without the norm (Gemma 2) or the factor (Granite)."""
    model = fm.load(DECODERS[name](), tokenizer=tokenizer, dtype="float64")
    capture = fm.capture(model, PROMPT)
    for layer in range(model.n_layers):
        written = capture.ffn_out[layer][0]
        directions = torch.randn(written.shape, generator=torch.Generator().manual_seed(layer), dtype=written.dtype)
        expected = (added(model, layer, "ffn", written) * directions).sum(-1)
        assert allclose((written * pulled_through(model, layer, directions, written)).sum(-1), expected, 1e-12)
