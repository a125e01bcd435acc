"""The final norm, linear once its scale is frozen."""

from __future__ import annotations

import pytest
import torch

import ffnmem as fm
from ffnmem.models.layout import inner
from ffnmem.models.norms import at_least_float32
from ffnmem.models.residual import FinalNorm

from ..helpers import Pair, allclose


def some_rows(model: fm.Model, n: int = 5) -> torch.Tensor:
    generator = torch.Generator().manual_seed(2)
    return 3 * torch.randn(n, model.d_model, generator=generator, dtype=model.dtype) + 1


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64,) * 2,
    ],
    ids=str,
)
def test_at_least_float32(given: torch.dtype, wanted: torch.dtype) -> None:
    """Half-precision sums would lose what they measure, or a float64 model its precision."""
    assert at_least_float32(torch.ones(2, dtype=given)).dtype == wanted


def test_scale_is_the_norms_own(pair64: Pair) -> None:
    """Another ε, or the unbiased variance, would put a small error into every attribution."""
    model = pair64.model
    norm, x = FinalNorm(model), some_rows(model)
    centred = (x - x.mean(-1, keepdim=True) * model.centred) / norm.scale(x).unsqueeze(-1) * norm.gain
    assert allclose(centred + (0 if norm.bias is None else norm.bias), inner(model.layout.final_norm)(x), 1e-13)


@pytest.mark.parametrize("foil", [None, 7])
def test_directions_give_the_logit(pair64: Pair, foil: int | None) -> None:
    """logit = x·u/σ + constant is what the whole attribution rests on."""
    model = pair64.model
    norm, x = FinalNorm(model), some_rows(model)
    targets = torch.tensor([3, 0, 200, 7, 3])
    u, constant = norm.directions(targets, foil)
    logits = model.logits_of(inner(model.layout.final_norm)(x))
    cap = model.layout.soft_cap
    logits = logits if cap is None else cap * torch.atanh(logits / cap)
    expected = logits[range(5), targets] - (0 if foil is None else logits[:, foil])
    assert allclose((x * u).sum(-1) / norm.scale(x) + constant, expected, 1e-12)


def test_nothing_of_the_model_changes(pair: Pair) -> None:
    """Folding the gain into the weights would change every later result."""
    model, before = pair.model, pair.model.fingerprint
    gain = FinalNorm(model).gain
    gain += 1 if gain.data_ptr() != inner(model.layout.final_norm).weight.data_ptr() else 0
    FinalNorm(model).directions(torch.tensor([1]), 2)
    assert model.fingerprint == before
