"""Sums over positions: counts, means and root mean squares of small tables whose answer is plain."""

from __future__ import annotations

import torch

from ffnmem.ffn.activations import activation
from ffnmem.neurons.health import LayerSums

from ..helpers import allclose

CPU = torch.device("cpu")


def sums_of(name: str, pre: torch.Tensor, linear: torch.Tensor | None = None, at_once: int = 100) -> LayerSums:
    function = activation(name)
    found = LayerSums(function, pre.shape[1], linear is not None, CPU)
    for start in range(0, len(pre), at_once):
        part = pre[start : start + at_once]
        m = function(part) if linear is None else function(part) * linear[start : start + at_once]
        found.add_flow(torch.full_like(part, 2.0), found.add(part, m))
    return found


def test_known_answers() -> None:
    """Each column of four ReLU neurons: dead, always on, on at half of the positions, on at one in a hundred."""
    pre = torch.ones(100, 4, dtype=torch.float64)
    pre[:, 0] = -1
    pre[::2, 2] = -1
    pre[1:, 3] = 0  # ReLU'(0) = 0
    frame = sums_of("relu", pre).frame(7, flow=True)
    assert frame["layer"].unique().tolist() == [7]
    assert frame["fires"].tolist() == [0, 1, 0.5, 0.01]
    assert frame["dead"].tolist() == [True, False, False, False]
    assert frame["stuck"].tolist() == [True, False, False, False]
    assert frame["flat"].tolist() == [1, 0, 0.5, 0.99]
    assert frame["linear"].tolist() == [0, 1, 0.5, 0.01]
    assert frame["saturated"].tolist() == [True, True, False, True]
    assert frame["local_gradient"].tolist() == [0, 1, 0.5, 0.01]
    assert frame["flow_coefficient"].tolist() == frame["flow_coefficient_rms"].tolist() == [2, 2, 2, 2]
    assert frame["flow_pre"].tolist() == [0, 2, 1, 0.02]
    assert allclose(frame["flow_pre_rms"], [0, 2, 2**0.5, 0.2], 1e-15)


def test_dead_is_not_stuck() -> None:
    """A GELU neuron at −0.5 is dead and learns; at −10 it is dead and stuck; ReLU is stuck at both."""
    pre = torch.tensor([[-0.5, -10.0]], dtype=torch.float64).expand(20, 2)
    gelu, relu = (sums_of(name, pre).frame(0, flow=True) for name in ("gelu", "relu"))
    assert gelu["dead"].tolist() == relu["dead"].tolist() == [True, True]
    assert gelu["stuck"].tolist() == [False, True]
    assert relu["stuck"].tolist() == [True, True]
    assert gelu["flow_pre"][0] > 0.1
    assert relu["flow_pre"].tolist() == [0, 0]


def test_gated_dead_is_the_gates() -> None:
    """A gated neuron would be dead because its linear part is negative, or alive with a gate that never opens."""
    pre = torch.tensor([[1.0, -0.5]], dtype=torch.float64)
    linear = torch.full((1, 2), -3.0, dtype=torch.float64)
    assert sums_of("silu", pre, linear).frame(0, flow=False)["dead"].tolist() == [False, True]


def test_parts_add_up() -> None:
    """Batches would change the numbers by more than rounding."""
    pre = torch.randn(60, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    whole, parts = (sums_of("gelu_tanh", pre, at_once=n).frame(0, flow=True) for n in (60, 7))
    assert allclose(whole, parts, 1e-14)


def test_finite() -> None:
    """A NaN would end as a number in a table."""
    pre = torch.ones(2, 2)
    assert sums_of("relu", pre).finite
    found = LayerSums(activation("gelu"), 2, False, CPU)
    found.add(pre * torch.nan, pre)
    assert not found.finite
    flowing = LayerSums(activation("gelu"), 2, False, CPU)
    flowing.add_flow(pre / 0, pre)
    assert not flowing.finite
