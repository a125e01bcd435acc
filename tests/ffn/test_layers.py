"""The FFN's formulas against Hugging Face's modules, and an FFN as a sum over memories."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import ffnmem as fm
from ffnmem.core.errors import FfnmemError
from ffnmem.ffn.activations import swish
from ffnmem.ffn.layers import GATED, classic_coefficients, classic_ffn, gated_coefficients, gated_ffn
from ffnmem.ffn.memory import as_memory

from ..helpers import PROMPT, allclose, randomise, refuses

D, M = 6, 9


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def weights() -> dict[str, Any]:
    keys, values = draw(M, D, seed=1), draw(M, D, seed=2)
    return {"keys": keys, "values": values, "key_bias": draw(M, seed=3), "value_bias": draw(D, seed=4)}


# -- the formulas -----------------------------------------------------------------------------------------------------


def test_classic_is_gpt2s() -> None:
    from transformers import GPT2Config
    from transformers.models.gpt2.modeling_gpt2 import GPT2MLP

    mlp, x = randomise(GPT2MLP(40, GPT2Config(n_embd=12))).double(), draw(2, 5, 12)
    matrices = (mlp.c_fc.weight, mlp.c_proj.weight, mlp.c_fc.bias, mlp.c_proj.bias)
    assert allclose(classic_ffn(x, *matrices, "gelu_new"), mlp(x), 1e-12)


@pytest.mark.parametrize(("variant", "biases"), [("swiglu", False), ("swiglu", True), ("geglu_tanh", False)])
def test_gated_is_llamas_and_gemmas(variant: str, biases: bool) -> None:
    """The gate would sit on the wrong matrix, have the wrong activation, or its bias stand behind it."""
    from transformers import GemmaConfig, LlamaConfig
    from transformers.models.gemma.modeling_gemma import GemmaMLP
    from transformers.models.llama.modeling_llama import LlamaMLP

    sizes: dict[str, Any] = {"hidden_size": 12, "intermediate_size": 20, "num_attention_heads": 4}
    made = LlamaMLP(LlamaConfig(**sizes, mlp_bias=biases)) if variant == "swiglu" else GemmaMLP(GemmaConfig(**sizes))
    mlp, x = randomise(made).double(), draw(2, 5, 12)
    parts = (mlp.gate_proj, mlp.up_proj, mlp.down_proj)
    named = {f"b_{name}": part.bias for name, part in zip(("gate", "up", "down"), parts, strict=True)}
    gate, up, down = (part.weight.T for part in parts)
    assert allclose(gated_ffn(x, gate, up, down, variant, **named), mlp(x), 1e-12)


def test_every_variant_is_its_formula() -> None:
    """A variant's name would stand for another gate than in Shazeer's paper; one row is as many."""
    gates: dict[str, Any] = {
        "glu": torch.sigmoid,
        "reglu": F.relu,
        "geglu": F.gelu,
        "geglu_tanh": lambda x: F.gelu(x, approximate="tanh"),
        "swiglu": F.silu,
        "bilinear": lambda x: x,
    }
    assert set(gates) == set(GATED)
    x, w_gate, w_up, w_down = draw(4, D), draw(D, M, seed=1), draw(D, M, seed=2), draw(M, D, seed=3)
    for variant, gate in gates.items():
        m = gate(x @ w_gate) * (x @ w_up)
        assert allclose(gated_coefficients(x, w_gate, w_up, variant), m, 1e-14)
        assert allclose(gated_ffn(x[1], w_gate, w_up, w_down, variant), m[1] @ w_down, 1e-14)
    b_in, one = draw(M, seed=3), swish(2.0)  # an activation stands for its name
    assert allclose(classic_ffn(x[1], w_up, w_down, b_in, activation=one), one(x[1] @ w_up + b_in) @ w_down, 1e-14)
    assert allclose(classic_coefficients(x, w_up, b_in, one), one(x @ w_up + b_in), 1e-14)
    assert allclose(gated_coefficients(x, w_gate, w_up, one), one(x @ w_gate) * (x @ w_up), 1e-14)


# -- memories ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gated", [False, True])
def test_the_sum_over_memories_is_the_ffn(gated: bool) -> None:
    """Coefficients, order and values would not belong together; shares would not be shares of the output."""
    x, w = draw(2, 3, D), weights()
    keys, values, b_in, b_out = w.values()
    options: dict[str, Any] = {"gates": draw(M, D, seed=9), "gate_bias": draw(M, seed=8)} if gated else {}
    found = as_memory(x, **w, **options, activation="silu")
    kept = as_memory(x, **w, **options, activation="silu", top=3)
    if gated:
        biases = {"b_gate": options["gate_bias"], "b_up": b_in, "b_down": b_out}
        ffn = gated_ffn(x, options["gates"].T, keys.T, values, "swiglu", **biases)
    else:
        ffn = classic_ffn(x, keys.T, values, b_in, b_out, "silu")
    written = found.coefficients.unsqueeze(-1) * values
    assert allclose(written.sum(-2) + b_out, ffn, 1e-12)
    weight, order = written.norm(dim=-1).sort(descending=True)
    shares = torch.einsum("rpnd, rpd -> rpn", written, ffn) / ffn.square().sum(-1, keepdim=True)
    for one, top in ((found, M), (kept, 3)):
        assert allclose(one.output, ffn, 1e-12)
        assert one.neurons.tolist() == order[..., :top].tolist()
        assert allclose(one.weights, weight[..., :top], 1e-12)
        assert allclose(one.shares, shares.gather(-1, order)[..., :top], 1e-12)
        assert allclose(one.bias_shares, 1 - shares.sum(-1), 1e-12)


def test_the_table_is_decomposes(tiny: fm.Model) -> None:
    capture, ffn = fm.capture(tiny, PROMPT), tiny.ffn[1]
    biases = (ffn.key_bias, ffn.value_bias)
    x, keys, values = capture.ffn_in[1][0, -1], ffn.keys.detach(), ffn.values.detach()
    found = as_memory(x, keys, values, *biases, activation=ffn.activation).to_frame()
    expected = fm.decompose(capture, layer=1).to_frame()
    found = found[found["neuron"] != -1]
    assert found["neuron"].tolist() == expected["neuron"].tolist()
    for column in ("coefficient", "value_norm", "weight", "share"):
        assert allclose(found[column].to_numpy(), expected[column].to_numpy(), 1e-5)


def test_tables_and_sheets() -> None:
    found = as_memory(draw(4, D), **weights(), top=2)
    frame = found.to_frame()
    lines: Any = found.sheet(5).blocks[1]
    assert frame["row"].tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert frame["neuron"].tolist()[2::3] == [-1] * 4
    assert allclose(frame["coefficient"][1], found.coefficients[0, found.neurons[0, 1]], 0)
    assert [row[:2] for row in lines.rows][1:3] == [(0, str(int(found.neurons[0, 1]))), (0, "bias")]
    all_slots: Any = as_memory(draw(D), **weights()).sheet().blocks[1]
    assert {row[1] for row in all_slots.rows} == {*map(str, range(M)), "bias"}
    assert lines.rows[1][2:] == tuple(frame.loc[1, ["coefficient", "value_norm", "weight", "share"]])
    assert (len(lines.rows), lines.caption) == (5, f"{lines.caption.split(';')[0]}; 7 more")
    assert found.verdict == "4 inputs, 9 neurons, 2 slots kept"
    twins = {name: tensor[[0] * M] if tensor.shape[0] == M else tensor for name, tensor in weights().items()}
    assert as_memory(draw(D), **twins).neurons.tolist() == list(range(M))  # of equal weights, the lower index first
    nothing = as_memory(torch.zeros(D).double(), weights()["keys"], weights()["values"])
    assert (nothing.bias_norm, float(nothing.bias_shares)) == (0, 0)
    assert not nothing.shares.isnan().any()  # though the output is 0
    assert as_memory(draw(2, 3, D), **weights()).verdict == "6 inputs, 9 neurons, 9 slots kept"


X, IN, OUT, BIASES = draw(3, D), draw(D, M), draw(M, D), weights()


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: classic_ffn(X, IN.T, OUT), ("w_in", "[9, 6]", "[3, 6]", "[6, 6]")),
        (lambda: classic_ffn(X, IN, OUT.T), ("w_out", "[6, 9]", "[3, 9]", "[9, 6]")),
        (lambda: classic_ffn(X, IN, OUT, draw(6)), ("b_in", "[6]", "[9]")),
        (lambda: classic_ffn(X, IN, OUT, None, draw(1)), ("b_out", "[1]")),  # which torch would broadcast
        (lambda: gated_ffn(X, draw(6, 8), IN, OUT), ("w_gate", "[6, 8]", "w_up", "[6, 9]")),
        (lambda: gated_ffn(X, IN, IN, OUT, b_up=draw(8)), ("b_up", "[8]", "[9]")),
        (lambda: gated_ffn(X, IN, IN, OUT, "swigloo"), ("'swigloo'", "'swiglu'", "'bilinear'")),
        (lambda: as_memory(draw(D), **{**BIASES, "values": draw(M - 1, D)}), ("must",)),
        (lambda: as_memory(draw(D), **BIASES, gate_bias=draw(M)), ("gate_bias", "gates")),
        (lambda: as_memory(draw(D), **BIASES, top=0), ("top", "0")),
    ],
)
def test_what_does_not_fit_is_named(call: Callable[[], Any], says: tuple[str, ...]) -> None:
    with refuses(FfnmemError, Exception, *says):
        call()
