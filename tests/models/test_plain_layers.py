"""The layers as plain modules, against what the bridge computes."""

from __future__ import annotations

from collections.abc import Callable

import torch

import ffnmem as fm
from ffnmem.models.replaying import PlainLayers, activation

from ..helpers import Pair, allclose

TOKENS = torch.tensor([[3, 50, 120, 7, 8]])


def test_an_ffn_and_the_unembedding_are_the_models_own(pair: Pair) -> None:
    layers = PlainLayers(pair.model)
    capture = fm.capture(pair.model, TOKENS, logits=True)
    assert capture.residual is not None
    assert capture.logits is not None
    assert len(layers) == pair.model.n_layers
    assert allclose(layers.logits(capture.residual.final_in), capture.logits, 1e-5)
    for layer, part in enumerate(layers.parts):
        m = layers.activation(capture.pre[layer]) * (capture.linear[layer] if pair.model.gated else 1)
        assert allclose(m, capture.coefficients[layer], 1e-5)
        assert allclose(part.project_out(m), capture.ffn_out[layer], 1e-5)


def test_edits_in_place_are_seen(make_tiny: Callable[..., fm.Model]) -> None:
    """An edit is tried with layers that were built before it."""
    model = make_tiny()
    layers = PlainLayers(model)
    x = torch.randn(3, model.d_model, generator=torch.Generator().manual_seed(0))
    before = layers.coefficients(1, x)
    model.ffn[1].keys.data.mul_(2.0)
    bias = model.ffn[1].key_bias
    assert bias is not None
    assert allclose(before, layers.activation((layers.parts[1].norm(x) @ model.ffn[1].keys.T) / 2 + bias), 1e-5)
    assert not torch.allclose(before, layers.coefficients(1, x))


def test_a_fused_gelu_is_the_slow_one() -> None:
    x = torch.linspace(-4, 4, 101)
    assert allclose(activation("gelu_new", fused=True)(x), activation("gelu_new", fused=False)(x), 1e-6)
