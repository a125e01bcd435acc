"""``anatomy``: where the parameters and the arithmetic of a model are, counted or read from its config."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import pandas as pd
import torch
from torch import nn

from .._version import __version__
from ..core.errors import ModelError, UnsupportedModelError, counted
from ..core.foreign import foreign
from ..core.provenance import Provenance
from ..core.sheets import Sheet, Words
from ..core.types import checked
from ..ffn.ledgers import Component, Ledger, Parity, checked_context, ledger, parity, parity_width
from ..ffn.shapes import N_CTX, N_HEADS, ConfigReader, Shape
from ..show.result import Result
from .architectures import DESCRIBED, Architecture
from .configs import described, quiet, read_config, stated_activation, unusual_fields
from .layout import inner
from .model import Model
from .turns import in_turn

# `Anatomy`: where the parameters and the arithmetic of a model are, and what its FFNs are as memories.

MULTIPLE = 256
"""Widths of parity are multiples of it, as Llama's are."""


@dataclass(frozen=True)
class Matrix:
    """One matrix of a layer: ``part`` "attention" or "FFN", its name there, and ``rows`` vectors of ``d_model``."""

    part: str
    name: str
    rows: int
    d_model: int

    @property
    def numbers(self) -> int:
        """How many numbers it holds."""
        return self.rows * self.d_model

    def to_dict(self) -> dict[str, Any]:
        """Its fields and how many numbers it holds."""
        return asdict(self) | {"numbers": self.numbers}


@checked
@dataclass(frozen=True, eq=False, repr=False)
class Anatomy(Result):
    """Where a model's parameters are, and its FFNs as memories. Made by :func:`ffnmem.models.anatomy`.

    Attributes:
        name: of the model. architecture: what people call its kind.
        counted: "weights": parameter by parameter in a model that is there; "formula": from the sizes in its config;
            "config": in a model built from its config without weights, where there is no formula for the family.
        ledger: parameters and FLOPs by component.
        formula: of a model that is there, what the formula gives for its config; None where there is none.
        d_model, d_mlp, d_vocab, n_ctx: sizes; ``n_ctx`` is None where the config names none.
        gated: whether the FFNs have gates. activation: as the config calls it. norm: "LayerNorm" or "RMSNorm".
        biases: the components that have any. tied: whether the unembedding is the token embedding.
        matrices: of the first layer, each as vectors of ``d_model`` numbers; attention first.
        provenance: of a model that is there, else None.
    """

    in_json = (
        "name architecture counted d_model d_mlp d_vocab n_ctx gated activation norm tied biases formula_parameters "
        "memory parity matrices"
    )

    name: str
    architecture: str
    counted: str
    ledger: Ledger
    d_model: int
    d_mlp: int
    d_vocab: int
    n_ctx: int | None
    gated: bool
    activation: str
    norm: str
    biases: tuple[str, ...]
    tied: bool
    matrices: tuple[Matrix, ...]
    formula: Ledger | None = None
    provenance: Provenance | None = None

    @property
    def parameters(self) -> int:
        """All parameters; a matrix used twice counts once."""
        return self.ledger.parameters

    @property
    def neurons(self) -> int:
        """Memories of the whole model: neurons of all layers."""
        return self.ledger.n_layers * self.d_mlp

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

    def to_frame(self) -> pd.DataFrame:
        """One row a component.

        Columns: ``component``, ``layer_parameters`` and ``layer_flops`` (in one layer), ``parameters`` and ``flops``
        (in all), ``share`` (of all parameters), ``flops_share``. FLOPs are for one token, see
        :class:`ffnmem.ffn.ledgers.Ledger`.
        """
        return self.ledger.to_frame()

    @property
    def formula_parameters(self) -> int | None:
        """What the formula for the config gives, where there is one."""
        return None if self.formula is None else self.formula.parameters

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
        """Plain values, ready for JSON: those of the ledger among them."""
        origin = {"model": self.name, "ffnmem": __version__} if self.provenance is None else self.provenance.to_dict()
        return {**self.ledger.to_dict(), **super().to_dict(top), "provenance": origin}

    def traits(self) -> dict[str, str]:
        """The memories of the model and its other traits, a line each by its name."""
        n, kind = self.ledger.n_layers, "gated" if self.gated else "classic"
        vectors = ", ".join(self.vectors[:-1]) + " and " + self.vectors[-1]
        return {
            "memories": f"{counted(n, 'layer')} × {self.d_mlp:,} neurons = {self.neurons:,}",
            "a memory": f"{vectors}, {self.d_model:,} numbers each: {len(self.vectors) * self.d_model:,} weights",
            "FFN": f"{kind}, {self.d_mlp:,} neurons for d_model {self.d_model:,}: {self.expansion:.3g}×",
            "its share": f"{self.ledger.ffn_share:.1%} of all parameters, {self.ledger.ffn_share_of_layers:.1%} of "
            "those in layers",
            "parity": self.parity_words(),
            "activation": f"{self.activation}{', of the gate' * self.gated}",
            "norm": self.norm,
            "biases": ", ".join(self.biases) or "none",
            "unembedding": "the token embedding (tied)" if self.tied else "a matrix of its own",
            "counted": self.counted_words(),
        }

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

    def counted_words(self) -> str:
        """How the parameters were counted, and whether the formula gives the same number."""
        if self.counted == "formula":
            return "by the formula for its config; no weights were read"
        if self.counted == "config":
            return "in a model built from its config, without weights"
        if self.formula is None:
            return "in the loaded model; there is no formula for its config"
        missing = self.parameters - self.formula.parameters
        than = "" if missing == 0 else f": {abs(missing):,} {'fewer' if missing > 0 else 'more'}"
        return f"in the loaded model; the formula for its config gives {self.formula.parameters:,}{than}"

    def summary(self) -> str:
        return (
            f"{self.name!r}: {self.architecture}, {self.parameters:,} parameters, {self.neurons:,} "
            f"{'gated' if self.gated else 'classic'} neurons, FFN {self.ledger.ffn_share:.1%} of all and "
            f"{self.ledger.ffn_share_of_layers:.1%} of the layers"
        )

    def sheet(self) -> Sheet:
        """Parameters and FLOPs by component, and what the FFNs are as memories."""
        kind = f"{self.architecture}, {counted(self.ledger.n_layers, 'layer')}, d_model {self.d_model:,}"
        in_layers = replace(self.ledger.table(in_layers=True), title="in a layer and in all", folded=True)
        return Sheet.of(
            self.ledger.table(),
            in_layers,
            self.traits(),
            Words.of(f"config of {self.name} · ffnmem {__version__}", "soft"),
            title=f"{self.name}: {kind}, vocabulary {self.d_vocab:,}",
        )


# Where a model's parameters are, counted module by module: in a loaded model, or in one built without memory.

COMPONENTS = ("token embedding", "position embedding", "attention", "FFN", "norms", "unembedding", "other")
COPIES = (("qkv", "q"), ("gate_up_proj", "in"))
"""A joint projection that the bridge has split stays beside its parts as a copy: its name, and that of one part."""


@dataclass(frozen=True)
class Counted:
    """The parameters of one model by component.

    Attributes:
        totals: parameters of each component, by whether they are in layers: ``totals[component, True]``.
        matrices: those of the totals that are in matrices.
        attention, ffn: numbers in the matrices of the first layer's attention and FFN.
        biases: the components that have biases.
        tied: whether unembedding and token embedding are one matrix.
        n_layers: layers. d_model: width of the residual stream, d_embedding: of the embeddings. d_vocab: tokens.
    """

    totals: Counter[tuple[str, bool]]
    matrices: Counter[tuple[str, bool]]
    attention: int
    ffn: int
    biases: tuple[str, ...]
    tied: bool
    n_layers: int
    d_model: int
    d_embedding: int
    d_vocab: int

    @property
    def parameters(self) -> int:
        """All of them, tied ones once."""
        return sum(self.totals.values())

    def ledger(self, name: str, context: int, queries: int) -> Ledger:
        """The same as a ledger, with FLOPs for a token that attends over ``context`` positions.

        Args:
            name: of the ledger. context: in positions. queries: width of all heads together.
        """
        mixing = {"attention": 4 * queries * context}
        lines = []
        for name_of in COMPONENTS:
            # Layers of unequal size count with their mean; what it leaves over stands outside.
            each, rest = divmod(self.totals[name_of, True], self.n_layers)
            flops, more = divmod(2 * self.matrices[name_of, True], self.n_layers)
            lookup = name_of in ("token embedding", "position embedding")
            outside = 0 if lookup else 2 * self.matrices[name_of, False] + more
            if name_of == "unembedding" and self.tied:
                outside += 2 * self.d_vocab * self.d_embedding
            parameters = self.totals[name_of, False] + rest
            lines.append(Component(name_of, each, parameters, flops + mixing.get(name_of, 0), outside))
        if not self.totals["other", True] + self.totals["other", False]:
            lines.pop()
        return Ledger(name, self.n_layers, context, tuple(lines))


def count_loaded(model: Model) -> Counted:
    """The parameters that a loaded model has, each where the layout says that it belongs."""
    layout = model.layout
    known: dict[int, str] = {}
    for block in layout.blocks:
        mark(known, [block.attention], "attention")
        mark(known, [block.project_in, block.project_gate, block.project_out], "FFN")
        mark(known, [block.attention_norm, block.attention_post, block.norm, block.post], "norms")
    mark(known, [layout.final_norm], "norms")
    blocks = [block.whole for block in layout.blocks]
    return count(model.hf_model, blocks, inner(layout.embedding), inner(layout.unembedding), known)


def count_module(hf_model: Any) -> Counted:
    """The same for a Hugging Face model of an architecture that is described, by the names of its modules."""
    blocks = next(module for module in hf_model.modules() if isinstance(module, nn.ModuleList))
    embedding, unembedding = hf_model.get_input_embeddings(), hf_model.get_output_embeddings()
    if unembedding is None:
        raise UnsupportedModelError(f"{type(hf_model).__name__} has no unembedding, so it is no language model")
    return count(hf_model, list(blocks), embedding, unembedding, {})


def build_empty(config: Any, name: str) -> Any:
    """A Hugging Face decoder on the device "meta": all shapes, no numbers and no memory.

    Raises ModelError, naming ``name``, where the config's sizes fit no model.
    """
    import transformers

    what = f"no model can be built from the config of {name}"
    with quiet(), torch.device("meta"), foreign(ModelError, what, lambda: unusual_fields(config.to_dict())):
        return transformers.AutoModelForCausalLM.from_config(config, trust_remote_code=False)


def mark(known: dict[int, str], modules: Iterable[nn.Module | None], component: str) -> None:
    """Note the component of every parameter of some modules; a norm inside keeps being one."""
    for module in modules:
        for name, parameter in () if module is None else module.named_parameters():
            known[id(parameter)] = "norms" if by_name(name.split(".")) == "norms" else component


def count(
    model: nn.Module, blocks: Sequence[nn.Module], embedding: nn.Module, unembedding: nn.Module, known: dict[int, str]
) -> Counted:
    """Every parameter of ``model`` once: those in ``known`` as said there, the others by name."""
    table = embedding.weight
    ends = {id(p): "unembedding" for p in unembedding.parameters()} | {id(table): "token embedding"}
    layers = {id(p): layer for layer, block in enumerate(blocks) for p in block.parameters()}
    totals: Counter[tuple[str, bool]] = Counter()
    matrices, first, biases = totals.copy(), Counter[str](), set[str]()
    for path, parameter in named(model):
        component = ends.get(id(parameter)) or known.get(id(parameter)) or by_name(path)
        layer = layers.get(id(parameter))
        totals[component, layer is not None] += parameter.numel()
        if parameter.ndim > 1:
            matrices[component, layer is not None] += parameter.numel()
            first[component] += parameter.numel() if layer == 0 else 0
        if path[-1] == "bias":
            biases.add(component)
    assert isinstance(table, torch.Tensor)
    return Counted(
        totals=totals,
        matrices=matrices,
        attention=first["attention"],
        ffn=first["FFN"],
        biases=tuple(name for name in COMPONENTS if name in biases),
        tied=unembedding.weight is table,
        n_layers=len(blocks),
        d_model=int(getattr(getattr(model, "config", None), "hidden_size", table.shape[1])),
        d_embedding=int(table.shape[1]),
        d_vocab=int(table.shape[0]),
    )


def named(model: nn.Module) -> list[tuple[list[str], nn.Parameter]]:
    """The path and the parameter of each, as Hugging Face has them, without the bridge's copies."""
    found = {name.replace("_original_component.", ""): p for name, p in model.named_parameters()}
    paths = [(name.split("."), parameter) for name, parameter in found.items()]
    return [(path, parameter) for path, parameter in paths if not is_copy(path, found)]


def is_copy(path: Sequence[str], among: dict[str, nn.Parameter]) -> bool:
    """Whether a parameter is that of a joint projection whose parts are here too."""
    return any(path[-2:-1] == [joint] and ".".join([*path[:-2], part, path[-1]]) in among for joint, part in COPIES)


def by_name(path: Sequence[str]) -> str:
    """The component that a parameter's path speaks of."""
    if any("norm" in part or part.startswith("ln_") for part in path):
        return "norms"
    if any("attn" in part or "attention" in part for part in path):
        return "attention"
    if any(part in ("mlp", "ffn", "fc1", "fc2") for part in path):
        return "FFN"
    if any(part == "wpe" or "position" in part for part in path):
        return "position embedding"
    return "other"


# `anatomy`: a model, a name or a config becomes an Anatomy; of a name nothing but the config is read.


@checked
@in_turn
def anatomy(source: Any, *, context: int | None = None) -> Anatomy:
    """Where the parameters and the arithmetic of a model are, and what its FFNs are as memories.

    Args:
        source: a :class:`Model`; a Hugging Face model; a name as :func:`load` takes it (an embedded model, a folder, of
            which ``config.json`` is enough, a Hugging Face id); a Hugging Face config, or a dict as in
            ``config.json``. Of a name or config nothing but the config is read, so that its size does not matter.
        context: positions that a token attends over, itself among them, for the FLOPs; default 1024, or the model's
            whole context where that is shorter.

    Returns:
        An :class:`Anatomy`. Of a model that is there every parameter is counted, and the formula for its config
        compared.

    Raises:
        ModelNotFoundError: no such name, folder or hub id. ModelError: a config that cannot be read.
        UnsupportedModelError: a mixture of experts, an encoder-decoder, or an architecture that is not described.
        InputError: a context below 1 or beyond the model's, or no source.

    Source: the accounting is that of Kaplan et al. 2020 (2001.08361), table 1, with every bias and norm.
    """
    if isinstance(source, Model):
        return of_model(source, context)
    if isinstance(source, nn.Module):
        name, config = read_config(getattr(source, "config", source))
        return of_module(name, config, checked_architecture(name, config), source, context)
    name, config = read_config(source)
    found = checked_architecture(name, config)
    seen = checked_context(context, n_ctx_of(config), name)
    by_formula = formula_of(config, seen)
    if by_formula is None:
        return of_module(name, config, found, build_empty(config, name), context, there=False)
    shape = Shape.from_config(config)
    return Anatomy(
        ledger=by_formula,
        counted="formula",
        d_model=shape.d_model,
        d_mlp=shape.d_mlp,
        d_vocab=shape.d_vocab,
        biases=biases_of(shape),
        tied=shape.tied,
        matrices=matrices_of(
            shape.d_model, shape.d_mlp, shape.gated, shape.n_heads * shape.d_head, shape.n_kv_heads * shape.d_head
        ),
        **traits(name, config, found),
    )


def of_model(model: Model, context: int | None) -> Anatomy:
    """The anatomy of a loaded model."""
    config, numbers = model.hf_model.config, model.numbers
    seen, queries = checked_context(context, n_ctx_of(config), model.name), int(numbers.n_heads * numbers.d_head)
    counted = count_loaded(model)
    found = traits(model.name, config, model.layout.architecture, model.ffn[0].activation)
    return Anatomy(
        ledger=counted.ledger(model.name, seen, queries),
        counted="weights",
        formula=formula_of(config, seen),
        provenance=model.provenance(context=seen),
        **sizes(counted, found["gated"], queries),
        **found,
    )


def of_module(
    name: str, config: Any, architecture: Architecture, hf_model: Any, context: int | None, there: bool = True
) -> Anatomy:
    """The anatomy of a Hugging Face model, or of one without weights, which is not ``there``."""
    seen, counted = checked_context(context, n_ctx_of(config), name), count_module(hf_model)
    read, found = ConfigReader(config), traits(name, config, architecture)
    n_heads = read.size("n_heads", N_HEADS)
    queries = n_heads * (read("head_dim", default=None) or counted.d_model // n_heads)
    return Anatomy(
        ledger=counted.ledger(name, seen, queries),
        counted="weights" if there else "config",
        formula=formula_of(config, seen) if there else None,
        **sizes(counted, found["gated"], queries),
        **found,
    )


def checked_architecture(name: str, config: Any) -> Architecture:
    """The description of what a config is of; raises UnsupportedModelError, with the reason, if there is none."""
    found = described(config)
    if found is not None:
        return found
    reason = "no decoder"
    try:
        Shape.from_config(config)
    except UnsupportedModelError as error:
        reason = str(error).partition(": there are ")[0]  # only those with a formula
    read = ", ".join(dict.fromkeys(one.title for one in DESCRIBED.values()))
    raise UnsupportedModelError(f"{name}: {reason}; models read are {read}")


def formula_of(config: Any, context: int) -> Ledger | None:
    """The ledger by formula, or None where there is none for the family."""
    try:
        return ledger(config, context=context)
    except UnsupportedModelError:
        return None


def n_ctx_of(config: Any) -> int | None:
    """The positions that a model was made for; None where its config names none."""
    found = ConfigReader(config)(*N_CTX, "max_seq_len", default=None)
    return found if isinstance(found, int) else None


def traits(name: str, config: Any, found: Architecture, activation: str | None = None) -> dict[str, Any]:
    """What the architecture and the config say."""
    return {
        "name": name,
        "architecture": found.title,
        "n_ctx": n_ctx_of(config),
        "gated": found.gate is not None or found.joint is not None,
        "activation": stated_activation(config, found) if activation is None else activation,
        "norm": "LayerNorm" if found.norm_kind.centred else "RMSNorm",
    }


def sizes(counted: Counted, gated: bool, queries: int) -> dict[str, Any]:
    """What the parameters say; ``queries`` is the width of all heads together."""
    d_model, d_mlp = counted.d_model, counted.ffn // ((3 if gated else 2) * counted.d_model)
    return {
        "d_model": d_model,
        "d_mlp": d_mlp,
        "d_vocab": counted.d_vocab,
        "biases": counted.biases,
        "tied": counted.tied,
        "matrices": matrices_of(d_model, d_mlp, gated, queries, counted.attention // (2 * d_model) - queries),
    }


def biases_of(shape: Shape) -> tuple[str, ...]:
    """The components of a shape that have biases."""
    has = {
        "attention": shape.qkv_bias or shape.attention_out_bias,
        "FFN": shape.ffn_bias,
        "norms": shape.norm_bias or (shape.qk_norm != "none" and shape.qk_norm_bias),
        "unembedding": shape.unembedding_bias,
    }
    return tuple(name for name, found in has.items() if found)


def matrices_of(d_model: int, d_mlp: int, gated: bool, queries: int, shared: int) -> tuple[Matrix, ...]:
    """The matrices of one layer; ``shared`` is the width of all heads of attention's keys and values together."""
    attention = {"Q": queries, "O": queries, "K": shared, "V": shared}
    ffn = ("keys", "gates", "values") if gated else ("keys", "values")
    return (
        *(Matrix("attention", name, rows, d_model) for name, rows in attention.items()),
        *(Matrix("FFN", name, d_mlp, d_model) for name in ffn),
    )
