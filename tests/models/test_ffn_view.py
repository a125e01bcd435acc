"""One FFN as keys and values."""

from __future__ import annotations

from collections.abc import Callable

import torch
from transformers.activations import ACT2FN

import ffnmem as fm
from ffnmem.models.layout import FFN

from ..helpers import Pair, allclose


def recomputed(ffn: FFN, x: torch.Tensor) -> torch.Tensor:
    """Σᵢ act(kᵢ·x + bᵢ)·vᵢ + b_out, or Σᵢ act(gᵢ·x)·(kᵢ·x)·vᵢ, from nothing but the view."""
    linear = x @ ffn.keys.T + (0 if ffn.key_bias is None else ffn.key_bias)
    if ffn.gates is None:
        m = ACT2FN[ffn.activation](linear)
    else:
        m = ACT2FN[ffn.activation](x @ ffn.gates.T + (0 if ffn.gate_bias is None else ffn.gate_bias)) * linear
    return m @ ffn.values + (0 if ffn.value_bias is None else ffn.value_bias)


def test_recomputes_hugging_faces_mlp(pair64: Pair) -> None:
    """Keys, values, biases or the activation would be taken from the wrong place, or transposed."""
    assert pair64.model.ffn[1].layer == 1
    x = torch.randn(7, pair64.model.d_model, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for layer, ffn in enumerate(pair64.model.ffn):
        assert ffn.keys.shape == ffn.values.shape == (ffn.d_mlp, ffn.d_model) == (64, 16)
        assert allclose(recomputed(ffn, x), pair64.mlp(layer)(x), 1e-13)


def test_tensors_are_views_of_the_live_parameters(pair: Pair) -> None:
    """A copy would show old weights after an edit, and an edit through it would be lost."""
    memory = {parameter.data_ptr() for parameter in pair.model.hf_model.parameters()}
    for ffn in pair.model.ffn:
        tensors = [ffn.keys, ffn.gates, ffn.values, ffn.key_bias, ffn.value_bias]
        assert all(tensor.data_ptr() in memory for tensor in tensors if tensor is not None)


def test_writing_through_the_view_changes_the_model(make_tiny: Callable[..., fm.Model]) -> None:
    """`model.ffn[l].values[i] = v` would not be an edit."""
    model = make_tiny()
    tokens = torch.tensor([[5, 6, 7]])
    before = model.hf_model(input_ids=tokens).logits
    with torch.no_grad():
        model.ffn[0].values[3] += torch.arange(16.0)  # not one number for all, which the final norm would remove
    changed = model.hf_model(input_ids=tokens).logits
    assert not torch.allclose(before, changed, atol=1e-3)
    with torch.no_grad():
        model.ffn[0].keys[3] = 0
        model.ffn[0].key_bias[3] = -100  # GELU(−100) = 0: the memory is never read
    silent = model.hf_model(input_ids=tokens).logits
    with torch.no_grad():
        model.ffn[0].values[3] = 0
    assert torch.equal(silent, model.hf_model(input_ids=tokens).logits)


def test_repr_fits_a_line(tiny: fm.Model) -> None:
    """A notebook would print a dump of modules."""
    assert repr(tiny.ffn[1]) == "FFN(layer=1, d_mlp=64, d_model=16, activation='gelu_new')"
