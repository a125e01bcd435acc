"""Where the parts of a model are, read off once and refused by name if unreadable; its FFNs as keys and values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..core.errors import ModelError, UnsupportedModelError, listed
from ..core.neuron_names import ExpertSizes
from ..ffn.activations import clamped_swish
from .architectures import BRIDGE_PATHS, DESCRIBED, Architecture, Paths, derive_architecture, setting
from .configs import MERGING, check_unquantised
from .experts import Expert, ExpertProjection, Mixture, find_mixture
from .norms import NormKind, NormMap, computes, kind_of, width_of

# One FFN of a model as keys and values, in one orientation whatever the weights' own.


def oriented(module: nn.Module) -> Float[Tensor, "d_in d_out"]:
    """The live weight of a projection as ``[d_in, d_out]``: Conv1D stores it so, Linear stores its transpose."""
    weight = module.weight
    assert isinstance(weight, Tensor)
    return weight.T if isinstance(module, nn.Linear | Half | ExpertProjection) else weight


def bias_of(module: nn.Module) -> Tensor | None:
    bias = module.bias
    return bias if isinstance(bias, Tensor) else None


class JointLinear(nn.Linear):
    """One projection that holds gates and keys, in this order, run as two, so that hooks see each (Phi 3, GLM)."""

    halves: tuple[Half, Half]

    @classmethod
    def around(cls, joint: nn.Linear) -> JointLinear:
        """The same projection with the same parameters."""
        made = cls(joint.in_features, joint.out_features, joint.bias is not None, device="meta")
        made.weight, made.bias = joint.weight, joint.bias
        made.halves = (Half(made, 0), Half(made, 1))
        return made.train(joint.training)

    def forward(self, input: Float[Tensor, "*n d_in"]) -> Float[Tensor, "*n d_out"]:
        return torch.cat([half(input) for half in self.halves], dim=-1)


class Half(nn.Module):
    """The gates (0) or the keys (1) of a joint projection. Its weights are views: what is written changes the whole."""

    def __init__(self, whole: JointLinear, which: int) -> None:
        super().__init__()
        self.held, self.which = (whole,), which  # in a tuple, so that torch does not take it for a part of this one

    @property
    def weight(self) -> Float[Tensor, "d_out d_in"]:
        return self.held[0].weight.chunk(2)[self.which]

    @property
    def bias(self) -> Float[Tensor, " d_out"] | None:
        bias = self.held[0].bias
        return None if bias is None else bias.chunk(2)[self.which]

    def forward(self, x: Float[Tensor, "*n d_in"]) -> Float[Tensor, "*n d_out"]:
        return nn.functional.linear(x, self.weight, self.bias)


@dataclass(frozen=True)
class FFN:
    """The key-value memory view of one layer (Geva et al. 2021, eq. 2; gated: Shazeer 2020).

    Classic: FFN(x) = Σᵢ act(kᵢ·x + bᵢ)·vᵢ + b_out. Gated: FFN(x) = Σᵢ act(gᵢ·x)·(kᵢ·x)·vᵢ, with biases where there are
    any: a neuron has two keys, the gate gᵢ that decides whether it fires and the key kᵢ that the strength is linear in.
    Its pre-activation is what the activation takes: kᵢ·x + bᵢ, or gᵢ·x.

    Every tensor is a view of the live parameter: what is written into it changes the model. Of a mixture of experts
    that is so of the values; its keys and gates are copies here, and live in ``experts``.
    """

    layer: int
    project_in: nn.Module
    project_out: nn.Module
    activation: str
    project_gate: nn.Module | None = None

    @property
    def gated(self) -> bool:
        """Whether neurons have gates beside their keys."""
        return self.project_gate is not None

    @property
    def keys(self) -> Float[Tensor, "d_mlp d_model"]:
        """Row i is neuron i's key: what its input is compared with (in a gated FFN the linear one, "up")."""
        return oriented(self.project_in).T

    @property
    def gates(self) -> Float[Tensor, "d_mlp d_model"] | None:
        """The gate keys of a gated FFN, one row a neuron; None for a classic one."""
        return None if self.project_gate is None else oriented(self.project_gate).T

    @property
    def key_bias(self) -> Float[Tensor, " d_mlp"] | None:
        return bias_of(self.project_in)

    @property
    def gate_bias(self) -> Float[Tensor, " d_mlp"] | None:
        return None if self.project_gate is None else bias_of(self.project_gate)

    @property
    def activated(self) -> Float[Tensor, "d_mlp d_model"]:
        """The keys whose products go through the activation: the gates of a gated FFN, else the keys."""
        return self.keys if self.gates is None else self.gates

    @property
    def activated_bias(self) -> Float[Tensor, " d_mlp"] | None:
        """Their bias."""
        return self.gate_bias if self.gated else self.key_bias

    @property
    def values(self) -> Float[Tensor, "d_mlp d_model"]:
        """Row i is neuron i's value: what it writes into the residual stream, times its coefficient."""
        return oriented(self.project_out)

    @property
    def value_bias(self) -> Float[Tensor, " d_model"] | None:
        return bias_of(self.project_out)

    @property
    def mixture(self) -> Mixture | None:
        """What holds the experts whose neurons these are; None in a dense layer."""
        return self.project_in.mixture if isinstance(self.project_in, ExpertProjection) else None

    @property
    def experts(self) -> tuple[Expert, ...]:
        """The experts of a layer that has some, the shared ones last as one; their tensors are live."""
        return () if self.mixture is None else self.mixture.views

    @property
    def expert_sizes(self) -> ExpertSizes | None:
        """How many experts there are, and of how many neurons; None in a dense layer."""
        return None if self.mixture is None else self.mixture.sizes

    @property
    def d_mlp(self) -> int:
        return int(oriented(self.project_out).shape[0])

    @property
    def d_model(self) -> int:
        return int(oriented(self.project_out).shape[1])

    def __repr__(self) -> str:
        size = f"d_mlp={self.d_mlp}, d_model={self.d_model}"
        return f"FFN(layer={self.layer}, {size}, activation={self.activation!r}{', gated' * self.gated})"


# Where the parts of a model are: read off a Hugging Face model or a TransformerBridge once, and checked.

ENDS = ("embed", "pos_embed", "ln_final", "unembed")
LAYER_PARTS = ("ln1", "ln2", "ln1_post", "ln2_post", "attn", "in", "gate", "out")


@dataclass(frozen=True)
class LayerModules:
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
    blocks: tuple[LayerModules, ...]
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

    def norm(self, module: nn.Module | None, width: int) -> NormMap | None:
        """A norm of this model as it is now, or None for None."""
        if module is None:
            return None
        device = next(inner(self.unembedding).parameters()).device
        return NormMap.of(inner(module), self.architecture.norm_kind, width, device)

    def through(self, module: nn.Module | None, written: Float[Tensor, "*n d_model"]) -> Float[Tensor, "*n d_model"]:
        """What attention or FFN adds to the residual stream: its output through its post norm, scaled."""
        found: Tensor = written if module is None else module(written)
        return found if self.write_scale == 1.0 else found * self.write_scale


def inner(module: nn.Module) -> Any:
    """The Hugging Face module behind a bridge component."""
    return getattr(module, "original_component", None) or module


def decoder_of(network: Any) -> Any:
    """A Hugging Face model without its unembedding: its base model, for which Llama 4 takes itself."""
    if network.base_model is not network:
        return network.base_model
    table = network.get_input_embeddings()
    return next(child for child in network.children() if any(module is table for module in child.modules()))


Parts = Mapping[str, nn.Module]
"""Modules by TransformerLens' names for them, whoever holds them."""


def find_parts(root: nn.Module, paths: Paths, names: Iterable[str]) -> dict[str, nn.Module]:
    """The modules of these names; those that are not there are left out."""
    found = {name: at_path(root, paths[name]) for name in names if name in paths}
    return {name: module for name, module in found.items() if module is not None}


def find_layer(layer: nn.Module, paths: Paths, described: Architecture | None) -> dict[str, nn.Module]:
    """The parts of a layer, which is ``whole``, and what holds its FFN, ``mlp``.

    Of a ``described`` Hugging Face model a joint projection of gates and keys begins to run as two, and a block of
    experts as one FFN.
    """
    path, joint = paths["out"].rpartition(".")[0], None if described is None else described.joint
    experts = None if described is None else described.experts
    mlp = at_path(layer, path) if experts is None else find_mixture(layer, path, experts)
    parts = {"whole": layer, **({} if mlp is None else {"mlp": mlp}), **find_parts(layer, paths, LAYER_PARTS)}
    if joint is not None and isinstance(whole := getattr(mlp, joint, None), nn.Linear):
        if not isinstance(whole, JointLinear):
            whole = JointLinear.around(whole)
            setattr(mlp, joint, whole)
        parts["gate"], parts["in"] = whole.halves
    if isinstance(mlp, Mixture):
        parts["gate"], parts["in"], parts["out"] = mlp.projections
    return parts


def at_path(root: nn.Module, path: str) -> Any:
    """The module at a path, or at the first of several; None where there is none."""
    for one in path.split("|"):
        found: nn.Module | None = root
        for name in one.split(".") if one else ():
            found = None if found is None else found._modules.get(name)  # not what a bridge hands on to another module
        if found is not None:
            return found
    return None


def read_layout(network: Any, name: str, bridge: Any = None) -> Layout:
    """The layout of a Hugging Face model, by a bridge around it or by itself, if its architecture is described.

    Raises UnsupportedModelError, saying what is missing, if it is not one we can read.
    """
    config = network.config
    kind = type(network).__name__
    described = DESCRIBED.get(kind)
    paths = BRIDGE_PATHS if described is None else described.paths
    if bridge is None:
        root, who = network, f"{name} ({kind})"
        ends = {"embed": network.get_input_embeddings(), "unembed": network.get_output_embeddings()}
        ends = {end: module for end, module in ends.items() if module is not None}
    else:
        root, who, ends = bridge, f"{name} ({getattr(bridge.cfg, 'architecture', '') or kind})", {}
        paths = {part: BRIDGE_PATHS[part] for part in {**paths, "embed": "", "unembed": ""}}
    for refusal in described.refused if described is not None else ():
        if refusal.applies(config):
            raise UnsupportedModelError(f"{who}: {refusal.reason}")
    ends |= find_parts(root, paths, ENDS)
    check_decoder(config, ends, who, "causal" if bridge is None else bridge.cfg.attention_dir)
    ours = described if bridge is None else None
    layers = [find_layer(layer, paths, ours) for layer in at_path(root, paths["blocks"]) or ()]
    check_layers(layers, None if described is None else described.paths, who)
    final_norm = ends["ln_final"]
    norm_kind = described.norm_kind if described is not None else kind_of(inner(final_norm))
    if norm_kind is None:
        raise UnsupportedModelError(f"{who} has {type(inner(final_norm)).__name__} as its final norm")
    # TransformerLens' name for a joint projection:
    found = described or derive_architecture(norm_kind, config, getattr(layers[0]["mlp"], "fused_attr", None))
    scale = read_number(config, found.logit_scale) or 1.0
    layout = Layout(
        embedding=ends["embed"],
        position_embedding=ends.get("pos_embed"),
        blocks=tuple(read_layer(parts, i, found, who) for i, parts in enumerate(layers)),
        final_norm=final_norm,
        unembedding=ends["unembed"],
        body=decoder_of(network),
        architecture=found,
        described=described is not None,
        write_scale=read_number(config, found.write_scale) or 1.0,
        logit_scale=scale / (read_number(config, found.logit_divisor) or 1.0),
        soft_cap=read_number(config, found.soft_cap),
    )
    check_layout(layout, who)
    return layout


def read_number(config: Any, field: str) -> float | None:
    """A number of a config; None where it has none or the field is not named."""
    found = setting(config, field)
    return None if found is None else float(found)


def check_decoder(config: Any, ends: Parts, who: str, attention: str) -> None:
    """Refuse what is no decoder-only language model; ``attention`` is "causal" if that looks back only."""
    if getattr(config, "is_encoder_decoder", False):
        raise UnsupportedModelError(f"{who} is an encoder-decoder model; ffnmem reads decoder-only language models")
    if "unembed" not in ends or attention != "causal":
        raise UnsupportedModelError(f"{who} is not a decoder-only language model")
    if getattr(config, "text_config", None) is not None and getattr(config, "vision_config", None) is not None:
        raise UnsupportedModelError(f"{who} is multimodal; ffnmem reads language models: load its text model by itself")
    if "ln_final" not in ends:
        raise UnsupportedModelError(f"{who} has no final norm, which attribution needs")


READ = [found.title for found in DESCRIBED.values() if found.experts is not None]
"""Mixtures of experts that are read."""


def check_layers(layers: Sequence[Parts], described: Paths | None, who: str) -> None:
    """Refuse what is no FFN of keys and values in every layer, or a layer that lacks a part of the others."""
    if not layers:
        raise UnsupportedModelError(f"{who} has no layers")
    for layer, parts in enumerate(layers):  # of all layers first: those before may be dense
        if not isinstance(parts.get("mlp"), Mixture) and has_experts(parts.get("mlp")):
            raise UnsupportedModelError(
                f"{who} is a mixture of experts in layer {layer} that ffnmem does not read: it reads {listed(READ, 20)}"
            )
    due = (set(layers[0]) if described is None else {*described} & {*LAYER_PARTS} - {"ln2"}) | {"attn"}
    for layer, parts in enumerate(layers):
        if not {"in", "out"} <= set(parts):
            raise UnsupportedModelError(
                f"{who} has no feed-forward network (MLP) with two projections in layer {layer}"
            )
        if getattr(parts["mlp"], "_use_processed_weights", False) and "gate" in parts:
            raise UnsupportedModelError(
                f"{who} has gated FFNs in compatibility mode, which then run past their projections: hand it over "
                "before enable_compatibility_mode() or process_weights()"
            )
        if wrong := due - set(parts) if described is not None else due ^ set(parts):
            raise UnsupportedModelError(
                f"{who}: layer {layer} does not have the parts of the others ({', '.join(sorted(wrong))})"
            )


def has_experts(mlp: nn.Module | None) -> bool:
    """Whether an FFN holds several and a router, by the classes of its modules; those that wrap it are not asked."""
    names = [] if mlp is None else [type(module).__name__ for module in inner(mlp).modules()]
    return any(part in name for name in names for part in ("Router", "Experts"))


def read_layer(parts: Parts, layer: int, found: Architecture, who: str) -> LayerModules:
    if found.joint is not None and not isinstance(parts["in"], Half):
        check_joint(inner(parts["mlp"]), found.joint, inner(parts["in"]), layer, who)
    return LayerModules(
        whole=parts["whole"],
        attention=parts["attn"],
        attention_out=at_path(parts["attn"], found.attention_out),
        attention_norm=parts.get("ln1"),
        attention_post=parts.get("ln1_post"),
        norm=parts.get("ln2", parts.get("ln1")),
        post=parts.get("ln2_post"),
        project_in=parts["in"],
        project_gate=parts.get("gate"),
        project_out=parts["out"],
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
    width = oriented(inner(layout.blocks[0].project_out)).shape[1]
    kind = layout.architecture.norm_kind
    check_norm(layout.final_norm, "final", kind, width, who)
    for i, block in enumerate(layout.blocks):
        for norm in (block.attention_norm, block.norm, block.attention_post, block.post):
            if norm is not None:
                check_norm(norm, f"layer {i}", kind, width, who)
    wide = inner(layout.embedding).weight.shape[1]
    if wide != width:
        raise UnsupportedModelError(f"{who} projects its embeddings ({wide} to {width})")


def check_norm(norm: nn.Module, where: str, kind: NormKind, width: int, who: str) -> None:
    module = inner(norm)
    own = width_of(module)
    if (own is not None and own != width) or not computes(module, kind, width):
        raise UnsupportedModelError(
            f"{who} has {type(module).__name__} as its {where} norm, which is no {kind.name} of {width} numbers"
        )


def read_activation(config: Any, found: Architecture, who: str) -> str:
    """The activation's name as the model's own config states it; TransformerLens guesses ReLU where it does not."""
    if found.experts is not None and found.experts.clamped:
        return clamped_swish(config.swiglu_alpha, config.swiglu_limit).name
    if found.activation.startswith("= "):
        return found.activation.removeprefix("= ")
    stated = getattr(config, found.activation, None) if found.activation else None
    if not isinstance(stated, str):
        raise UnsupportedModelError(f"{who} does not state its activation in its config")
    return stated


QUANTISING = ("torch.ao.nn.", "torchao.", "optimum.quanto.", "quanto.")  # modules of these hold no plain weights


def check_in_memory(model: nn.Module, name: str) -> None:
    """Raise UnsupportedModelError, naming the first, where weights lie elsewhere than in memory."""
    if away := [path for path, parameter in model.named_parameters() if parameter.is_meta]:
        raise UnsupportedModelError(
            f"{name} ({type(model).__name__}): {away[0]} is not in memory (on the device meta, or offloaded by "
            "accelerate): load the whole model onto one device, without device_map"
        )


def check_plain(model: nn.Module, name: str) -> None:
    """Raise UnsupportedModelError where the weights are not all that a model computes with: quantised, or adapted."""
    who = f"{name} ({type(model).__name__})"
    packed = [
        *(f"{path}, {str(p.dtype)[6:]}" for path, p in model.named_parameters() if not p.is_floating_point()),
        # Of torchao and quanto, whose numbers look like any.
        *(f"{path}, {type(p.data).__name__}" for path, p in model.named_parameters() if type(p.data) is not Tensor),
        *(
            f"{path}, {type(m).__name__}"
            for path, m in model.named_modules()
            if type(m).__module__.startswith(QUANTISING)
        ),
    ]
    check_unquantised(getattr(model, "config", None), who, packed)
    if compiled := [path for path, module in model.named_modules() if hasattr(module, "_orig_mod")]:
        raise UnsupportedModelError(f"{who}: {compiled[0]} is compiled: load the model as it was before torch.compile")
    if any(cls.__module__.startswith("peft.") for module in model.modules() for cls in type(module).__mro__):
        # One that was injected into a model of Hugging Face cannot be merged there.
        merging = "model.merge_and_unload()" if hasattr(model, "merge_and_unload") else MERGING
        raise UnsupportedModelError(f"{who} holds a PEFT adapter: merge it into the weights first, by {merging}")


def check_weights(model: nn.Module, name: str) -> None:
    """Raise ModelError naming the first parameter with a NaN or an infinity."""
    for parameter_name, parameter in model.named_parameters():
        if parameter.is_floating_point() and not bool(parameter.isfinite().all()):
            clean = parameter_name.replace("_original_component.", "")
            raise ModelError(f"{name}: parameter {clean} holds NaN or infinite values; the checkpoint is broken")


def bound_masks(attention: nn.Module, leaves_out: bool) -> None:
    """Let attention of a float64 model take its softmax in float32, as many do, without a pad becoming NaN.

    The lowest float64 would become −∞ there, and a pad that may look at nothing NaN: additive masks are kept within
    float32, and where a mask says what to leave out (``leaves_out``), a pad may look at everything.
    """

    def bounded(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        mask = kwargs.get("attention_mask")
        if mask is None or not (mask.is_floating_point() or leaves_out):
            return args, kwargs
        if mask.is_floating_point():
            return args, {**kwargs, "attention_mask": mask.clamp(min=torch.finfo(torch.float32).min)}
        return args, {**kwargs, "attention_mask": mask & ~mask.all(-1, keepdim=True)}

    attention.register_forward_pre_hook(bounded, with_kwargs=True)


def turn_rows_apart(network: nn.Module) -> int | None:
    """Have LongRoPE choose the frequencies of each row by the row's own last position, as of a prompt alone.

    Hugging Face chooses by the largest position of the batch, so that a row's numbers would depend on its neighbours.

    Returns: The longest text that is read with the factors of short ones; None where positions are not LongRoPE's.
    """
    lengths = []
    for module in network.modules():
        kinds = getattr(module, "rope_type", None)  # by kind of layer where these differ
        by_kind = kinds if isinstance(kinds, dict) else {None: kinds}
        for layer_type in [key for key, kind in by_kind.items() if kind == "longrope"]:
            config: Any = module.config
            own = config.rope_parameters if layer_type is None else config.rope_parameters[layer_type]
            lengths.append(int(own["original_max_position_embeddings"]))
            if turned_by_row not in module._forward_hooks.values():  # a model may be loaded again
                module.register_forward_hook(turned_by_row, with_kwargs=True)
    return min(lengths, default=None)


def turned_by_row(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], turned: Any) -> Any:
    """The cosines and sines of each row by itself, where rows end at different positions."""
    given = dict(zip(("x", "position_ids", "layer_type"), args, strict=False)) | kwargs
    ends = given["position_ids"].amax(-1)
    if bool((ends == ends[0]).all()):
        return turned
    rows = [module.forward(**given | {"position_ids": row}) for row in given["position_ids"].split(1)]
    return tuple(torch.cat(part) for part in zip(*rows, strict=True))
