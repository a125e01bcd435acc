"""The shape of a language model: the sizes and parts that all its parameters and arithmetic follow from."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from .families import (
    D_MLP,
    D_MODEL,
    D_VOCAB,
    FAMILIES,
    N_CTX,
    N_HEADS,
    N_LAYERS,
    NormKind,
    Position,
    QKNorm,
    Reading,
    check_family,
)


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
        read = Reading(config)
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
