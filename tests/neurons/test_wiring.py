"""Virtual weights: against plain products of weights, the norms' own derivatives, and edges that were planted."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

import ffnmem as fm
from ffnmem.core.errors import UnsupportedModelError
from ffnmem.core.sheets import Table
from ffnmem.models.attention import Heads
from ffnmem.neurons.wiring import INCOMING, rates

from ..architectures import DECODERS, EVERY, SWEEP
from ..helpers import allclose, build, build_gpt2, printed, refuses

ALL = 10**9


def linear_part(module: nn.Module | None, centred: bool, vector: Tensor) -> Tensor:
    """What a Hugging Face norm makes of a small change, times its scale: its derivative where that does not change."""
    if module is None:
        return vector
    along = vector - vector.mean() if centred else vector
    x = torch.randn(len(vector), dtype=vector.dtype, generator=torch.Generator().manual_seed(1))
    basis = torch.stack([along, torch.ones_like(along)]) if centred else along.unsqueeze(0)
    x = (x - torch.linalg.lstsq(basis.T, x.unsqueeze(1)).solution.squeeze(1) @ basis) * 1e6  # ε is nothing beside it
    _, found = torch.autograd.functional.jvp(lambda y: module(y.unsqueeze(0))[0], (x,), (vector,))
    return found.detach() * x.square().mean().sqrt()


@pytest.mark.parametrize("name", EVERY)
def test_direct_weights_are_the_norms_own_derivatives(name: str, tokenizer: Any) -> None:
    """LayerNorm or RMSNorm, 1 + gain, norms behind, none in front, scaled writes: each as Hugging Face's module is."""
    model = fm.load(DECODERS[name](), tokenizer=tokenizer, dtype="float64")
    first, second = model.layout.blocks
    found = fm.virtual_weights(model, 1, 3, k=ALL, heads=False).incoming
    for side in set(found["input"]):
        reads = (model.ffn[1].keys if side == "key" else model.ffn[1].gates)[3].detach()
        rows = found[found["input"] == side].set_index("neuron")
        assert len(rows) == model.widths[0]
        for neuron in (0, 7):
            value = model.ffn[0].values[neuron].detach()
            written = linear_part(first.post, model.centred, value) * model.layout.write_scale
            expected = float(linear_part(second.norm, model.centred, written) @ reads)
            assert rows.loc[neuron, "weight"] == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert set(found["input"]) == ({"key", "gate"} if model.gated else {"key"})


@pytest.mark.parametrize("name", SWEEP)
def test_what_comes_in_is_what_goes_out(name: str, tokenizer: Any) -> None:
    """A connection has one weight, whether its heads are run forward or pulled back; and its layers are in order."""
    model = fm.load(DECODERS[name](), tokenizer=tokenizer, dtype="float64")
    told: list[tuple[str, int, int]] = []
    found = fm.virtual_weights(model, 1, 3, k=ALL, progress=lambda *step: told.append(step))
    assert told == [("virtual", done, 1 + model.gated) for done in range(1, 2 + model.gated)]
    into = found.incoming.set_index(["neuron", "input", "via"])
    out = fm.virtual_weights(model, 0, 7, k=ALL).outgoing.set_index(["neuron", "input", "via"])
    rows, columns = into.loc[7].sort_index(), out.loc[3].sort_index()
    assert list(rows.index) == list(columns.index)
    assert allclose(rows[["weight", "cosine"]].to_numpy(), columns[["weight", "cosine"]].to_numpy(), 1e-10)
    ways = {via for _, via in rows.index}
    heads = {f"head 1.{head}" for head in range(model.numbers.n_heads)}
    assert ways == {"direct"} | (set() if model.numbers.parallel else heads)


def heads_of_gpt2(hf: Any, layer: int) -> list[Tensor]:
    attention = hf.transformer.h[layer].attn
    w_v, w_o, width = attention.c_attn.weight[:, -hf.config.n_embd :], attention.c_proj.weight, attention.head_dim
    return [w_v[:, i : i + width] @ w_o[i : i + width] for i in range(0, len(w_o), width)]


def heads_of_llama(hf: Any, layer: int) -> list[Tensor]:
    attention, width = hf.model.layers[layer].self_attn, hf.model.layers[layer].self_attn.head_dim
    w_v, w_o = attention.v_proj.weight.T, attention.o_proj.weight.T
    shared = attention.num_key_value_groups
    found = []
    for head in range(len(w_o) // width):
        of_values = w_v[:, head // shared * width : (head // shared + 1) * width]
        found.append(of_values @ w_o[head * width : (head + 1) * width])
    return found


def heads_of_deepseek(network: Any, layer: int) -> list[Tensor]:
    """W_V·W_O of each head through the latent that all share, whose norm keeps its gain."""
    attention = network.model.layers[layer].self_attn
    latent = attention.kv_a_proj_with_mqa.weight[: attention.kv_lora_rank].T * attention.kv_a_layernorm.weight
    of_heads = attention.kv_b_proj.weight.view(attention.num_heads, -1, attention.kv_lora_rank)
    outputs = attention.o_proj.weight.T.view(attention.num_heads, attention.v_head_dim, -1)
    values = of_heads[:, attention.qk_nope_head_dim :]
    return [latent @ value.T @ output for value, output in zip(values, outputs, strict=True)]


@pytest.mark.parametrize(
    ("hf", "maps"),
    [
        (build_gpt2(), heads_of_gpt2),
        (build("Llama", attention_bias=True), heads_of_llama),
        (DECODERS["DeepSeek V2"](), heads_of_deepseek),
    ],
    ids=["gpt2", "llama, shared keys", "deepseek"],
)
def test_heads_are_the_product_of_their_weights(hf: Any, maps: Callable[..., list[Tensor]], tokenizer: Any) -> None:
    """Biases add nothing, and one head's map has nothing of another's."""
    model = fm.load(hf, tokenizer=tokenizer, dtype="float64")
    heads, norm = Heads(model), model.layout.norm(model.layout.blocks[1].attention_norm, model.d_model)
    assert norm is not None
    vectors = torch.randn(40, model.d_model, dtype=model.dtype, generator=torch.Generator().manual_seed(0))
    for head, product in enumerate(maps(hf.double(), 1)):
        assert allclose(heads.carried(1, vectors)[:, head], (norm.passed(vectors) @ product).detach(), 1e-12)
        assert allclose(heads.pulled(1, vectors)[:, head], norm.pull((vectors @ product.T).detach()), 1e-12)


@pytest.mark.parametrize("name", ["GPT-2", "Gemma 2"])
def test_weights_in_half_precision_are_read_as_the_same_in_float32(name: str, tokenizer: Any) -> None:
    """Products of three digits would decide which neurons are connected, alike, or of what role."""
    half = fm.load(DECODERS[name](), tokenizer=tokenizer, dtype="bfloat16")
    wide = fm.load(copy.deepcopy(half.hf_model).float(), tokenizer=tokenizer)
    ways: list[Callable[[fm.Model], pd.DataFrame]] = [
        lambda model: fm.virtual_weights(model, 1, 3, k=ALL).incoming,
        lambda model: fm.neurons.geometry(model).neurons,
        lambda model: fm.roles(model).neurons,
    ]
    for measure in ways:
        pd.testing.assert_frame_equal(measure(half), measure(wide), rtol=1e-5)


@pytest.mark.parametrize("draws", [64, 9])
def test_z_is_over_random_directions_in_the_neurons_place(tiny: fm.Model, draws: int) -> None:
    """As often along each direction as the neurons of its layer read (or write): their cosines' root mean square."""
    found = fm.virtual_weights(tiny, 1, 3, k=ALL, heads=False, draws=draws, seed=5).incoming
    norm = tiny.norm_before(1)
    assert norm is not None
    reads, values = (x.detach().double().numpy() for x in (norm.pull(tiny.ffn[1].keys), tiny.ffn[0].values))

    def units(rows: np.ndarray) -> np.ndarray:
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    drawn = np.random.default_rng([5, 1]).standard_normal((draws, 64)) @ units(reads)
    null = np.sqrt(np.square(units(values) @ units(drawn).T).mean(axis=1))
    rows = found.set_index("neuron").sort_index()
    assert allclose(rows["cosine"], units(values) @ units(reads)[3], 1e-5)
    assert allclose(rows["z"], rows["cosine"] / null, 1e-4)
    assert allclose(found["q"], rates(found["z"].abs().to_numpy(), 64, draws), 1e-9)


def test_rates_are_of_benjamini_and_hochberg() -> None:
    """As scipy has them where nothing was screened out."""
    size = np.array([9.0, 4.0, 3.9, 2.0, 0.5])
    assert allclose(rates(size, 5, 64), stats.false_discovery_control(2 * stats.t.sf(size, 64)), 1e-12)
    assert (rates(size[:2], 5, 64) >= rates(size, 5, 64)[:2]).all()


@pytest.mark.parametrize("heads", [False, True])
def test_random_weights_are_no_connections(tokenizer: Any, heads: bool) -> None:
    """Of random values and keys, z is as Student's distribution has it: chance finds nothing."""
    model = fm.load(build_gpt2(n_embd=64, n_inner=256, n_layer=3), tokenizer=tokenizer)
    told: list[tuple[str, int, int]] = []
    found = fm.virtual_weights(model, 1, 3, k=ALL, heads=heads, progress=lambda *step: told.append(step)).incoming
    assert told == [("virtual", 1, 2), ("virtual", 2, 2)]
    assert found["z"].std() == pytest.approx(1, abs=0.15)
    assert found["q"].min() > 0.05


def test_the_strongest_come_first(tiny: fm.Model) -> None:
    every = fm.virtual_weights(tiny, "0.7", k=ALL)
    few = fm.virtual_weights(tiny, (0, 7), k=4)
    assert not len(few.incoming)
    pd.testing.assert_frame_equal(few.edges, every.edges.head(4))
    assert (every.edges["z"].abs().diff().dropna() <= 0).all()
    assert every.edges["rank"].tolist() == list(range(1, len(every.edges) + 1))
    assert not every.edges.duplicated(["direction", "layer", "neuron", "input", "via"]).any()
    assert len(every.edges) == every.compared["outgoing"]
    assert [len(block.rows) for block in few.sheet().blocks if isinstance(block, Table)] == [4]
    shown = " ".join(" ".join(printed(few.sheet())).split())
    assert all(part in shown for part in ("0.7", "connections in", "What it makes fire", "promotes"))
    assert f"{(few.edges['q'] < 0.1).sum()} of 4 outgoing are more than chance" in shown
    alone = fm.load(build_gpt2(n_layer=1), tokenizer=tiny.tokenizer)
    assert not len(fm.virtual_weights(alone, 0, 0).edges)


def test_attention_that_is_not_linear(tokenizer: Any) -> None:
    """With the heads it is refused; without them nothing of it is read."""
    model = fm.load(build("Olmo", clip_qkv=1.0), tokenizer=tokenizer)
    with refuses(UnsupportedModelError, ValueError, "clips"):
        fm.virtual_weights(model, "1.5")
    assert INCOMING in fm.virtual_weights(model, "1.5", heads=False).sides
