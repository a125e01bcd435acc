"""A pre-norm transformer block to read from top to bottom, in plain tensors or out of a Hugging Face layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from einops import rearrange, repeat
from jaxtyping import Float
from torch import Tensor

from ..core.errors import InputError, check_choice, check_count, quoted
from .activations import Activation
from .layers import chosen, classic_ffn, gated_ffn
from .ledgers import Component, Ledger

# A pre-norm transformer block to read from top to bottom: what an FFN stands in, in plain tensors.
#
# x ─┬─ norm ── attention ──+──┬─ norm ── FFN ──+── y
# └──────────────────────┘  └────────────────┘

Rotary = tuple[Float[Tensor, "pos d_head"], Float[Tensor, "pos d_head"]]


@dataclass(frozen=True, eq=False)
class Norm:
    """LayerNorm (x − mean)/σ·γ + β (Ba et al. 2016, 1607.06450), or RMSNorm x/rms·γ (Zhang et al. 2019, 1910.07467)."""

    kind: Literal["layer", "rms"]
    gain: Float[Tensor, " d_model"]
    bias: Float[Tensor, " d_model"] | None = None
    eps: float = 1e-5

    def __call__(self, x: Float[Tensor, "*rows pos d_model"]) -> Float[Tensor, "*rows pos d_model"]:
        """The normed input."""
        centred = x - x.mean(-1, keepdim=True) if self.kind == "layer" else x
        y = centred / (centred.square().mean(-1, keepdim=True) + self.eps).sqrt() * self.gain
        return y if self.bias is None else y + self.bias


@dataclass(frozen=True, eq=False)
class Attention:
    """Causal attention: softmax(qkᵀ/√d_head)v of each head, then W_O (Vaswani et al. 2017, eq. 1).

    Heads of queries may share a head of keys and values (Ainslie et al. 2023, 2305.13245); with a ``rotary_base``
    queries and keys are turned by their position (Su et al. 2021, 2104.09864). Matrices as ``[width in, width out]``.
    """

    w_q: Float[Tensor, "d_model d_queries"]
    w_k: Float[Tensor, "d_model d_shared"]
    w_v: Float[Tensor, "d_model d_shared"]
    w_o: Float[Tensor, "d_queries d_model"]
    n_heads: int
    n_kv_heads: int
    b_q: Float[Tensor, " d_queries"] | None = None
    b_k: Float[Tensor, " d_shared"] | None = None
    b_v: Float[Tensor, " d_shared"] | None = None
    b_o: Float[Tensor, " d_model"] | None = None
    rotary_base: float | None = None

    def __call__(
        self, x: Float[Tensor, "*rows pos d_model"], rotary: Rotary | None = None
    ) -> Float[Tensor, "*rows pos d_model"]:
        """What attention writes; ``rotary`` as in :meth:`Block.__call__`."""
        q = rearrange(affine(x, self.w_q, self.b_q), "... pos (head d) -> ... head pos d", head=self.n_heads)
        k = rearrange(affine(x, self.w_k, self.b_k), "... pos (head d) -> ... head pos d", head=self.n_kv_heads)
        v = rearrange(affine(x, self.w_v, self.b_v), "... pos (head d) -> ... head pos d", head=self.n_kv_heads)
        if self.rotary_base is not None:
            tables = rotary_tables(x.shape[-2], q.shape[-1], self.rotary_base, like=x) if rotary is None else rotary
            q, k = turned(q, *tables), turned(k, *tables)
        group = self.n_heads // self.n_kv_heads
        k = repeat(k, "... shared pos d -> ... (shared group) pos d", group=group)
        v = repeat(v, "... shared pos d -> ... (shared group) pos d", group=group)
        scores = q @ k.mT / q.shape[-1] ** 0.5
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
        mixed = scores.masked_fill(later, -torch.inf).softmax(-1) @ v
        return affine(rearrange(mixed, "... head pos d -> ... pos (head d)"), self.w_o, self.b_o)


@dataclass(frozen=True, eq=False)
class FeedForward:
    """A classic FFN, or with ``w_gate`` a gated one: :func:`classic_ffn`, :func:`gated_ffn` with their weights."""

    w_in: Float[Tensor, "d_model d_mlp"]
    w_out: Float[Tensor, "d_mlp d_model"]
    activation: str | Activation
    b_in: Float[Tensor, " d_mlp"] | None = None
    b_out: Float[Tensor, " d_model"] | None = None
    w_gate: Float[Tensor, "d_model d_mlp"] | None = None
    b_gate: Float[Tensor, " d_mlp"] | None = None

    def __call__(self, x: Float[Tensor, "*rows pos d_model"]) -> Float[Tensor, "*rows pos d_model"]:
        """What the FFN writes, each position from its own input alone."""
        if self.w_gate is None:
            return classic_ffn(x, self.w_in, self.w_out, self.b_in, self.b_out, self.activation)
        gate, up, down = self.b_gate, self.b_in, self.b_out
        return gated_ffn(
            x, self.w_gate, self.w_in, self.w_out, chosen(self.activation), b_gate=gate, b_up=up, b_down=down
        )


@dataclass(frozen=True, eq=False)
class Block:
    """One pre-norm layer: x + attention(norm(x)), then + FFN(norm(·))."""

    norm_1: Norm
    attention: Attention
    norm_2: Norm
    ffn: FeedForward

    def __call__(
        self, x: Float[Tensor, "*rows pos d_model"], rotary: Rotary | None = None
    ) -> Float[Tensor, "*rows pos d_model"]:
        """The residual stream behind the layer.

        Args:
            x: the residual stream in front of it, ``[*rows, pos, d_model]``, from position 0 on.
            rotary: cosines and sines ``[pos, d_head]`` instead of those of ``rotary_base`` (as for stretched contexts).
        """
        x = x + self.attention(self.norm_1(x), rotary)
        return x + self.ffn(self.norm_2(x))

    @classmethod
    def from_state(
        cls,
        state: Mapping[str, Tensor],
        family: str = "gpt2",
        *,
        n_heads: int,
        n_kv_heads: int | None = None,
        activation: str | Activation | None = None,
        eps: float = 1e-5,
        rotary_base: float = 10000.0,
        prefix: str = "",
    ) -> Block:
        """The block of a layer's state dict as Hugging Face has it.

        Args:
            state: names and tensors of one ``GPT2Block`` or ``LlamaDecoderLayer``, or of a whole model.
            family: "gpt2", or "llama" (also Mistral and Qwen2, which differ by biases alone).
            n_heads, n_kv_heads: attention heads, which no weight tells, and those of keys and values; default as many.
            activation: default "gelu_tanh" for gpt2, "silu" for llama.
            eps, rotary_base: of the norms (Llama's configs say 1e-5 or 1e-6), and of llama's rotary positions.
            prefix: in front of the names, as ``"transformer.h.0."``.

        Returns:
            The block, on the same tensors (transposed views where Hugging Face stores ``[out, in]``).

        Raises:
            InputError: another family, a missing tensor, or heads that do not divide a width.
        """
        defaults = {"gpt2": "gelu_tanh", "llama": "silu"}
        check_choice("family", family, tuple(defaults))
        shared = check_count("n_heads", n_heads) if n_kv_heads is None else check_count("n_kv_heads", n_kv_heads)
        if check_count("n_heads", n_heads) % shared:
            raise InputError(f"n_heads {n_heads} is no multiple of n_kv_heads {shared}")
        layer, act = State(state, prefix), activation or defaults[family]
        if family == "gpt2":
            block = gpt2_block(layer, n_heads, act, eps)
        else:
            block = llama_block(layer, n_heads, shared, act, eps, rotary_base)
        queries, keys = block.attention.w_q.shape[1], block.attention.w_k.shape[1]
        for name, width, heads in (("n_heads", queries, n_heads), ("n_kv_heads", keys, shared)):
            if width % heads:
                raise InputError(f"{name} {heads} does not divide the width {width} of its projection")
        if queries // n_heads != keys // shared:
            widths = f"queries of {queries} and keys of {keys}"
            raise InputError(f"n_heads {n_heads} and n_kv_heads {shared} make heads of two widths from {widths}")
        return block

    def ledger(self, *, context: int = 1024) -> Ledger:
        """Parameters of this block, and FLOPs for a token that attends over ``context`` positions."""
        attention, ffn = self.attention, self.ffn
        mixing = 4 * attention.w_q.shape[1] * check_count("context", context)
        components = (
            Component("attention", numbers(attention), layer_flops=2 * numbers(attention, matrices=True) + mixing),
            Component("FFN", numbers(ffn), layer_flops=2 * numbers(ffn, matrices=True)),
            Component("norms", numbers(self.norm_1) + numbers(self.norm_2)),
        )
        return Ledger("block", 1, context, components)

    def __repr__(self) -> str:
        d_model, d_mlp = self.ffn.w_in.shape
        return f"Block(d_model {d_model}, {self.attention.n_heads} heads, FFN of {d_mlp} neurons)"


def affine(
    x: Float[Tensor, "*rows pos d_in"], weight: Float[Tensor, "d_in d_out"], bias: Float[Tensor, " d_out"] | None
) -> Float[Tensor, "*rows pos d_out"]:
    """xW + b."""
    return x @ weight if bias is None else x @ weight + bias


def rotary_tables(n: int, d_head: int, base: float, like: Tensor) -> Rotary:
    """Cosine and sine of position · base^(−2i/d_head), each angle for coordinate i and for i + d_head/2."""
    frequencies = base ** (-torch.arange(0, d_head, 2, dtype=torch.float64) / d_head)
    angles = repeat(torch.outer(torch.arange(n, dtype=torch.float64), frequencies), "pos i -> pos (two i)", two=2)
    return angles.cos().to(like), angles.sin().to(like)


def turned(
    x: Float[Tensor, "*rows pos d_head"], cosine: Float[Tensor, "pos d_head"], sine: Float[Tensor, "pos d_head"]
) -> Float[Tensor, "*rows pos d_head"]:
    """The pairs (i, i + d_head/2) of each head turned by their angles."""
    first, second = x.chunk(2, dim=-1)
    return x * cosine + torch.cat([-second, first], dim=-1) * sine


def numbers(part: Norm | Attention | FeedForward, matrices: bool = False) -> int:
    """How many numbers the tensors of a part hold, or only its matrices."""
    tensors = (value for value in vars(part).values() if isinstance(value, Tensor))
    return sum(tensor.numel() for tensor in tensors if tensor.ndim == 2 or not matrices)


# A block out of a Hugging Face layer's state dict, for the families for which we have a reader.


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
