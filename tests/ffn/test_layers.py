"""The FFN's formulas against Hugging Face's modules, and what does not fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from ffnmem.core.errors import InputError
from ffnmem.ffn.activations import swish
from ffnmem.ffn.layers import GATED, classic_coefficients, classic_ffn, gated_coefficients, gated_ffn

from ..helpers import allclose, randomise, refuses

TOLERANCES = [(torch.float64, 1e-12), (torch.float32, 1e-6)]


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def llama_like(kind: str, **changes: Any) -> Any:
    from transformers import GemmaConfig, LlamaConfig
    from transformers.models.gemma.modeling_gemma import GemmaMLP
    from transformers.models.llama.modeling_llama import LlamaMLP

    sizes = {"hidden_size": 12, "intermediate_size": 20, "num_attention_heads": 4, "num_key_value_heads": 4, **changes}
    return randomise(LlamaMLP(LlamaConfig(**sizes)) if kind == "llama" else GemmaMLP(GemmaConfig(**sizes)))


@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)
def test_classic_is_gpt2s(dtype: torch.dtype, tolerance: float) -> None:
    """The formula would not be the FFN of GPT-2, whose matrices lie as the formula's."""
    from transformers import GPT2Config
    from transformers.models.gpt2.modeling_gpt2 import GPT2MLP

    mlp = randomise(GPT2MLP(40, GPT2Config(n_embd=12))).to(dtype)
    x = draw(2, 5, 12, dtype=dtype)
    weights = (mlp.c_fc.weight, mlp.c_proj.weight, mlp.c_fc.bias, mlp.c_proj.bias)
    assert allclose(classic_ffn(x, *weights, "gelu_new"), mlp(x), tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)
@pytest.mark.parametrize(("kind", "variant"), [("llama", "swiglu"), ("gemma", "geglu_tanh")])
def test_gated_is_llamas_and_gemmas(kind: str, variant: str, dtype: torch.dtype, tolerance: float) -> None:
    """The gate would sit on the wrong matrix, or have the wrong activation."""
    mlp, x = llama_like(kind).to(dtype), draw(2, 5, 12, dtype=dtype)
    weights = (mlp.gate_proj.weight.T, mlp.up_proj.weight.T, mlp.down_proj.weight.T)
    assert allclose(gated_ffn(x, *weights, variant), mlp(x), tolerance)


def test_gated_biases_are_llamas() -> None:
    """A bias would be added behind the gate instead of in front of it."""
    mlp, x = llama_like("llama", mlp_bias=True).double(), draw(3, 12)
    weights = (mlp.gate_proj.weight.T, mlp.up_proj.weight.T, mlp.down_proj.weight.T)
    biases = {"b_gate": mlp.gate_proj.bias, "b_up": mlp.up_proj.bias, "b_down": mlp.down_proj.bias}
    assert allclose(gated_ffn(x, *weights, **biases), mlp(x), 1e-12)


@pytest.mark.parametrize("variant", list(GATED))
def test_every_variant_is_its_formula(variant: str) -> None:
    """A variant's name would stand for another gate than in Shazeer's paper."""
    gates: dict[str, Any] = {
        "glu": torch.sigmoid,
        "reglu": F.relu,
        "geglu": F.gelu,
        "geglu_tanh": lambda x: F.gelu(x, approximate="tanh"),
        "swiglu": F.silu,
        "bilinear": lambda x: x,
    }
    x, w_gate, w_up, w_down = draw(4, 6), draw(6, 9, seed=1), draw(6, 9, seed=2), draw(9, 6, seed=3)
    expected = (gates[variant](x @ w_gate) * (x @ w_up)) @ w_down
    assert allclose(gated_ffn(x, w_gate, w_up, w_down, variant), expected, 1e-14)
    assert torch.equal(
        gated_coefficients(x, w_gate, w_up, variant) @ w_down, gated_ffn(x, w_gate, w_up, w_down, variant)
    )


def test_an_activation_stands_for_its_name() -> None:
    """A Swish of another β could not be used in a layer."""
    x, w_in, w_out, b_in = draw(4, 6), draw(6, 9, seed=1), draw(9, 6, seed=2), draw(9, seed=3)
    one = swish(2.0)
    assert allclose(classic_ffn(x, w_in, w_out, b_in, activation=one), one(x @ w_in + b_in) @ w_out, 1e-14)
    assert allclose(classic_coefficients(x, w_in, b_in, one), one(x @ w_in + b_in), 1e-14)
    assert allclose(gated_coefficients(x, w_in, w_in, one), one(x @ w_in) * (x @ w_in), 1e-14)


def test_one_row_is_as_many() -> None:
    """A single vector would need another call than a batch."""
    x, w_in, w_out = draw(2, 3, 6), draw(6, 9, seed=1), draw(9, 6, seed=2)
    assert allclose(classic_ffn(x[1, 2], w_in, w_out), classic_ffn(x, w_in, w_out)[1, 2], 1e-14)
    assert allclose(gated_ffn(x[1, 2], w_in, w_in, w_out), gated_ffn(x, w_in, w_in, w_out)[1, 2], 1e-14)


X, IN, OUT = draw(3, 6), draw(6, 9), draw(9, 6)
REFUSED: list[tuple[Callable[[], Any], tuple[str, ...]]] = [
    (lambda: classic_ffn(X, IN.T, OUT), ("w_in", "[9, 6]", "[3, 6]", "[6, 6]")),
    (lambda: classic_ffn(X, IN, OUT.T), ("w_out", "[6, 9]", "[3, 9]", "[9, 6]")),
    (lambda: classic_ffn(X, IN, OUT, draw(6)), ("b_in", "[6]", "[9]")),
    (lambda: classic_ffn(X, IN, OUT, None, draw(9)), ("b_out", "[9]", "[6]")),
    (lambda: classic_ffn(X, IN, OUT, None, draw(1)), ("b_out", "[1]")),  # which torch would broadcast
    (lambda: gated_ffn(X, draw(6, 8), IN, OUT), ("w_gate", "[6, 8]", "w_up", "[6, 9]")),
    (lambda: gated_ffn(X, IN, IN, OUT, b_up=draw(8)), ("b_up", "[8]", "[9]")),
    (lambda: gated_ffn(X, IN, IN, OUT.T), ("w_down", "[6, 9]")),
    (lambda: gated_ffn(X, IN, IN, OUT, "swigloo"), ("'swigloo'", "'swiglu'", "'bilinear'")),
    (lambda: classic_ffn(X, IN, OUT, activation="gelo"), ("'gelo'",)),
]


@pytest.mark.parametrize(("call", "named"), REFUSED)
def test_what_does_not_fit_is_named(call: Callable[[], Any], named: tuple[str, ...]) -> None:
    """torch would complain about mat1 and mat2, whichever these are; a misspelt variant would run as another."""
    with refuses(InputError, ValueError, *named):
        call()
