"""The kinds of norms, and each as a linear map."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from transformers.models.cohere.modeling_cohere import CohereLayerNorm
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.nemotron.modeling_nemotron import NemotronLayerNorm1P
from transformers.models.olmo.modeling_olmo import OlmoLayerNorm

from ffnmem.models.norms import KINDS, LAYER, LAYER_OFFSET, RMS, RMS_OFFSET, NormMap, at_least_float32, kind_of, widen

from ..helpers import allclose, randomise

WIDTH = 12
NORMS = {
    "torch's": (lambda: nn.LayerNorm(WIDTH, eps=1e-2), LAYER),
    "torch's without gain": (lambda: nn.LayerNorm(WIDTH, elementwise_affine=False), LAYER),
    "Llama": (lambda: LlamaRMSNorm(WIDTH, eps=1e-3), RMS),
    "Gemma": (lambda: GemmaRMSNorm(WIDTH), RMS_OFFSET),
    "Nemotron": (lambda: NemotronLayerNorm1P(WIDTH), LAYER_OFFSET),
    "OLMo": (lambda: OlmoLayerNorm(WIDTH), LAYER),
    "Cohere": (lambda: CohereLayerNorm(WIDTH), LAYER),
}


def module_of(name: str) -> nn.Module:
    found: nn.Module = randomise(NORMS[name][0]()).double()
    widen(nn.Sequential(found))
    return found


def rows(n: int = 7) -> torch.Tensor:
    return 2 * torch.randn(n, WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 1.5


@pytest.mark.parametrize("name", NORMS)
def test_kinds_are_told_apart(name: str) -> None:
    """A gain read without its 1, or a mean taken out that is not, would put a small error everywhere."""
    assert kind_of(module_of(name)) is NORMS[name][1]


def test_what_is_no_norm_has_no_kind() -> None:
    assert kind_of(nn.Tanh()) is None
    assert kind_of(randomise(nn.Linear(WIDTH, WIDTH))) is None


@pytest.mark.parametrize("name", NORMS)
def test_the_norm_itself(name: str) -> None:
    """ε, gain or shift would be read wrongly."""
    module, x = module_of(name), rows()
    assert allclose(NormMap.of(module, NORMS[name][1], WIDTH)(x), module(x), 1e-12)


@pytest.mark.parametrize("name", NORMS)
def test_linear_once_its_scale_is_frozen(name: str) -> None:
    """Norm(x)·w = x·pull(w)/σ + constant(w), on which attribution rests; and what ``passed`` leaves out is σ alone."""
    norm, x, w = NormMap.of(module_of(name), NORMS[name][1], WIDTH), rows(), rows()
    frozen = (x * norm.pull(w)).sum(-1) / norm.scale(x) + norm.constant(w)
    assert allclose(frozen, (norm(x) * w).sum(-1), 1e-12)
    shift = 0 if norm.shift is None else norm.shift
    assert allclose(norm.passed(x) / norm.scale(x).unsqueeze(-1) + shift, norm(x), 1e-12)


@pytest.mark.parametrize("name", ["Llama", "Gemma", "OLMo", "Cohere"])
def test_widened_norms_count_in_float64(name: str) -> None:
    """A float64 model would be exact to float32 alone; in float32 the norms stay Hugging Face's."""
    plain: nn.Module = randomise(NORMS[name][0]()).double()
    x = rows()
    rounded = plain(x)
    assert not allclose_to(rounded, module_of(name)(x), 1e-12)
    assert allclose(rounded, module_of(name)(x), 1e-6)


def allclose_to(a: torch.Tensor, b: torch.Tensor, tolerance: float) -> bool:
    return bool((a - b).abs().max() <= tolerance)


def test_gradients_pass_through_a_widened_norm() -> None:
    module = module_of("Gemma")
    assert torch.autograd.gradcheck(lambda x: module(x), (rows(2).requires_grad_(),))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_half_precision_is_widened(dtype: torch.dtype) -> None:
    """A gain in half precision would round every direction."""
    module: Any = randomise(LlamaRMSNorm(WIDTH)).to(dtype)
    norm = NormMap.of(module, RMS, WIDTH)
    assert norm.gain.dtype == torch.float32
    assert kind_of(module) is RMS
    assert at_least_float32(torch.ones(1, dtype=torch.float64)).dtype == torch.float64


def test_kinds_are_named() -> None:
    assert len({kind.name for kind in KINDS}) == len(KINDS)
