"""Where a model's parameters are, counted module by module: in a loaded model, or in one built without memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..errors import ModelError, UnsupportedModelError
from ..ffn.ledgers import Component, Ledger
from ..foreign import foreign
from .configs import unusual_fields
from .layout import inner
from .model import Model
from .sources import quiet

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
