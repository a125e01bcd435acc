"""The shape of a language model, and the families whose configs say it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, Literal

from ..core.errors import InputError, UnsupportedModelError, quoted

# The families of language models that a shape can be read from: one declarative table, and how a config is read.

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


class ConfigReader:
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


Flag = bool | Callable[[ConfigReader], bool]


@dataclass(frozen=True)
class Family:
    """One row of the table: what a family's configs do not say. A function reads it from the config."""

    gated: bool = False
    norm: NormKind = "layer"
    position: Position | Callable[[ConfigReader], Position] = "rotary"
    position_offset: int = 0  # rows of the position table that no position uses
    tied: bool = False  # where the config does not say
    n_kv_heads: Callable[[ConfigReader], int | None] = lambda _read: None  # None: as many as heads
    d_head: int | None = None  # where the config does not say; None: d_model / n_heads
    qkv_bias: Flag = False
    attention_out_bias: Flag = False
    ffn_bias: Flag = False
    norm_gain: Flag = True
    norms_per_layer: int | Callable[[ConfigReader], int] = 2
    final_norm: Flag = True
    embedding_norm: bool = False
    qk_norm: QKNorm | Callable[[ConfigReader], QKNorm] = "none"
    qk_norm_bias: bool = False
    unembedding_bias: bool = False


def flag(name: str, default: bool) -> Callable[[ConfigReader], bool]:
    """Whatever the config says under this name."""
    return lambda read: read.flag(name, default)


def grouped(default: int | None = None) -> Callable[[ConfigReader], int | None]:
    """``num_key_value_heads``, and the class's default where the config leaves it out."""
    return lambda read: read("num_key_value_heads", default=default)


def falcon_kv_heads(read: ConfigReader) -> int | None:
    """Multi-query attention has one head of keys and values; the newer Falcons have groups."""
    new, multi_query = read.flag("new_decoder_architecture", False), read.flag("multi_query", True)
    return 1 if multi_query and not new else read("num_kv_heads", default=None)


def falcon_norms(read: ConfigReader) -> int:
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


def check_family(name: Any, read: ConfigReader) -> None:
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


# The shape of a language model: the sizes and parts that all its parameters and arithmetic follow from.


@dataclass(frozen=True)
class Shape:
    """The sizes of a decoder-only language model, and which of its parts are there: all that parameters follow from.

    Attributes:
        family: Hugging Face's ``model_type``.
        d_model: width of the residual stream.
        n_layers: number of layers.
        d_mlp: neurons in one FFN.
        gated: whether the FFN has gates.
        n_heads: attention heads.
        n_kv_heads: heads of attention's keys and values, fewer than ``n_heads`` where groups share them.
        d_head: width of a head.
        d_vocab: tokens in the vocabulary.
        n_ctx: positions the model was made for; None where the config names none.
        tied: whether unembedding and token embedding are one matrix.
        position: how positions enter.
        norm: the kind of norm.
        qkv_bias: whether attention's query, key and value projections have biases.
        attention_out_bias: whether attention's output projection has one.
        ffn_bias: whether the FFN's matrices have biases, each of them.
        norm_gain: whether norms have a learned gain.
        norm_bias: whether norms have a learned bias.
        norms_per_layer: norms of width ``d_model`` in a layer.
        final_norm: whether a norm stands before the unembedding.
        embedding_norm: whether one stands behind the token embedding.
        qk_norm: norms of attention's queries and keys: "none"; "head", one gain of width ``d_head`` for all heads;
            "width", one as wide as all heads together.
        qk_norm_bias: whether these have a bias.
        unembedding_bias: whether the unembedding has one.
        position_rows: rows of the learned position embedding, else 0.
        d_embed: width of the token embedding; ``d_model`` but for OPT-350m, which projects.
    """

    family: str
    d_model: int
    n_layers: int
    d_mlp: int
    gated: bool
    n_heads: int
    n_kv_heads: int
    d_head: int
    d_vocab: int
    n_ctx: int | None
    tied: bool
    position: Position
    norm: NormKind
    qkv_bias: bool
    attention_out_bias: bool
    ffn_bias: bool
    norm_gain: bool
    norm_bias: bool
    norms_per_layer: int
    final_norm: bool
    embedding_norm: bool
    qk_norm: QKNorm
    qk_norm_bias: bool
    unembedding_bias: bool
    position_rows: int
    d_embed: int

    @classmethod
    def from_config(cls, config: Any) -> Shape:
        """The shape that a config describes.

        Args:
            config: a Hugging Face config, any object with its attributes, or a dict as in ``config.json``;
                ``model_type`` names the family. What a dict leaves out has Hugging Face's default for the family.

        Returns:
            The shape.

        Raises:
            UnsupportedModelError: another family, a mixture of experts, an encoder or an encoder-decoder.
            InputError: a size that is missing or no whole number above 0.
        """
        read = ConfigReader(config)
        name = read("model_type", default=None)
        check_family(name, read)
        family = FAMILIES[name]

        def of(value: Any) -> Any:
            return value(read) if callable(value) else value

        d_model, n_heads = read.size("d_model", D_MODEL), read.size("n_heads", N_HEADS)
        n_ctx = read(*N_CTX, default=None)
        position = of(family.position)
        return cls(
            family=name,
            d_model=d_model,
            n_layers=read.size("n_layers", N_LAYERS),
            d_mlp=read.size("d_mlp", D_MLP, otherwise=4 * d_model),
            gated=family.gated,
            n_heads=n_heads,
            n_kv_heads=of(family.n_kv_heads) or n_heads,
            d_head=read("head_dim", default=family.d_head) or d_model // n_heads,
            d_vocab=read.size("d_vocab", D_VOCAB),
            n_ctx=n_ctx,
            tied=read.flag("tie_word_embeddings", family.tied),
            position=position,
            norm=family.norm,
            qkv_bias=of(family.qkv_bias),
            attention_out_bias=of(family.attention_out_bias),
            ffn_bias=of(family.ffn_bias),
            norm_gain=of(family.norm_gain),
            norm_bias=family.norm == "layer" and of(family.norm_gain),
            norms_per_layer=of(family.norms_per_layer),
            final_norm=of(family.final_norm),
            embedding_norm=family.embedding_norm,
            qk_norm=of(family.qk_norm),
            qk_norm_bias=family.qk_norm_bias,
            unembedding_bias=family.unembedding_bias,
            position_rows=read.size("n_ctx", N_CTX) + family.position_offset if position == "learned" else 0,
            d_embed=read("word_embed_proj_dim", default=None) or d_model,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self)

    def __repr__(self) -> str:
        kind = "gated" if self.gated else "classic"
        return (
            f"Shape({self.family}, {self.n_layers} layers, d_model {self.d_model}, {kind} FFN of {self.d_mlp} neurons)"
        )
