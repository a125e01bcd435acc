"""``anatomy``: where the parameters and the arithmetic of a model are, counted parameter by parameter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import pandas as pd
import torch
from torch import nn

from .._version import __version__
from ..core.errors import InputError, ModelError, UnsupportedModelError, check_count, counted, quoted
from ..core.foreign import foreign
from ..core.provenance import Provenance
from ..core.sheets import Column, Sheet, Table, Words
from ..core.types import checked
from ..ffn.matched_width import Parity, parity, parity_width
from ..show.result import Result
from .architectures import DESCRIBED, Architecture
from .configs import CONTEXT, Hyperparameters, find_description, first, quiet, read_config
from .layout import inner, read_activation
from .model import Model

# `Anatomy`: where the parameters and the arithmetic of a model are, and what its FFNs are as memories.

MULTIPLE = 256
"""Widths of parity are multiples of it, as Llama's are."""
USUAL_CONTEXT = 1024
COLUMNS = {
    "layer_parameters": Column("parameters in a layer", "count", of="layer_parameters"),
    "parameters": Column("parameters", "count"),
    "share": Column("share", "percent"),
    "layer_flops": Column("FLOPs in a layer", "count", of="layer_flops"),
    "flops": Column("FLOPs a token", "count", of="flops"),
    "flops_share": Column("share", "percent", of="flops_share"),
}


@checked
@dataclass(frozen=True, eq=False, repr=False)
class Anatomy(Result):
    """Where a model's parameters are, and its FFNs as memories. Made by :func:`ffnmem.models.anatomy`.

    FLOPs are those of matrix products in one forward pass for one token, 2 for a multiply-add, as in Kaplan et al.
    2020 (2001.08361), §2.1: lookups, biases, norms, activations and softmax count 0.

    Attributes:
        name: of the model. architecture: what people call its kind.
        counted: "weights": in a model that is there; "config": in one built from its config, without weights.
        components: one row a component: ``component``, ``layer_parameters`` and ``layer_flops`` (in one layer),
            ``parameters`` and ``flops`` (in all), ``share`` (of all parameters), ``flops_share``. A matrix that two
            components share counts once.
        n_layers, d_model, d_vocab, n_ctx: sizes; ``n_ctx`` is None where the config names none.
        widths: how many neurons each layer has; d_mlp: the widest of them.
        context: positions that the token of the FLOPs attends over, itself among them, in every layer.
        gated: whether the FFNs have gates. activation: as the config calls it. norm: "LayerNorm" or "RMSNorm".
        biases: the components that have any. tied: whether the unembedding is the token embedding.
        matrices: of the first layer, each as vectors of ``d_model`` numbers, attention first. Columns: ``part``
            ("attention" or "FFN"), ``name``, ``rows``, ``d_model``, ``numbers``.
        provenance: of a loaded model, else None.
    """

    main = "components"
    in_json = (
        "name n_layers context parameters flops ffn_share ffn_share_of_layers components architecture counted d_model "
        "d_mlp d_vocab n_ctx gated activation norm tied biases memory parity matrices"
    )

    name: str
    architecture: str
    counted: Literal["weights", "config"]
    components: pd.DataFrame
    n_layers: int
    context: int
    d_model: int
    d_mlp: int
    widths: tuple[int, ...]
    d_vocab: int
    n_ctx: int | None
    gated: bool
    activation: str
    norm: str
    biases: tuple[str, ...]
    tied: bool
    matrices: pd.DataFrame
    provenance: Provenance | None = None

    def total(self, column: str, component: str | None = None) -> int:
        """The sum of a column of ``components``, or of one component's."""
        frame = self.components if component is None else self.components.query("component == @component")
        return int(frame[column].sum())

    @property
    def parameters(self) -> int:
        """All parameters; a matrix used twice counts once."""
        return self.total("parameters")

    @property
    def flops(self) -> int:
        """All FLOPs for one token."""
        return self.total("flops")

    @property
    def ffn_share(self) -> float:
        """The FFNs' share of all parameters."""
        return self.total("parameters", "FFN") / self.parameters

    @property
    def ffn_share_of_layers(self) -> float:
        """The FFNs' share of the parameters in layers: 2/3 but for biases and norms where d_mlp = 4·d_model."""
        return self.total("layer_parameters", "FFN") / self.total("layer_parameters")

    @property
    def neurons(self) -> int:
        """Memories of the whole model: neurons of all layers."""
        return sum(self.widths)

    @property
    def vectors(self) -> tuple[str, ...]:
        """What a neuron has of ``d_model`` numbers each."""
        return ("key", "gate", "value") if self.gated else ("key", "value")

    @property
    def expansion(self) -> float:
        """d_mlp / d_model."""
        return self.d_mlp / self.d_model

    @property
    def parity(self) -> Parity:
        """The FFN beside one of the other kind with about as many weights, the gated one never the smaller.

        Its width is a multiple of 256: a gated one's rounded up, a classic one's rounded down; where less than 256
        would be left, to a whole number.
        """
        if not self.gated:
            width = parity_width(self.d_model, MULTIPLE, self.d_mlp)
            return parity(self.d_model, width, d_mlp=self.d_mlp)
        classic = 3 * self.d_mlp // 2
        return parity(self.d_model, self.d_mlp, d_mlp=classic // MULTIPLE * MULTIPLE or max(classic, 1))

    @property
    def memory(self) -> dict[str, Any]:
        """How many neurons there are, of which vectors and weights, and d_mlp over d_model."""
        return {
            "neurons": self.neurons,
            "vectors": self.vectors,
            "weights_per_neuron": len(self.vectors) * self.d_model,
            "expansion": self.expansion,
        }

    def to_dict(self, top: int | None = None) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        origin = {"provenance": {"model": self.name, "ffnmem": __version__}} if self.provenance is None else {}
        return super().to_dict(top) | origin

    def traits(self) -> dict[str, str]:
        """The memories of the model and its other traits, a line each by its name."""
        vectors = ", ".join(self.vectors[:-1]) + " and " + self.vectors[-1]
        return {
            "memories": f"{self.layers_words()} = {self.neurons:,}",
            "a memory": f"{vectors}, {self.d_model:,} numbers each: {len(self.vectors) * self.d_model:,} weights",
            "FFN": f"{'gated' if self.gated else 'classic'}, {self.d_mlp:,} neurons for d_model {self.d_model:,}: "
            f"{self.expansion:.3g}×",
            "its share": f"{self.ffn_share:.1%} of all parameters, {self.ffn_share_of_layers:.1%} of those in layers",
            "parity": self.parity_words(),
            "activation": f"{self.activation}{', of the gate' * self.gated}",
            "norm": self.norm,
            "biases": ", ".join(self.biases) or "none",
            "unembedding": "the token embedding (tied)" if self.tied else "a matrix of its own",
            "counted": "in the loaded model"
            if self.counted == "weights"
            else "in a model built from its config, without weights",
        }

    def layers_words(self) -> str:
        """How many layers there are of how many neurons: ``12 layers × 3,072 neurons``."""
        by_width = [(counted(self.widths.count(width), "layer"), width) for width in dict.fromkeys(self.widths)]
        return " + ".join(f"{layers} × {width:,} neurons" for layers, width in by_width)

    def parity_words(self) -> str:
        """The other kind of FFN with as many weights."""
        found = self.parity
        other, exact, width = ("classic", 1.5, found.d_mlp) if self.gated else ("gated", 2 / 3, found.h)
        words = f"a {other} FFN with as many weights has {exact * self.d_mlp:,.0f} neurons"
        if width == round(exact * self.d_mlp):
            return words
        by = f", a multiple of {MULTIPLE}" if width % MULTIPLE == 0 else ""
        ending = f"this one has {found.relative:+.1%}" if self.gated else f"it has {found.relative:+.1%}"
        return f"{words}; with {width:,}{by}, {ending}"

    def summary(self) -> str:
        return (
            f"{self.name!r}: {self.architecture}, {self.parameters:,} parameters, {self.neurons:,} "
            f"{'gated' if self.gated else 'classic'} neurons, FFN {self.ffn_share:.1%} of all and "
            f"{self.ffn_share_of_layers:.1%} of the layers"
        )

    def sheet(self) -> Sheet:
        """Parameters and FLOPs by component, and what the FFNs are as memories."""
        in_layers = replace(self.table(*COLUMNS), title="in a layer and in all", folded=True)
        return Sheet.of(
            self.table("parameters", "share", "flops", "flops_share"),
            in_layers,
            self.traits(),
            Words.of(f"config of {self.name} · ffnmem {__version__}", "soft"),
            title=f"{self.name}: {self.architecture}, {counted(self.n_layers, 'layer')}, d_model {self.d_model:,}, "
            f"vocabulary {self.d_vocab:,}",
        )

    def table(self, *columns: str) -> Table:
        """Some columns of the components, and their sums."""
        total = {name: 1.0 if "share" in name else self.total(name) for name in columns}
        return Table.of(
            [*self.components.to_dict("records"), {"component": "all", **total}],
            "component",
            *(COLUMNS[name] for name in columns),
            caption=f"FLOPs of a token that attends over {counted(self.context, 'position')}",
            strong=(len(self.components),),
        )


# Every parameter of a model and the component that it belongs to: in a loaded model, or in one built without memory.

COMPONENTS = ("token embedding", "position embedding", "attention", "FFN", "router", "norms", "unembedding", "other")
COPIES = (("qkv", "q"), ("gate_up_proj", "in"))
"""A joint projection that the bridge has split stays beside its parts as a copy: its name, and that of one part."""


def build_empty(config: Any, name: str) -> Any:
    """A Hugging Face decoder on the device "meta": all shapes, no numbers and no memory.

    Raises ModelError, naming ``name``, where the config's sizes fit no model.
    """
    import transformers

    what = f"no model can be built from the config of {name}"
    with quiet(), torch.device("meta"), foreign(ModelError, what):
        return transformers.AutoModelForCausalLM.from_config(config, trust_remote_code=False)


@dataclass(frozen=True)
class ParameterList:
    """Every parameter of a decoder, once.

    Attributes:
        frame: one row a parameter: ``component``, ``layer`` (-1 outside the layers), ``numbers``, ``matrix`` (those of
            matrices that are not looked up in), ``multiplied`` (how many of these a token is multiplied with: of
            experts those that it is routed to) and ``bias``.
        n_layers: layers. d_model: width of the residual stream. d_vocab: tokens.
        tied: whether unembedding and token embedding are one matrix.
    """

    frame: pd.DataFrame
    n_layers: int
    d_model: int
    d_vocab: int
    tied: bool

    @classmethod
    def of(cls, model: Any) -> ParameterList:
        """The parameters of a Hugging Face model, each with the component that its name speaks of.

        Raises UnsupportedModelError for a model without unembedding.
        """
        blocks = list(next(module for module in model.modules() if isinstance(module, nn.ModuleList)))
        embedding, unembedding = model.get_input_embeddings(), model.get_output_embeddings()
        if unembedding is None:
            raise UnsupportedModelError(f"{type(model).__name__} has no unembedding, so it is no language model")
        table = inner(embedding).weight
        known = {id(p): "unembedding" for p in unembedding.parameters()} | {id(table): "token embedding"}
        layers = {id(p): layer for layer, block in enumerate(blocks) for p in block.parameters()}
        lookups = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
        routed = int(getattr(getattr(model, "config", None), "num_experts_per_tok", 1))
        biases = {id(p) for path, p in model.named_parameters() if path.endswith("bias")}
        matrices = {id(p): p.numel() for p in model.parameters() if p.ndim > 1 and id(p) not in lookups | biases}
        rows = [
            {
                "component": known.get(id(parameter)) or component_by_name(path),
                "layer": layers.get(id(parameter), -1),
                "numbers": parameter.numel(),
                "matrix": matrices.get(id(parameter), 0),
                "multiplied": matrices.get(id(parameter), 0)
                // (parameter.shape[0] if parameter.ndim == 3 else 1)
                * (routed if parameter.ndim == 3 else 1),
                "bias": path[-1].endswith("bias"),
            }
            for path, parameter in name_parameters(model)
        ]
        tied = inner(unembedding).weight is table
        if tied:
            rows.append(
                {
                    "component": "unembedding",
                    "layer": -1,
                    "numbers": 0,
                    "matrix": 0,
                    "multiplied": table.numel(),
                    "bias": False,
                }
            )
        d_model = int(getattr(getattr(model, "config", None), "hidden_size", table.shape[1]))
        return cls(pd.DataFrame(rows), len(blocks), d_model, int(table.shape[0]), tied)

    def matrices(self, component: str) -> tuple[int, ...]:
        """The numbers in a component's matrices, by layer."""
        found = self.frame.query("component == @component").groupby("layer")["matrix"].sum()
        return tuple(found.reindex(range(self.n_layers), fill_value=0).tolist())

    def components(self, context: int, queries: int) -> pd.DataFrame:
        """Parameters and FLOPs by component, see :class:`Anatomy`; layers of unequal size count with their mean, what
        it leaves over stands outside.

        Args:
            context: positions that a token attends over. queries: width of all heads together.
        """
        whole, inside = (
            part.groupby("component")[["numbers", "multiplied"]].sum().reindex(COMPONENTS, fill_value=0)
            for part in (self.frame, self.frame[self.frame["layer"] >= 0])
        )
        scores_and_mix = pd.Series(COMPONENTS, index=COMPONENTS).eq("attention") * (4 * queries * context)
        parameters, flops = whole["numbers"], 2 * whole["multiplied"] + self.n_layers * scores_and_mix
        found = pd.DataFrame(
            {
                "component": COMPONENTS,
                "layer_parameters": inside["numbers"] // self.n_layers,
                "parameters": parameters,
                "share": parameters / parameters.sum(),
                "layer_flops": 2 * inside["multiplied"] // self.n_layers + scores_and_mix,
                "flops": flops,
                "flops_share": flops / flops.sum(),
            }
        )
        return found[~found["component"].isin(["router", "other"]) | found["parameters"].gt(0)].reset_index(drop=True)


def name_parameters(model: nn.Module) -> list[tuple[list[str], nn.Parameter]]:
    """The path and the parameter of each, as Hugging Face has them, without the bridge's copies."""
    found = {name.replace("_original_component.", ""): p for name, p in model.named_parameters()}
    paths = [(name.split("."), parameter) for name, parameter in found.items()]
    return [
        (path, parameter)
        for path, parameter in paths
        if not any(path[-2:-1] == [joint] and ".".join([*path[:-2], part, path[-1]]) in found for joint, part in COPIES)
    ]


def component_by_name(path: Sequence[str]) -> str:
    """The component that a parameter's path speaks of."""
    if any("norm" in part or part.startswith("ln_") for part in path):
        return "norms"
    if any("attn" in part or "attention" in part for part in path):
        return "attention"
    if path[-2:-1] == ["router"] or path[-2:] in (["gate", "weight"], ["shared_expert_gate", "weight"]):
        return "router"
    if any(part in ("mlp", "feed_forward", "ffn", "fc1", "fc2") for part in path):
        return "FFN"
    if any(part == "wpe" or "position" in part for part in path):
        return "position embedding"
    if "project_in" in path:
        return "token embedding"
    return "unembedding" if "project_out" in path else "other"


# `anatomy`: a model, a name or a config becomes an Anatomy; of a name nothing but the config is read.


@checked
def anatomy(source: Any, *, context: int | None = None) -> Anatomy:
    """Where the parameters and the arithmetic of a model are, and what its FFNs are as memories.

    Args:
        source: a :class:`Model`; a Hugging Face model; a name as :func:`load` takes it (an embedded model, a folder, of
            which ``config.json`` is enough, a Hugging Face id); a Hugging Face config, or a dict as in
            ``config.json``. Of a name or config nothing but the config is read, so that its size does not matter: the
            parameters are counted in a model without weights.
        context: positions that a token attends over, itself among them, for the FLOPs, as if every layer saw them all
            (windows of local attention are not taken off); default 1024, or the model's whole context where that is
            shorter.

    Returns:
        An :class:`Anatomy`, every parameter counted once.

    Raises:
        ModelNotFoundError: no such name, folder or hub id. ModelError: a config that cannot be read.
        UnsupportedModelError: a mixture of experts, an encoder-decoder, or an architecture that is not described.
        InputError: a context below 1 or beyond the model's, or no source.

    Source: the accounting is that of Kaplan et al. 2020 (2001.08361), table 1, with every bias and norm.
    """
    if isinstance(source, Model):
        name, config, found = source.name, source.hf_model.config, source.layout.architecture
        activation = source.ffn[0].activation
    else:
        name, config = read_config(getattr(source, "config", source) if isinstance(source, nn.Module) else source)
        found = checked_architecture(name, config)
        activation = read_activation(config, found, name)
    longest = first(config, CONTEXT, None)
    n_ctx = longest if isinstance(longest, int) else None
    seen = checked_context(context, n_ctx, name)
    if isinstance(source, Model):
        listed, numbers = ParameterList.of(source.hf_model), source.numbers
    else:
        network = source if isinstance(source, nn.Module) else build_empty(config, name)
        listed, numbers = ParameterList.of(network), Hyperparameters.of_network(network, found)
    gated = source.gated if isinstance(source, Model) else "gate" in found.paths
    queries, d_model = int(numbers.n_heads * numbers.d_head), listed.d_model
    # Of GPT-OSS each expert's bias is a memory, too.
    more = config.num_local_experts if found.experts is not None and found.experts.clamped else 0
    widths = tuple(numbers // ((3 if gated else 2) * d_model) + more for numbers in listed.matrices("FFN"))
    shared = listed.matrices("attention")[0] // (2 * d_model) - queries
    rows = {("attention", "Q"): queries, ("attention", "O"): queries}
    rows |= {("attention", "K"): shared, ("attention", "V"): shared}
    rows |= {("FFN", matrix): widths[0] for matrix in ("keys", "gates", "values")[:: 1 if gated else 2]}
    has_bias = set(listed.frame.query("bias")["component"])
    return Anatomy(
        name=name,
        architecture=found.title,
        counted="weights" if isinstance(source, Model | nn.Module) else "config",
        components=listed.components(seen, queries),
        n_layers=listed.n_layers,
        context=seen,
        d_model=d_model,
        d_mlp=max(widths),
        widths=widths,
        d_vocab=listed.d_vocab,
        n_ctx=n_ctx,
        gated=gated,
        activation=activation,
        norm="LayerNorm" if found.norm_kind.centred else "RMSNorm",
        biases=tuple(component for component in COMPONENTS if component in has_bias),
        tied=listed.tied,
        matrices=pd.DataFrame(
            [
                {"part": part, "name": matrix, "rows": width, "d_model": d_model, "numbers": width * d_model}
                for (part, matrix), width in rows.items()
            ]
        ),
        provenance=source.provenance(context=seen) if isinstance(source, Model) else None,
    )


def checked_context(context: int | None, longest: int | None, name: str) -> int:
    """The context to count attention at, of a model that reads ``longest`` positions."""
    if context is None:
        return min(USUAL_CONTEXT, longest or USUAL_CONTEXT)
    if longest is not None and check_count("context", context) > longest:
        raise InputError(f"context {context} is beyond the {longest} positions of {name}")
    return check_count("context", context)


def checked_architecture(name: str, config: Any) -> Architecture:
    """The description of what a config is of; raises UnsupportedModelError, with the reason, if there is none."""
    found = find_description(config)
    if found is not None:
        return found
    if "moe" in config.model_type or any(getattr(config, field, None) for field in EXPERTS):
        reason = "a mixture of experts, which has several FFNs a layer and chooses between them"
    elif getattr(config, "is_encoder_decoder", False):
        reason = "an encoder-decoder, not a decoder alone"
    elif getattr(config, "text_config", None) is not None:
        reason = "more than text: pass its text_config"
    else:
        reason = "not among the decoders read"
    read = ", ".join(dict.fromkeys(one.title for one in DESCRIBED.values()))
    raise UnsupportedModelError(f"{name}: model_type {quoted(config.model_type)} is {reason}; models read are {read}")


EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
