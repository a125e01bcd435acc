"""Keys as neurons read them, values as norms above read them, and their cosine."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import ffnmem as fm
from ffnmem.errors import OutOfRangeError
from ffnmem.models.layout import inner
from ffnmem.semantics.folding import (
    SIDES,
    centred_values,
    cosines,
    folded_keys,
    io_cosines,
    memory_rows,
    unit_rows,
    without_mean_direction,
)
from tests.helpers import allclose, refuses


def test_folded_keys_are_what_the_neuron_reads(architecture: fm.Model) -> None:
    """k·LN(x) less its constant is the folded key along x − mean x, over its scale; and adding 1s changes nothing."""
    norm = inner(architecture.layout.blocks[1].norm)
    x = torch.randn(5, architecture.d_model, generator=torch.Generator().manual_seed(0))
    keys = architecture.ffn[1].keys.detach()
    with torch.no_grad():
        read = norm(x) @ keys.T - norm(torch.zeros_like(x)) @ keys.T
    scale = (x.var(dim=-1, unbiased=False, keepdim=True) + norm.eps).sqrt()
    folded = folded_keys(architecture, 1)
    assert allclose(x @ folded.T / scale, read, 1e-5)
    assert allclose((x + 3.0) @ folded.T / scale, read, 1e-5)


def test_values_lose_their_mean_only(tiny: fm.Model) -> None:
    values = tiny.ffn[-1].values.detach()
    assert allclose(centred_values(tiny, -1), values - values.mean(dim=1, keepdim=True))


def test_cosine_written_out(tiny: fm.Model) -> None:
    key = (tiny.ffn[0].keys[7] * inner(tiny.layout.blocks[0].norm).weight).detach().double()
    value = tiny.ffn[0].values[7].detach().double()
    key, value = key - key.mean(), value - value.mean()
    assert allclose(io_cosines(tiny, 0)[7], key @ value / key.norm() / value.norm())
    with refuses(OutOfRangeError, IndexError, "layer 2", "0 to 1"):
        io_cosines(tiny, 2)


def test_a_neuron_that_writes_what_it_reads(make_tiny: Callable[..., fm.Model]) -> None:
    """A wrong sign, a gain left out, or a constant that nothing reads."""
    model = make_tiny()
    folded = folded_keys(model, 0)
    with torch.no_grad():
        model.ffn[0].values[0].copy_(2 * folded[0] + 5.0)
        model.ffn[0].values[1].copy_(-0.1 * folded[1])
        model.ffn[0].values[2].zero_()
    found = io_cosines(model, 0)
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


@pytest.mark.parametrize("side", SIDES)
def test_memory_rows(tiny: fm.Model, side: str) -> None:
    rows = folded_keys(tiny, 0) if side == "key" else centred_values(tiny, 0)
    found = memory_rows(tiny, 0, side)
    assert found.shape == (tiny.d_mlp, tiny.d_model - 1)
    assert allclose(found @ found.T, rows @ rows.T)


def test_unit_rows() -> None:
    found = unit_rows(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    assert allclose(found, [[0.6, 0.8], [0.0, 0.0]])
