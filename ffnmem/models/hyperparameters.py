"""The numbers of a model that are not read off its weights: from its config, or from a TransformerBridge's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .architectures import Architecture

CONTEXT = ("n_positions", "max_position_embeddings", "max_length", "seq_length", "max_seq_len")
EPSILON = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps")
HEADS = ("n_head", "num_attention_heads", "num_heads", "n_heads")
WIDTH = ("n_embd", "hidden_size", "d_model")
UNBOUNDED = 2048  # positions to allow where attention has none of its own and the config names no limit (Bloom)


@dataclass(frozen=True)
class Hyperparameters:
    """What TransformerLens' config says of a model, with or without TransformerLens.

    Attributes:
        architecture: the class of the Hugging Face model.
        n_ctx: the longest text in tokens, as the config has it, be it a number or not.
        n_heads, d_head: of attention. eps: of its norms. parallel: the FFN reads beside attention.
        prepend_bos: whether it was trained with a token before every text.
    """

    architecture: str
    n_ctx: Any
    n_heads: int
    d_head: int
    eps: float
    parallel: bool
    prepend_bos: bool

    @classmethod
    def of_bridge(cls, bridge: Any) -> Hyperparameters:
        """As a TransformerBridge has them."""
        cfg = bridge.cfg
        return cls(
            architecture=str(getattr(cfg, "architecture", "")),
            n_ctx=cfg.n_ctx,
            n_heads=cfg.n_heads,
            d_head=cfg.d_head,
            eps=cfg.eps,
            parallel=getattr(cfg, "parallel_attn_mlp", False),
            prepend_bos=bool(getattr(cfg, "default_prepend_bos", True)),
        )

    @classmethod
    def of_network(cls, network: Any, found: Architecture) -> Hyperparameters:
        """The same of a Hugging Face model of an architecture that is described, from its config."""
        config = network.config
        n_heads = first(config, HEADS, None)
        own = getattr(config, "head_dim", None)
        return cls(
            architecture=type(network).__name__,
            n_ctx=first(config, CONTEXT, UNBOUNDED),
            n_heads=n_heads,
            d_head=first(config, WIDTH, None) // n_heads if own is None else own,
            eps=first(config, EPSILON, 1e-5),
            parallel=(
                found.parallel if isinstance(found.parallel, bool) else bool(getattr(config, found.parallel, False))
            ),
            prepend_bos=found.prepend_bos,
        )


def first(config: Any, names: tuple[str, ...], otherwise: Any) -> Any:
    """The first of these fields that a config has."""
    return next((getattr(config, name) for name in names if hasattr(config, name)), otherwise)
