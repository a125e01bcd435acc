"""Where the parts of a model are: read off a TransformerBridge once, checked, and refused by name if unreadable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ..errors import ModelError, UnsupportedModelError
from .ffn_view import FFN


@dataclass(frozen=True)
class Block:
    """The modules of one layer that capture listens to."""

    attention: nn.Module
    attention_norm: nn.Module
    norm: nn.Module
    project_in: nn.Module
    project_out: nn.Module


@dataclass(frozen=True)
class Layout:
    """The modules of a decoder, from embedding to unembedding."""

    embedding: nn.Module
    position_embedding: nn.Module | None
    blocks: tuple[Block, ...]
    final_norm: nn.Module
    unembedding: nn.Module
    body: nn.Module
    """The decoder without its unembedding."""


def inner(module: nn.Module) -> nn.Module:
    """The Hugging Face module behind a bridge component."""
    original = getattr(module, "original_component", None)
    return original if isinstance(original, nn.Module) else module


def read_layout(bridge: Any, name: str) -> Layout:
    """The layout of a bridge; raises UnsupportedModelError, saying what is missing, if it is not one we can read."""
    config = bridge.cfg
    architecture = getattr(config, "architecture", type(bridge.original_model).__name__)
    children = dict(bridge.named_children())
    if "blocks" not in children or "unembed" not in children or config.attention_dir != "causal":
        raise UnsupportedModelError(f"{name} ({architecture}) is not a decoder-only language model")
    if getattr(bridge.original_model.config, "do_layer_norm_before", True) is False:
        raise UnsupportedModelError(f"{name} ({architecture}) normalises after its layers, not before")
    if "embed_ln" in children:
        raise UnsupportedModelError(f"{name} ({architecture}) normalises its embeddings, so they are no plain sum")
    if "ln_final" not in children:
        raise UnsupportedModelError(f"{name} ({architecture}) has no final norm, which attribution needs")
    if getattr(config, "gated_mlp", False):
        raise UnsupportedModelError(
            f"{name} ({architecture}) has gated FFNs, which ffnmem does not read yet; "
            "GPT-2, GPT-Neo, GPT-NeoX (Pythia) and OPT models work"
        )
    blocks = tuple(read_block(block, i, name, architecture) for i, block in enumerate(children["blocks"].children()))
    if not blocks:
        raise UnsupportedModelError(f"{name} ({architecture}) has no layers")
    layout = Layout(
        embedding=children["embed"],
        position_embedding=children.get("pos_embed"),
        blocks=blocks,
        final_norm=children["ln_final"],
        unembedding=children["unembed"],
        body=bridge.original_model.base_model,
    )
    check_layout(layout, name, architecture)
    return layout


def read_block(block: nn.Module, layer: int, name: str, architecture: str) -> Block:
    parts = dict(block.named_children())
    mlp = dict(parts["mlp"].named_children()) if "mlp" in parts else {}
    missing = [part for part in ("in", "out") if part not in mlp]
    if missing:
        raise UnsupportedModelError(
            f"{name} ({architecture}) has no feed-forward network (MLP) with two projections in layer {layer}"
        )
    if not {"attn", "ln1", "ln2"} <= set(parts):
        lacking = "attention" if "attn" not in parts else "norms of their own before attention and FFN"
        raise UnsupportedModelError(f"{name} ({architecture}) has no {lacking} in layer {layer}: not yet supported")
    if "gate" in mlp:
        raise UnsupportedModelError(f"{name} ({architecture}) has a gated FFN in layer {layer}: not yet supported")
    return Block(parts["attn"], parts["ln1"], parts["ln2"], mlp["in"], mlp["out"])


def check_layout(layout: Layout, name: str, architecture: str) -> None:
    """Refuse what would make the numbers wrong: other norms (subclasses compute otherwise), projected embeddings."""
    inside = [(f"layer {i}", norm) for i, b in enumerate(layout.blocks) for norm in (b.attention_norm, b.norm)]
    for where, norm in [("final", layout.final_norm), *inside]:
        if type(inner(norm)) is not nn.LayerNorm:
            kind = type(inner(norm)).__name__
            raise UnsupportedModelError(f"{name} ({architecture}) has {kind} as its {where} norm, not LayerNorm")
        if inner(norm).weight is None:
            raise UnsupportedModelError(f"{name} ({architecture}) has a {where} norm without gain: not yet supported")
    weight = inner(layout.embedding).weight
    width = inner(layout.final_norm).weight
    assert isinstance(weight, Tensor)
    assert isinstance(width, Tensor)
    if weight.shape[1] != width.shape[0]:
        raise UnsupportedModelError(
            f"{name} ({architecture}) projects its embeddings ({weight.shape[1]} to {width.shape[0]})"
        )


def read_activation(bridge: Any, name: str) -> str:
    """The activation's name as the model's own config states it; TransformerLens guesses ReLU where it does not."""
    config = bridge.original_model.config
    stated = [getattr(config, field, None) for field in ("activation_function", "hidden_act", "activation")]
    found = [activation for activation in stated if isinstance(activation, str)]
    if not found:
        raise UnsupportedModelError(f"{name} ({bridge.cfg.architecture}) does not state its activation in its config")
    return found[0]


def read_ffns(layout: Layout, activation: str) -> tuple[FFN, ...]:
    return tuple(FFN(i, inner(b.project_in), inner(b.project_out), activation) for i, b in enumerate(layout.blocks))


def check_weights(model: nn.Module, name: str) -> None:
    """Raise ModelError naming the first parameter with a NaN or an infinity."""
    for parameter_name, parameter in model.named_parameters():
        if parameter.is_floating_point() and not bool(parameter.isfinite().all()):
            clean = parameter_name.replace("_original_component.", "")
            raise ModelError(f"{name}: parameter {clean} holds NaN or infinite values; the checkpoint is broken")
