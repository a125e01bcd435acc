"""Where the parts of a model are: read off a TransformerBridge once, checked, and refused by name if unreadable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from ..errors import ModelError, UnsupportedModelError
from .architectures import DESCRIBED, Architecture, derived, setting
from .ffn_view import FFN
from .norms import Norm, NormKind, computes, kind_of, width_of


@dataclass(frozen=True)
class Block:
    """The modules of one layer that capture listens to.

    Attributes:
        whole: the layer itself, which is given the residual stream.
        attention: what is called for attention. attention_out: the module whose output attention writes.
        attention_norm, norm: before attention and FFN; None where it reads the residual stream as it is.
        attention_post, post: behind them, before what they write is added; None where nothing is.
        project_in, project_gate, project_out: of the FFN.
    """

    whole: nn.Module
    attention: nn.Module
    attention_out: nn.Module
    attention_norm: nn.Module | None
    attention_post: nn.Module | None
    norm: nn.Module | None
    post: nn.Module | None
    project_in: nn.Module
    project_gate: nn.Module | None
    project_out: nn.Module


@dataclass(frozen=True)
class Layout:
    """The modules of a decoder, from embedding to unembedding, and how they are put together.

    Attributes:
        body: the decoder without its unembedding.
        position_embedding: learned positions, which are added to the embeddings; None where positions are elsewhere.
        architecture: the description that they were found by. described: whether it is one of ours.
        write_scale: what attention's and FFN's writes are multiplied by.
        logit_scale, soft_cap: logit = c·tanh(s·w·x/c), or s·w·x without a cap c.
    """

    embedding: nn.Module
    position_embedding: nn.Module | None
    blocks: tuple[Block, ...]
    final_norm: nn.Module
    unembedding: nn.Module
    body: nn.Module
    architecture: Architecture
    described: bool
    write_scale: float = 1.0
    logit_scale: float = 1.0
    soft_cap: float | None = None

    @property
    def decoder(self) -> nn.Module | None:
        """What every way of running the model goes through: the module that holds its token embedding."""
        held = (m for m in self.body.modules() if any(child is self.embedding for child in m.children()))
        return next(held, None)

    def norm(self, module: nn.Module | None, width: int) -> Norm | None:
        """A norm of this model as it is now, or None for None."""
        if module is None:
            return None
        device = next(inner(self.unembedding).parameters()).device
        return Norm.of(inner(module), self.architecture.norm_kind, width, device)

    def through(self, module: nn.Module | None, written: Float[Tensor, "*n d_model"]) -> Float[Tensor, "*n d_model"]:
        """What attention or FFN adds to the residual stream: its output through its post norm, scaled."""
        found: Tensor = written if module is None else module(written)
        return found if self.write_scale == 1.0 else found * self.write_scale


def inner(module: nn.Module) -> nn.Module:
    """The Hugging Face module behind a bridge component."""
    original = getattr(module, "original_component", None)
    return original if isinstance(original, nn.Module) else module


def read_layout(bridge: Any, name: str) -> Layout:
    """The layout of a bridge; raises UnsupportedModelError, saying what is missing, if it is not one we can read."""
    children = dict(bridge.named_children())
    config = bridge.original_model.config
    kind = getattr(bridge.cfg, "architecture", "") or type(bridge.original_model).__name__
    who = f"{name} ({kind})"
    check_decoder(bridge, children, who)
    blocks = list(children["blocks"].children())
    check_blocks(blocks, who)
    first = dict(blocks[0].named_children())
    described = DESCRIBED.get(type(bridge.original_model).__name__)
    norm_kind = described.norm_kind if described is not None else kind_of(inner(children["ln_final"]))
    if norm_kind is None:
        raise UnsupportedModelError(f"{who} has {type(inner(children['ln_final'])).__name__} as its final norm")
    mlp = first["mlp"]
    joint = getattr(mlp, "fused_attr", None)  # TransformerLens' name for it
    found = described or derived(first, dict(mlp.named_children()), norm_kind, config, joint)
    for refusal in found.refused:
        if refusal.applies(config):
            raise UnsupportedModelError(f"{who}: {refusal.reason}")
    scale = number(config, found.logit_scale) or 1.0
    layout = Layout(
        embedding=children["embed"],
        position_embedding=children.get("pos_embed"),
        blocks=tuple(read_block(block, i, found, who) for i, block in enumerate(blocks)),
        final_norm=children["ln_final"],
        unembedding=children["unembed"],
        body=bridge.original_model.base_model,
        architecture=found,
        described=described is not None,
        write_scale=number(config, found.write_scale) or 1.0,
        logit_scale=scale / (number(config, found.logit_divisor) or 1.0),
        soft_cap=number(config, found.soft_cap),
    )
    check_layout(layout, who)
    return layout


def number(config: Any, field: str) -> float | None:
    """A number of a config; None where it has none or the field is not named."""
    found = setting(config, field)
    return None if found is None else float(found)


def check_decoder(bridge: Any, children: dict[str, nn.Module], who: str) -> None:
    config = bridge.original_model.config
    if getattr(config, "is_encoder_decoder", False):
        raise UnsupportedModelError(f"{who} is an encoder-decoder model; ffnmem reads decoder-only language models")
    if "blocks" not in children or "unembed" not in children or bridge.cfg.attention_dir != "causal":
        raise UnsupportedModelError(f"{who} is not a decoder-only language model")
    if getattr(config, "text_config", None) is not None and getattr(config, "vision_config", None) is not None:
        raise UnsupportedModelError(f"{who} is multimodal; ffnmem reads language models: load its text model by itself")
    if "ln_final" not in children:
        raise UnsupportedModelError(f"{who} has no final norm, which attribution needs")


def check_blocks(blocks: list[nn.Module], who: str) -> None:
    """Refuse what is no FFN of keys and values in every layer."""
    if not blocks:
        raise UnsupportedModelError(f"{who} has no layers")
    for layer, block in enumerate(blocks):
        parts = dict(block.named_children())
        mlp = parts.get("mlp")
        if mlp is not None and ("MoE" in type(mlp).__name__ or "Router" in routers(mlp)):
            raise UnsupportedModelError(
                f"{who} is a mixture of experts in layer {layer}: a router chooses among several FFNs for every token, "
                "so a layer has no one set of keys and values"
            )
        if mlp is None or not {"in", "out"} <= {part for part, _ in mlp.named_children()}:
            raise UnsupportedModelError(
                f"{who} has no feed-forward network (MLP) with two projections in layer {layer}"
            )
        if getattr(mlp, "_use_processed_weights", False) and "gate" in dict(mlp.named_children()):
            raise UnsupportedModelError(
                f"{who} has gated FFNs in compatibility mode, which then run past their projections: hand it over "
                "before enable_compatibility_mode()"
            )
        if "attn" not in parts:
            raise UnsupportedModelError(f"{who} has no attention in layer {layer}: not yet supported")


def routers(mlp: nn.Module) -> str:
    """The classes inside an FFN in one string; a mixture of experts has a router among them."""
    return " ".join(type(module).__name__ for module in inner(mlp).modules())


def read_block(block: nn.Module, layer: int, found: Architecture, who: str) -> Block:
    parts = dict(block.named_children())
    mlp = dict(parts["mlp"].named_children())

    def part(name: str | None, otherwise: str | None = None) -> nn.Module | None:
        if name is None:
            return None
        module = parts.get(name, parts.get(otherwise or ""))
        if module is None:
            raise UnsupportedModelError(f"{who} has no norm {name} in layer {layer}")
        return module

    if (found.gate is not None) != ("gate" in mlp):
        raise UnsupportedModelError(f"{who}: the FFN of layer {layer} is not like that of the architecture's others")
    if found.joint is not None:
        check_joint(inner(parts["mlp"]), found.joint, inner(mlp["in"]), layer, who)
    attention = parts["attn"]
    return Block(
        whole=block,
        attention=attention,
        attention_out=attention.get_submodule(found.attention_out),
        attention_norm=part(found.attention_norm),
        attention_post=part(found.attention_post),
        norm=part(found.norm, found.attention_norm),
        post=part(found.post),
        project_in=mlp["in"],
        project_gate=None if found.gate is None else mlp[found.gate],
        project_out=mlp["out"],
    )


def check_joint(mlp: nn.Module, joint: str, keys: nn.Module, layer: int, who: str) -> None:
    """Gates and keys must be views of the one projection that holds both, so that whoever writes changes both."""
    weights = [getattr(module, "weight", None) for module in (getattr(mlp, joint, None), keys)]
    places = {weight.untyped_storage().data_ptr() for weight in weights if isinstance(weight, Tensor)}
    if len(places) != 1:
        raise UnsupportedModelError(
            f"{who}: the keys of layer {layer} are no longer part of its {joint}, as after a change of type or device: "
            "load the model in the type and on the device wanted"
        )


def check_layout(layout: Layout, who: str) -> None:
    """Refuse what would make the numbers wrong: norms that compute otherwise, projected embeddings."""
    width = FFN(0, inner(layout.blocks[0].project_in), inner(layout.blocks[0].project_out), "").d_model
    kind = layout.architecture.norm_kind
    check_norm(layout.final_norm, "final", kind, width, who)
    for i, block in enumerate(layout.blocks):
        for norm in (block.attention_norm, block.norm, block.attention_post, block.post):
            if norm is not None:
                check_norm(norm, f"layer {i}", kind, width, who)
    weight = inner(layout.embedding).weight
    assert isinstance(weight, Tensor)
    if weight.shape[1] != width:
        raise UnsupportedModelError(f"{who} projects its embeddings ({weight.shape[1]} to {width})")


def check_norm(norm: nn.Module, where: str, kind: NormKind, width: int, who: str) -> None:
    module = inner(norm)
    own = width_of(module)
    if (own is not None and own != width) or not computes(module, kind, width):
        raise UnsupportedModelError(
            f"{who} has {type(module).__name__} as its {where} norm, which is no {kind.name} of {width} numbers"
        )


def read_activation(bridge: Any, found: Architecture, name: str) -> str:
    """The activation's name as the model's own config states it; TransformerLens guesses ReLU where it does not."""
    if found.activation.startswith("= "):
        return found.activation.removeprefix("= ")
    config = bridge.original_model.config
    stated = getattr(config, found.activation, None) if found.activation else None
    if not isinstance(stated, str):
        raise UnsupportedModelError(f"{name} ({bridge.cfg.architecture}) does not state its activation in its config")
    return stated


def read_ffns(layout: Layout, activation: str) -> tuple[FFN, ...]:
    return tuple(
        FFN(
            i,
            inner(b.project_in),
            inner(b.project_out),
            activation,
            None if b.project_gate is None else inner(b.project_gate),
        )
        for i, b in enumerate(layout.blocks)
    )


def check_weights(model: nn.Module, name: str) -> None:
    """Raise ModelError naming the first parameter with a NaN or an infinity."""
    for parameter_name, parameter in model.named_parameters():
        if parameter.is_floating_point() and not bool(parameter.isfinite().all()):
            clean = parameter_name.replace("_original_component.", "")
            raise ModelError(f"{name}: parameter {clean} holds NaN or infinite values; the checkpoint is broken")
