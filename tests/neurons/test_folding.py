"""Keys as neurons read them, values as norms above read them, and their cosine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import InputError, OutOfRangeError
from ffnmem.models.layout import inner
from ffnmem.neurons.overlap import (
    SIDES,
    centred_values,
    cosines,
    folded_keys,
    memory_rows,
    memory_sides,
    side_rows,
    without_mean_direction,
)
from ffnmem.neurons.read_write import neuron_cosines

from ..helpers import PROMPT, allclose, refuses


def own_cosines(model: fm.Model, layer: int, name: str = "io") -> torch.Tensor:
    return torch.from_numpy(neuron_cosines({side: side_rows(model, layer, side) for side in memory_sides(model)})[name])


def test_folded_keys_are_what_the_neuron_reads(architecture: fm.Model) -> None:
    """k·Norm(x) less its constant is the folded key along x over its scale, of gates likewise; and adding 1s changes
    nothing where a LayerNorm takes them out, and something where an RMSNorm does not."""
    norm: Any = architecture.layout.blocks[1].norm
    norm = inner(norm)
    x = torch.randn(5, architecture.d_model, generator=torch.Generator().manual_seed(0))
    centred = isinstance(norm, torch.nn.LayerNorm)
    eps = norm.variance_epsilon if hasattr(norm, "variance_epsilon") else norm.eps
    scale = ((x.var(dim=-1, unbiased=False) if centred else x.square().mean(dim=-1)) + eps).sqrt().unsqueeze(-1)
    ffn = architecture.ffn[1]
    for side, keys in (("key", ffn.keys), ("gate", ffn.gates)):
        if keys is None:
            continue
        with torch.no_grad():
            read = norm(x) @ keys.T - norm(torch.zeros_like(x)) @ keys.T
        folded = folded_keys(architecture, 1, side)
        assert allclose(x @ folded.T / scale, read, 1e-5)
        assert torch.allclose((x + 3.0) @ folded.T / scale, read, atol=1e-4) == centred


def test_values_are_what_the_stream_gets(architecture: fm.Model) -> None:
    """σ times what a layer adds is the sum of coefficients times these values, but for bias and mean."""
    captured = fm.capture(architecture, PROMPT)
    values = centred_values(architecture, 1)
    written = captured.ffn_out[1][0]
    post: Any = architecture.layout.blocks[1].post
    bias = architecture.ffn[1].value_bias
    added = written - (0.0 if bias is None else bias.detach())
    if post is not None:
        with torch.no_grad():
            added = inner(post)(written) * (written.square().mean(dim=-1, keepdim=True) + 1e-6).sqrt()
    if architecture.centred:
        added = added - added.mean(dim=-1, keepdim=True)
    assert allclose(captured.coefficients[1][0] @ values, added, 1e-5)


def test_cosine_written_out(tiny: fm.Model) -> None:
    key = (tiny.ffn[0].keys[7] * inner(tiny.layout.blocks[0].norm).weight).detach().double()
    value = tiny.ffn[0].values[7].detach().double()
    key, value = key - key.mean(), value - value.mean()
    assert allclose(own_cosines(tiny, 0)[7], key @ value / key.norm() / value.norm())
    with refuses(OutOfRangeError, IndexError, "layer 2", "0 to 1"):
        folded_keys(tiny, 2)


def test_a_neuron_that_writes_what_it_reads(make_tiny: Callable[..., fm.Model]) -> None:
    """A wrong sign, a gain left out, or a constant that nothing reads."""
    model = make_tiny()
    folded = folded_keys(model, 0)
    with torch.no_grad():
        model.ffn[0].values[0].copy_(2 * folded[0] + 5.0)
        model.ffn[0].values[1].copy_(-0.1 * folded[1])
        model.ffn[0].values[2].zero_()
    found = own_cosines(model, 0)
    assert allclose(found[:2], [1.0, -1.0])
    assert bool(found[2].isnan())


def test_cosines_of_any_scale() -> None:
    """Squares of small or large float32 numbers leave its range."""
    one = torch.tensor([[1e-30, 0.0], [1e30, 1e30], [0.0, 0.0]])
    other = torch.tensor([[1e-30, 1e-30], [-1e30, -1e30], [1.0, 0.0]])
    found = cosines(one, other)
    assert allclose(found[:2], [0.5**0.5, -1.0])
    assert bool(found[2].isnan())


@pytest.mark.parametrize("width", [2, 3, 256])
def test_one_dimension_fewer_keeps_all_products(width: int) -> None:
    rows = torch.randn(9, width, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    rows = rows - rows.mean(dim=1, keepdim=True)
    fewer = without_mean_direction(rows)
    assert fewer.shape == (9, width - 1)
    assert allclose(fewer @ fewer.T, rows @ rows.T, 1e-12)


def test_memory_rows(architecture: fm.Model) -> None:
    """A dimension too many or too few: one fewer under LayerNorm, all of them under RMSNorm."""
    sides = memory_sides(architecture)
    assert sides == (*SIDES, *["gate"] * architecture.gated)
    for side in sides:
        rows = centred_values(architecture, 0) if side == "value" else folded_keys(architecture, 0, side)
        found = memory_rows(architecture, 0, side)
        assert found.shape == (architecture.d_mlp, architecture.d_model - architecture.centred)
        assert allclose(found @ found.T, rows @ rows.T)


def test_cosines_of_a_gate(architecture: fm.Model) -> None:
    """Written out; a gate that is its key, and the sign that turning key and value round changes in both or in none."""
    if not architecture.gated:
        with refuses(InputError, ValueError, "no gates"):
            folded_keys(architecture, 0, "gate")
        return
    gate, key = folded_keys(architecture, 0, "gate")[5], folded_keys(architecture, 0)[5]
    value = centred_values(architecture, 0)[5]
    assert allclose(own_cosines(architecture, 0, "gate_io")[5], torch.cosine_similarity(gate, value, dim=0))
    assert allclose(own_cosines(architecture, 0, "gate_key")[5], torch.cosine_similarity(gate, key, dim=0))
    assert not torch.equal(own_cosines(architecture, 0, "gate_io"), own_cosines(architecture, 0))
