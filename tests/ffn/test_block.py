"""The block against Hugging Face's layers."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ffnmem.ffn.block import Block, rotary_tables
from ffnmem.ffn.ledgers import ledger

from ..helpers import allclose, randomise
from .test_layers import draw


def gpt2_config() -> Any:
    from transformers import GPT2Config

    return GPT2Config(n_embd=16, n_head=4, n_inner=40, n_layer=1, vocab_size=11, attn_implementation="sdpa")


def llama_config(n_kv_heads: int = 2, **changes: Any) -> Any:
    from transformers import LlamaConfig

    sizes: dict[str, Any] = {
        "hidden_size": 16,
        "num_attention_heads": 4,
        "num_key_value_heads": n_kv_heads,
        "intermediate_size": 40,
    }
    sizes |= {"num_hidden_layers": 1, "vocab_size": 11, "attn_implementation": "sdpa", **changes}
    return LlamaConfig(**sizes)


def gpt2_layer() -> Any:
    from transformers.models.gpt2.modeling_gpt2 import GPT2Block

    return small(GPT2Block(gpt2_config(), layer_idx=0))


def llama_layer(n_kv_heads: int = 2, **changes: Any) -> Any:
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer

    return small(LlamaDecoderLayer(llama_config(n_kv_heads, **changes), layer_idx=0))


def small(layer: nn.Module) -> Any:
    return randomise(layer).double()


@cache
def llama_block() -> Block:
    """A gated block in float64 that other tests may share."""
    return Block.from_state(llama_layer().state_dict(), "llama", n_heads=4, n_kv_heads=2, eps=1e-6)


def rotary_of(config: Any, n: int) -> tuple[Tensor, Tensor]:
    """Hugging Face's cosines and sines, which it works out in float32 whatever the model's dtype."""
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    return LlamaRotaryEmbedding(config)(torch.zeros(1, dtype=torch.float64), torch.arange(n)[None])


def exact_norms(layer: Any) -> Any:
    """The layer with torch's RMSNorm: Hugging Face's goes through float32, and would hide all below 1e-7."""
    for name in ("input_layernorm", "post_attention_layernorm"):
        theirs = getattr(layer, name)
        ours = nn.RMSNorm(theirs.weight.shape[0], eps=theirs.variance_epsilon, dtype=torch.float64)
        ours.weight = theirs.weight
        setattr(layer, name, ours)
    return layer


def test_the_block_is_gpt2s() -> None:
    """The block to learn from would not be the one in GPT-2."""
    layer, x = gpt2_layer(), draw(2, 7, 16)
    block = Block.from_state(layer.state_dict(), "gpt2", n_heads=4)
    assert allclose(block(x), layer(x), 1e-10)
    assert allclose(block(x[0]), layer(x)[0], 1e-10)  # without a batch


@pytest.mark.parametrize("n_kv_heads", [1, 2, 4])
@pytest.mark.parametrize("biases", [False, True])
def test_the_block_is_llamas(n_kv_heads: int, biases: bool) -> None:
    """Shared heads would be dealt out in the wrong order, positions turned the wrong way, a bias forgotten."""
    layer = llama_layer(n_kv_heads, attention_bias=biases, mlp_bias=biases)
    x, rotary = draw(2, 7, 16), rotary_of(llama_config(n_kv_heads), 7)
    block = Block.from_state(layer.state_dict(), "llama", n_heads=4, n_kv_heads=n_kv_heads, eps=1e-6)
    unturned = (torch.ones_like(rotary[0][0]), torch.zeros_like(rotary[1][0]))
    tables = (rotary[0][0], rotary[1][0])
    assert (block(x, tables) - block(x, unturned)).abs().max() > 1e-3  # the positions matter here
    assert allclose(block(x, tables), layer(x, position_embeddings=rotary), 1e-6)  # as it is, norms in float32
    assert allclose(block(x, tables), exact_norms(layer)(x, position_embeddings=rotary), 1e-10)


def test_the_tables_are_hugging_faces() -> None:
    """Rotary positions would turn at another speed."""
    for base in (10000.0, 500000.0):
        changes: dict[str, Any] = {"rope_parameters": {"rope_type": "default", "rope_theta": base}}
        theirs = rotary_of(llama_config(**changes), 50)
        ours = rotary_tables(50, 4, base, like=torch.zeros(1, dtype=torch.float64))
        assert allclose(ours[0], theirs[0][0], 1e-5)
        assert allclose(ours[1], theirs[1][0], 1e-5)


def test_the_base_is_the_default() -> None:
    """Without tables a block would have no positions."""
    x, block = draw(2, 7, 16), llama_block()
    assert torch.equal(block(x), block(x, rotary_tables(7, 4, 10000.0, like=x)))
    assert block.attention.rotary_base == 10000.0


def test_a_later_position_changes_nothing_before_it() -> None:
    """The block would look ahead."""
    x, block = draw(7, 16), llama_block()
    changed = x.clone()
    changed[4:] += 1
    assert allclose(block(changed)[:4], block(x)[:4], 1e-14)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_the_blocks_ledger_is_the_models_layer(family: str) -> None:
    """A block's parameters or FLOPs would be counted otherwise than the model's."""
    if family == "gpt2":
        layer, config = gpt2_layer(), gpt2_config()
        block = Block.from_state(layer.state_dict(), "gpt2", n_heads=4)
    else:
        layer, config, block = llama_layer(), llama_config(), llama_block()
    found, whole = block.ledger(context=50), ledger(config, context=50)
    assert found.parameters == sum(p.numel() for p in layer.parameters())
    for component in ("attention", "FFN", "norms"):
        assert found[component].layer_parameters == whole[component].layer_parameters
        assert found[component].layer_flops == whole[component].layer_flops


def test_repr() -> None:
    """A block would print its weights."""
    assert repr(llama_block()) == "Block(d_model 16, 4 heads, FFN of 40 neurons)"
