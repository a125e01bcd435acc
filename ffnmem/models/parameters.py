"""``anatomy``: the parameters and FLOPs of each part of a model, from its config alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pandas as pd
from torch import nn

from .._version import __version__
from ..core.errors import InputError, ModelError, UnsupportedModelError, quoted
from ..core.foreign import foreign
from ..core.types import ConfigSource, Count, checked
from ..show.result import Result
from .architectures import DESCRIBED
from .configs import CONTEXT, Hyperparameters, find_description, first, quiet, read_config
from .hooks import on_meta
from .layout import inner
from .model import Model

USUAL_CONTEXT = 1024
COMPONENTS = ("token embedding", "position embedding", "attention", "FFN", "router", "norms", "unembedding", "other")


@checked
@dataclass(frozen=True, eq=False, repr=False)
class Anatomy(Result):
    """The parameters and FLOPs of each part of a model. Made by :func:`ffnmem.models.anatomy`.

    FLOPs are those of matrix products in one forward pass for one token, 2 for a multiply-add, as in Kaplan et al.
    2020 (2001.08361), §2.1: lookups, biases, norms, activations and softmax count 0.

    Attributes:
        name: of the model. architecture: what people call its kind.
        components: parameters and the FLOPs of a token, by component: ``component``, ``layer_parameters`` and
            ``layer_flops`` (in one layer), ``parameters`` and ``flops`` (in all), ``share`` (of all parameters),
            ``flops_share``. A matrix that two components share counts once.
        widths: how many neurons each layer has. d_model, d_vocab: sizes. gated: whether the FFNs have gates.
        context: positions that the token of the FLOPs attends over, itself among them, in every layer.
        parameters, flops: of all components.
    """

    heading = "architecture n_layers d_model d_vocab neurons parameters flops"
    tables: ClassVar = {"components": "component parameters share flops flops_share"}

    name: str
    architecture: str
    components: pd.DataFrame
    widths: tuple[int, ...]
    d_model: int
    d_vocab: int
    gated: bool
    context: int
    parameters: int
    flops: int
    provenance: dict[str, Any]

    @property
    def n_layers(self) -> int:
        return len(self.widths)

    @property
    def neurons(self) -> int:
        """In all layers."""
        return sum(self.widths)

    @property
    def verdict(self) -> str:
        """What FFNs take of it."""
        ffn = self.components.set_index("component").loc["FFN"]
        return (
            f"FFNs have {ffn['share']:.1%} of the {self.parameters:,} parameters of {self.name} and take "
            f"{ffn['flops_share']:.1%} of the FLOPs of a token."
        )


@checked
def anatomy(config: ConfigSource, *, context: Count | None = None) -> Anatomy:
    """Where parameters and FLOPs are; no weights are read.

    Counts a model's parameters and the FLOPs of a token by component. Only the config is read and no weights, so that
    the largest model takes as long as the smallest. FLOPs are those of matrix products in one forward pass, two for a
    multiply-add.

    Args:
        config: atlas, a folder of which config.json is enough, or a Hugging Face id such as gpt2. In Python, also a
            Hugging Face config, a dict as in ``config.json``, or a model, for its config.
        context: positions that the token of the FLOPs attends over, itself among them, as if every layer saw them all
            (windows of local attention are not taken off). [default: 1024, or all that the model has]

    Raises:
        ModelNotFoundError: no such name, folder or hub id. ModelError: a config that cannot be read.
        UnsupportedModelError: not a decoder that is described. InputError: a context out of range, or no source.

    Source: the accounting is that of Kaplan et al. 2020 (2001.08361), table 1, with every bias and norm.

    Example:
        $ ffnmem anatomy atlas --context 128 --csv
        $ ffnmem anatomy atlas --plot anatomy.png
    """
    given = config.hf_model if isinstance(config, Model) else config
    known_as = config.name if isinstance(config, Model) else ""
    name, config = read_config(getattr(given, "config", given) if isinstance(given, nn.Module) else given)
    name = known_as or name
    found, n_ctx = find_description(config), first(config, CONTEXT, None)
    if found is None:
        known = ", ".join(dict.fromkeys(one.title for one in DESCRIBED.values()))
        hint = "pass its text_config; " if getattr(config, "text_config", None) is not None else ""
        raise UnsupportedModelError(
            f"{name}: {quoted(config.model_type)} is not among the decoders read: {hint}{known}"
        )
    longest = n_ctx if isinstance(n_ctx, int) else None
    seen = min(USUAL_CONTEXT, longest or USUAL_CONTEXT) if context is None else context
    if longest is not None and seen > longest:
        raise InputError(f"context {context} is beyond the {longest} positions of {name}")
    import transformers

    with quiet(), on_meta(), foreign(ModelError, f"no model can be built from the config of {name}"):
        empty: Any = transformers.AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    blocks = list(next(module for module in empty.modules() if isinstance(module, nn.ModuleList)))
    rows, n, numbers = list_parameters(empty, blocks), len(blocks), Hyperparameters.of_network(empty, found)
    # Layers of unequal size count with their mean; what it leaves over stands outside.
    whole, inside = (
        part.groupby("component")[["numbers", "multiplied"]].sum().reindex(COMPONENTS, fill_value=0)
        for part in (rows, rows[rows["layer"] >= 0])
    )
    mixed = pd.Series(COMPONENTS, index=COMPONENTS).eq("attention") * int(4 * numbers.n_heads * numbers.d_head * seen)
    parameters, flops = whole["numbers"], 2 * whole["multiplied"] + n * mixed
    in_layer = {"layer_parameters": inside["numbers"] // n, "layer_flops": 2 * inside["multiplied"] // n + mixed}
    shares = {"share": parameters / parameters.sum(), "flops_share": flops / flops.sum()}
    frame = pd.DataFrame({"component": COMPONENTS, "parameters": parameters, "flops": flops, **in_layer, **shares})
    frame = frame[["component", "layer_parameters", "parameters", "share", "layer_flops", "flops", "flops_share"]]
    frame = frame[~frame["component"].isin(["router", "other"]) | frame["parameters"].gt(0)].reset_index(drop=True)
    d_vocab, width = inner(empty.get_input_embeddings()).weight.shape
    gated, d_model = "gate" in found.paths, int(getattr(config, "hidden_size", width))
    ffns = rows.query("component == 'FFN'").groupby("layer")["matrix"].sum().reindex(range(n), fill_value=0)
    # Of GPT-OSS each expert's bias is a memory, too.
    more = config.num_local_experts if found.experts is not None and found.experts.clamped else 0
    widths = tuple(int(matrix) // ((3 if gated else 2) * d_model) + more for matrix in ffns)
    sums, origin = (int(parameters.sum()), int(flops.sum())), {"model": name, "context": seen, "ffnmem": __version__}
    return Anatomy(name, found.title, frame, widths, d_model, int(d_vocab), gated, seen, *sums, origin)


def list_parameters(model: Any, blocks: list[nn.Module]) -> pd.DataFrame:
    """One row a parameter of a Hugging Face decoder: ``component``, ``layer`` (-1 outside the layers), ``numbers``,
    ``matrix`` (those of matrices that are not looked up in), ``multiplied`` (how many of these a token is multiplied
    with: of experts those that it is routed to). Raises UnsupportedModelError for a model without unembedding."""
    unembedding, table = model.get_output_embeddings(), inner(model.get_input_embeddings()).weight
    if unembedding is None:
        raise UnsupportedModelError(f"{type(model).__name__} has no unembedding, so it is no language model")
    known = {id(p): "unembedding" for p in unembedding.parameters()} | {id(table): "token embedding"}
    layers = {id(p): layer for layer, block in enumerate(blocks) for p in block.parameters()}
    lookups = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    routed, rows = int(getattr(model.config, "num_experts_per_tok", 1)), []
    for name, p in model.named_parameters():
        matrix = p.numel() if p.ndim > 1 and id(p) not in lookups and not name.endswith("bias") else 0
        used, component = matrix // p.shape[0] * routed if p.ndim == 3 else matrix, known.get(id(p))
        rows.append((component or component_of(name.split(".")), layers.get(id(p), -1), p.numel(), matrix, used))
    if inner(unembedding).weight is table:
        rows.append(("unembedding", -1, 0, 0, table.numel()))
    return pd.DataFrame(rows, columns=["component", "layer", "numbers", "matrix", "multiplied"])


def component_of(path: list[str]) -> str:
    """The component that a parameter's path speaks of."""
    said = (
        ("norms", any("norm" in part or part.startswith("ln_") for part in path)),
        ("attention", any("attn" in part or "attention" in part for part in path)),
        ("router", path[-2] in ("router", "shared_expert_gate") or path[-2:] == ["gate", "weight"]),
        ("FFN", not {"mlp", "feed_forward", "ffn", "fc1", "fc2"}.isdisjoint(path)),
        ("position embedding", any(part == "wpe" or "position" in part for part in path)),
        ("token embedding", "project_in" in path),
        ("unembedding", "project_out" in path),
    )
    return next((component for component, applies in said if applies), "other")
