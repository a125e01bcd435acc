"""What an FFN's neurons write, seen from the residual stream."""

from __future__ import annotations

import torch

import ffnmem as fm
from ffnmem.models.residual import passed_on, pulled_through

from ..architectures import DECODERS
from ..helpers import PROMPT, Pair, added, allclose


def check(model: fm.Model) -> None:
    capture = fm.capture(model, PROMPT)
    for layer in range(model.n_layers):
        written = capture.ffn_out[layer][0]
        directions = torch.randn(written.shape, generator=torch.Generator().manual_seed(layer), dtype=written.dtype)
        pulled = pulled_through(model, layer, directions, written)
        expected = (added(model, layer, "ffn", written) * directions).sum(-1)
        assert allclose((written * pulled).sum(-1), expected, 1e-12)


def test_directions_come_through_the_norm_behind_the_ffn(pair64: Pair) -> None:
    """A neuron's part of a logit would be that of another model, one without the norm."""
    check(pair64.model)


def test_and_through_its_factor(tokenizer: object) -> None:
    """Granite multiplies what its layers write."""
    model = fm.load(DECODERS["Granite"](), tokenizer=tokenizer, dtype="float64")
    assert model.layout.write_scale == 0.3
    check(model)


def test_values_are_passed_on(pair64: Pair) -> None:
    """But for σ, what is added for a value alone is what ``passed_on`` says."""
    model = pair64.model
    values = model.ffn[1].values.detach()
    found = passed_on(model, 1, values)
    norm = model.norm_after(1)
    scale = 1.0 if norm is None else norm.scale(values).unsqueeze(-1)
    assert allclose(found / scale, added(model, 1, "ffn", values), 1e-12)
    assert (norm is None) == (pair64.name != "gemma2")
