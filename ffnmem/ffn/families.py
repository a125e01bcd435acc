"""The families of language models that a shape can be read from: one declarative table, and how a config is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from ..errors import InputError, UnsupportedModelError, quoted

Position = Literal["learned", "rotary", "alibi", "none"]
NormKind = Literal["layer", "rms"]
QKNorm = Literal["none", "head", "width"]

ABSENT = object()

D_MODEL = ("hidden_size", "n_embd")
N_LAYERS = ("num_hidden_layers", "n_layer", "num_layers")
N_HEADS = ("num_attention_heads", "n_head", "num_heads")
D_MLP = ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size")
D_VOCAB = ("vocab_size",)
N_CTX = ("max_position_embeddings", "n_positions", "seq_length")


class Reading:
    """One way to read a config, be it an object or a dict."""

    def __init__(self, config: Any) -> None:
        self.config = config

    def __call__(self, *names: str, default: Any) -> Any:
        """The first of these that the config has, else ``default``. (None in a config is an answer too.)"""
        for name in names:
            mapping = isinstance(self.config, Mapping)
            value = self.config.get(name, ABSENT) if mapping else getattr(self.config, name, ABSENT)
            if value is not ABSENT:
                return value
        return default

    def flag(self, name: str, default: bool) -> bool:
        """A yes or no."""
        return bool(self(name, default=default))

    def size(self, name: str, names: tuple[str, ...], otherwise: int | None = None) -> int:
        """A whole number above 0; ``otherwise`` where the config has none."""
        value = self(*names, default=None)
        value = otherwise if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InputError(
                f"the config gives {quoted(value)} for {name} ({' or '.join(names)}): a whole number above 0 is due"
            )
        return value


Flag = bool | Callable[[Reading], bool]


@dataclass(frozen=True)
class Family:
    """One row of the table: what a family's configs do not say. A function reads it from the config."""

    gated: bool = False
    norm: NormKind = "layer"
    position: Position | Callable[[Reading], Position] = "rotary"
    position_offset: int = 0  # rows of the position table that no position uses
    tied: bool = False  # where the config does not say
    n_kv_heads: Callable[[Reading], int | None] = lambda _read: None  # None: as many as heads
    d_head: int | None = None  # where the config does not say; None: d_model / n_heads
    qkv_bias: Flag = False
    attention_out_bias: Flag = False
    ffn_bias: Flag = False
    norm_gain: Flag = True
    norms_per_layer: int | Callable[[Reading], int] = 2
    final_norm: Flag = True
    embedding_norm: bool = False
    qk_norm: QKNorm | Callable[[Reading], QKNorm] = "none"
    qk_norm_bias: bool = False
    unembedding_bias: bool = False


def flag(name: str, default: bool) -> Callable[[Reading], bool]:
    """Whatever the config says under this name."""
    return lambda read: read.flag(name, default)


def grouped(default: int | None = None) -> Callable[[Reading], int | None]:
    """``num_key_value_heads``, and the class's default where the config leaves it out."""
    return lambda read: read("num_key_value_heads", default=default)


def falcon_kv_heads(read: Reading) -> int | None:
    """Multi-query attention has one head of keys and values; the newer Falcons have groups."""
    new, multi_query = read.flag("new_decoder_architecture", False), read.flag("multi_query", True)
    return 1 if multi_query and not new else read("num_kv_heads", default=None)


def falcon_norms(read: Reading) -> int:
    """Attention and FFN side by side share one norm, unless the newer Falcons give each its own."""
    parallel = read.flag("parallel_attn", True)
    own = read("num_ln_in_parallel_attn", default=None)
    own = 2 if own is None and read.flag("new_decoder_architecture", False) else own
    return 2 if not parallel or own == 2 else 1


FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "gpt2": Family(position="learned", tied=True, qkv_bias=True, attention_out_bias=True, ffn_bias=True),
        "gpt_neo": Family(position="learned", tied=True, attention_out_bias=True, ffn_bias=True),
        "gptj": Family(ffn_bias=True, norms_per_layer=1, unembedding_bias=True),
        "gpt_neox": Family(
            qkv_bias=flag("attention_bias", True), attention_out_bias=flag("attention_bias", True), ffn_bias=True
        ),
        "opt": Family(
            position="learned",
            position_offset=2,
            tied=True,
            qkv_bias=flag("enable_bias", True),
            attention_out_bias=flag("enable_bias", True),
            ffn_bias=flag("enable_bias", True),
            norm_gain=flag("layer_norm_elementwise_affine", True),
            final_norm=lambda read: (
                read.flag("do_layer_norm_before", True) and not read.flag("_remove_final_layer_norm", False)
            ),
        ),
        "phi": Family(
            n_kv_heads=grouped(),
            qkv_bias=True,
            attention_out_bias=True,
            ffn_bias=True,
            norms_per_layer=1,
            qk_norm=lambda read: "head" if read.flag("qk_layernorm", False) else "none",
            qk_norm_bias=True,
            unembedding_bias=True,
        ),
        "bloom": Family(
            position="alibi", tied=True, qkv_bias=True, attention_out_bias=True, ffn_bias=True, embedding_norm=True
        ),
        "falcon": Family(
            position=lambda read: "alibi" if read.flag("alibi", False) else "rotary",
            tied=True,
            n_kv_heads=falcon_kv_heads,
            qkv_bias=flag("bias", False),
            attention_out_bias=flag("bias", False),
            ffn_bias=flag("bias", False),
            norms_per_layer=falcon_norms,
        ),
        "llama": Family(
            gated=True,
            norm="rms",
            n_kv_heads=grouped(),
            qkv_bias=flag("attention_bias", False),
            attention_out_bias=flag("attention_bias", False),
            ffn_bias=flag("mlp_bias", False),
        ),
        "mistral": Family(gated=True, norm="rms", n_kv_heads=grouped(8)),
        "qwen2": Family(gated=True, norm="rms", n_kv_heads=grouped(32), qkv_bias=True),
        "qwen3": Family(
            gated=True,
            norm="rms",
            n_kv_heads=grouped(32),
            d_head=128,
            qkv_bias=flag("attention_bias", False),
            attention_out_bias=flag("attention_bias", False),
            qk_norm="head",
        ),
        "gemma": Family(
            gated=True,
            norm="rms",
            tied=True,
            n_kv_heads=grouped(16),
            d_head=256,
            qkv_bias=flag("attention_bias", False),
            attention_out_bias=flag("attention_bias", False),
        ),
        "gemma2": Family(
            gated=True,
            norm="rms",
            tied=True,
            n_kv_heads=grouped(4),
            d_head=256,
            qkv_bias=flag("attention_bias", False),
            attention_out_bias=flag("attention_bias", False),
            norms_per_layer=4,
        ),
        "gemma3_text": Family(
            gated=True,
            norm="rms",
            tied=True,
            n_kv_heads=grouped(4),
            d_head=256,
            qkv_bias=flag("attention_bias", False),
            attention_out_bias=flag("attention_bias", False),
            norms_per_layer=4,
            qk_norm="head",
        ),
        "stablelm": Family(
            gated=True,
            n_kv_heads=grouped(32),
            qkv_bias=flag("use_qkv_bias", False),
            norms_per_layer=lambda read: 1 if read.flag("use_parallel_residual", False) else 2,
            qk_norm=lambda read: "width" if read.flag("qk_layernorm", False) else "none",
        ),
        "olmo": Family(
            gated=True,
            n_kv_heads=grouped(),
            qkv_bias=flag("attention_bias", False),
            attention_out_bias=flag("attention_bias", False),
            norm_gain=False,
        ),
        "olmo2": Family(
            gated=True,
            norm="rms",
            n_kv_heads=grouped(),
            qkv_bias=flag("attention_bias", False),
            attention_out_bias=flag("attention_bias", False),
            qk_norm="width",
        ),
        "phi3": Family(gated=True, norm="rms", n_kv_heads=grouped()),
    }
)
"""Every family that :meth:`Shape.from_config` reads, by ``model_type``."""

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


def check_family(name: Any, read: Reading) -> None:
    """Raise UnsupportedModelError, with the reason, unless the table has this family."""
    known = ", ".join(FAMILIES)
    if not isinstance(name, str):
        raise UnsupportedModelError(f"the config names no model_type ({quoted(name)}): families read are {known}")
    if name in FAMILIES:
        return
    if "moe" in name or any(read(expert, default=None) for expert in EXPERTS):
        reason = "a mixture of experts, which has several FFNs a layer and chooses between them"
    elif read.flag("is_encoder_decoder", False):
        reason = "an encoder-decoder, not a decoder alone"
    elif read("text_config", default=None) is not None:
        reason = "more than text: pass its text_config"
    else:
        reason = "not among the families read"
    raise UnsupportedModelError(f"model_type {quoted(name)} is {reason}: there are {known}")
