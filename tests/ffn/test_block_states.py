"""What a layer's state dict must have."""

from __future__ import annotations

import torch

from ffnmem.core.errors import InputError
from ffnmem.ffn.block import Block

from ..helpers import refuses
from .test_block import gpt2_layer, llama_layer


def test_a_prefix_finds_the_layer_in_a_whole_model() -> None:
    """The states of a model's layers would have to be renamed by hand, or be copied."""
    layer = gpt2_layer()
    state = {"transformer.h.3." + name: tensor for name, tensor in layer.state_dict().items()}
    found = Block.from_state(state, "gpt2", n_heads=4, prefix="transformer.h.3.")
    assert found.ffn.w_in.data_ptr() == layer.mlp.c_fc.weight.data_ptr()
    assert torch.equal(found.ffn.w_in, layer.mlp.c_fc.weight)


def test_matrices_stand_to_the_right() -> None:
    """Llama's matrices, which lie [out, in], would be used as they lie; some are square."""
    layer = llama_layer(4)
    found = Block.from_state(layer.state_dict(), "llama", n_heads=4)
    assert torch.equal(found.attention.w_q, layer.self_attn.q_proj.weight.T)
    assert torch.equal(found.ffn.w_in, layer.mlp.up_proj.weight.T)


def test_what_does_not_fit_is_named() -> None:
    """A KeyError, or heads cut through the middle."""
    state, llama = gpt2_layer().state_dict(), llama_layer(2).state_dict()
    with refuses(InputError, ValueError, "family 'bert'", "'gpt2'", "'llama'"):
        Block.from_state(state, "bert", n_heads=4)
    with refuses(InputError, ValueError, "'h.0.attn.c_attn.weight'", "prefix="):
        Block.from_state(state, "gpt2", n_heads=4, prefix="h.0.")
    with refuses(InputError, ValueError, "input_layernorm.weight"):
        Block.from_state(state, "llama", n_heads=4)
    with refuses(InputError, ValueError, "n_heads 3", "16"):
        Block.from_state(state, "gpt2", n_heads=3)
    with refuses(InputError, ValueError, "n_heads 4", "n_kv_heads 3"):
        Block.from_state(llama, "llama", n_heads=4, n_kv_heads=3)
    with refuses(InputError, ValueError, "n_heads 4", "n_kv_heads 4", "16", "8"):
        Block.from_state(llama, "llama", n_heads=4)
    with refuses(InputError, ValueError, "n_heads", "0"):
        Block.from_state(state, "gpt2", n_heads=0)
