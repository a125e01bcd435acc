"""A block out of a Hugging Face layer's state dict, for the families for which we have a reader."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from ..errors import InputError, check_choice, check_count, quoted
from .activations import Activation
from .block import Attention, Block, FeedForward, Norm

ACTIVATION_OF = (("gpt2", "gelu_tanh"), ("llama", "silu"))


def block_from_state(
    state: Mapping[str, Tensor],
    family: str,
    n_heads: int,
    n_kv_heads: int | None,
    activation: str | Activation | None,
    eps: float,
    rotary_base: float,
    prefix: str,
) -> Block:
    """:meth:`Block.from_state`."""
    defaults = dict(ACTIVATION_OF)
    check_choice("family", family, tuple(defaults))
    shared = check_count("n_heads", n_heads) if n_kv_heads is None else check_count("n_kv_heads", n_kv_heads)
    if check_count("n_heads", n_heads) % shared:
        raise InputError(f"n_heads {n_heads} is no multiple of n_kv_heads {shared}")
    layer, act = State(state, prefix), activation or defaults[family]
    if family == "gpt2":
        block = gpt2_block(layer, n_heads, act, eps)
    else:
        block = llama_block(layer, n_heads, shared, act, eps, rotary_base)
    for name, matrix, heads in (("n_heads", block.attention.w_q, n_heads), ("n_kv_heads", block.attention.w_k, shared)):
        if matrix.shape[1] % heads:
            raise InputError(f"{name} {heads} does not divide the width {matrix.shape[1]} of its projection")
    if block.attention.w_q.shape[1] // n_heads != block.attention.w_k.shape[1] // shared:
        widths = f"queries of {block.attention.w_q.shape[1]} and keys of {block.attention.w_k.shape[1]}"
        raise InputError(f"n_heads {n_heads} and n_kv_heads {shared} make heads of two widths from {widths}")
    return block


class State:
    """The tensors of one layer by their names there."""

    def __init__(self, state: Mapping[str, Tensor], prefix: str) -> None:
        self.state, self.prefix = state, prefix

    def __getitem__(self, name: str) -> Tensor:
        """A tensor that must be there."""
        found = self.get(name)
        if found is None:
            raise InputError(
                f"the state has no {quoted(self.prefix + name)}: give family= and prefix= as the names have them"
            )
        return found

    def get(self, name: str) -> Tensor | None:
        """A tensor that may be there."""
        return self.state.get(self.prefix + name)


def gpt2_block(layer: State, n_heads: int, activation: str | Activation, eps: float) -> Block:
    """A ``GPT2Block``: LayerNorm, one matrix for queries, keys and values, classic FFN; matrices lie ``[in, out]``."""
    w_q, w_k, w_v = layer["attn.c_attn.weight"].chunk(3, dim=1)
    b_q, b_k, b_v = layer["attn.c_attn.bias"].chunk(3)
    return Block(
        Norm("layer", layer["ln_1.weight"], layer["ln_1.bias"], eps),
        Attention(
            w_q,
            w_k,
            w_v,
            layer["attn.c_proj.weight"],
            n_heads,
            n_heads,
            b_q,
            b_k,
            b_v,
            layer["attn.c_proj.bias"],
        ),
        Norm("layer", layer["ln_2.weight"], layer["ln_2.bias"], eps),
        FeedForward(
            layer["mlp.c_fc.weight"],
            layer["mlp.c_proj.weight"],
            activation,
            layer["mlp.c_fc.bias"],
            layer["mlp.c_proj.bias"],
        ),
    )


def llama_block(
    layer: State, n_heads: int, n_kv_heads: int, activation: str | Activation, eps: float, rotary_base: float
) -> Block:
    """A ``LlamaDecoderLayer``: RMSNorm, rotary positions, a gated FFN, mostly no biases; matrices lie ``[out, in]``."""
    return Block(
        Norm("rms", layer["input_layernorm.weight"], None, eps),
        Attention(
            layer["self_attn.q_proj.weight"].T,
            layer["self_attn.k_proj.weight"].T,
            layer["self_attn.v_proj.weight"].T,
            layer["self_attn.o_proj.weight"].T,
            n_heads,
            n_kv_heads,
            layer.get("self_attn.q_proj.bias"),
            layer.get("self_attn.k_proj.bias"),
            layer.get("self_attn.v_proj.bias"),
            layer.get("self_attn.o_proj.bias"),
            rotary_base,
        ),
        Norm("rms", layer["post_attention_layernorm.weight"], None, eps),
        FeedForward(
            layer["mlp.up_proj.weight"].T,
            layer["mlp.down_proj.weight"].T,
            activation,
            layer.get("mlp.up_proj.bias"),
            layer.get("mlp.down_proj.bias"),
            layer["mlp.gate_proj.weight"].T,
            layer.get("mlp.gate_proj.bias"),
        ),
    )
