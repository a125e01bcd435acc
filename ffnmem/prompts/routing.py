"""Why a router chose an expert: what it gives it as a sum over the memories of earlier layers, along all paths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, SupportsIndex

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from ..core.errors import InputError, check_index
from ..core.neuron_names import LayerName
from ..core.sheets import Column, Content, Prompt, Sheet, Table, place
from ..core.types import Whole, checked
from ..models.norms import at_least_float32
from .captures import Capture
from .circuit_edges import FFNReader, FrozenPass, Input
from .firings import Firings, PromptQuestion


@checked
@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class RouterAttribution(Firings):
    """A router's logit of an expert as a sum over memories at all positions. Made by :func:`attribute_router`.

    Attributes:
        scores: ``[layer, pos, d_mlp]``, what each neuron, firing at each position, adds to the logit; 0 from the
            router's own layer on.
        layer: whose router. expert, against: the place of each in ``model.ffn[layer].experts``; None of no other.
        logit: the router's own, before it is normalised: of the expert (minus the other's) at ``position``.
        chosen: one row an expert that the token is routed to: expert, weight (what the router gives it).
        components: one row a component: component, layer, logit; they sum to the logit.
        target, foil: the expert and the other one in words. answer: none.
    """

    column: ClassVar[str] = "logit"
    in_json = "tokens position layer expert against logit chosen firings map error components"
    in_repr = "layer expert against logit error"

    layer: int
    expert: int
    against: int | None
    chosen: pd.DataFrame
    components: pd.DataFrame
    answer: Any = None

    @property
    def error(self) -> float:
        """\\|sum of components − logit\\|."""
        return abs(float(self.components["logit"].sum()) - self.logit)

    def sheet(self, top: Whole = 10) -> Sheet:
        """Which experts the token is routed to, and what memories and the rest add to the logit of one."""
        memories = float(self.map.sum())
        weights = zip(self.chosen["expert"], self.chosen["weight"], strict=True)
        facts: dict[str, Content | None] = {
            "prompt": Prompt(self.tokens, self.position, self.starts_with_bos),
            "at": place(self.tokens, self.position),
            "chosen": ", ".join(f"expert {expert} (weight {weight:.3f})" for expert, weight in weights),
            "logit": f"{self.logit:+.3f}, {self.target}{f' minus {self.foil}' if self.foil else ''}, in the router of "
            f"layer {self.layer}",
            "memories": f"wrote {memories:+.3f} of it; embeddings and biases {self.logit - memories:+.3f}; error "
            f"{self.error:.1e}",
        }
        return Sheet.of(facts, self.position_table("memories"), self.firing_table(top), self.provenance)


@checked
def attribute_router(
    capture: Capture,
    layer: LayerName,
    expert: SupportsIndex,
    against: SupportsIndex | None = None,
    position: SupportsIndex = -1,
    *,
    prompt: SupportsIndex | None = None,
) -> RouterAttribution:
    """Which memories, at which positions, made a router choose an expert.

    What a router gives an expert begins as a logit w·x + b of what the FFN reads. With attention patterns and the
    scales of norms as they were, it is an exact sum over the embeddings, biases and every neuron of every earlier layer
    at every position, as in :func:`ffnmem.attribute_paths`. A router compares: an expert against another that was not
    chosen (``against``) says more than one alone, as what all experts get cancels.

    Args:
        capture: of every layer.
        layer: whose router. expert, against: the place of each in ``model.ffn[layer].experts``; default no other.
        position: of which token. prompt: which one of several.

    Returns:
        A :class:`RouterAttribution`: ``.top(k)`` (layer, neuron, expert, position, token, coefficient, logit, share),
        ``.map`` ``[layer, pos]``, ``.components``, ``.chosen``, ``.logit`` and ``.error``. The logit is the one before
        softmax or sigmoid; of DeepSeek V3 also before the bias that balances the choice.

    Raises:
        InputError: a layer without a router, a capture of some layers, or a model that has changed since.
        OutOfRangeError: no such layer, expert, position or prompt.

    Source: the path expansion of Elhage et al. 2021, with FFN outputs as sources.
    """
    question = PromptQuestion.of(capture, None, None, position, prompt, True)
    model, index, pos = question.model, question.model.layer(layer), question.position
    mixture = model.ffn[index].mixture
    if mixture is None:
        raise InputError(f"layer {index} of {model.name} has no experts, and so no router")
    of = f"layer {index} of {model.name}"
    first = check_index("expert", expert, mixture.sizes.experts, of)
    other = None if against is None else check_index("against", against, mixture.sizes.experts, of)
    if first == other:
        raise InputError(f"against must be another expert than the one explained, {first}")
    reader = read_router(mixture.router, index, pos, first, other)
    walk = FrozenPass(question)
    found, others = walk.rows([Input(None, "reader", reader)])
    scores = torch.zeros(model.n_layers, pos + 1, model.d_mlp, dtype=walk.dtype, device=others.device)
    for below, adds in found.items():
        scores[below, :, : adds.shape[-1]] = adds[0]
    rows = [(kind, at, float(logit)) for (_, kind, at, _), logit in zip(walk.other_names(), others[0], strict=True)]
    rows += [("ffn", below, float(scores[below].double().sum())) for below in sorted(found)]
    parts = pd.DataFrame(rows, columns=["component", "layer", "logit"]).astype({"layer": "Int64"})
    x = at_least_float32(capture.ffn_in[index][question.row, pos])
    routed = capture.routing()
    mine = (routed["layer"] == index) & (routed["prompt"] == question.row) & (routed["position"] == pos)
    return RouterAttribution(
        scores=scores,
        coefficients=at_least_float32(question.coefficients),
        widths=model.widths,
        layer=index,
        expert=first,
        against=other,
        chosen=routed.loc[mine, ["expert", "weight"]].sort_values("weight", ascending=False, ignore_index=True),
        components=parts.groupby(["component", "layer"], sort=False, dropna=False, as_index=False)["logit"].sum(),
        logit=float((reader.direction * x).double().sum()) + reader.bias,
        target=f"expert {first}",
        foil=None if other is None else f"expert {other}",
        tokens=question.texts,
        starts_with_bos=capture.starts_with_bos,
        position=pos,
        provenance=capture.provenance.with_settings(frozen="attention patterns, norm scales"),
    )


def read_router(router: Any, layer: int, position: int, expert: int, against: int | None) -> FFNReader:
    """The direction along which a router's logit of an expert, minus another's, is read."""

    def row(which: int) -> tuple[Float[Tensor, " d_model"], float]:
        bias = getattr(router, "bias", None)
        return at_least_float32(router.weight.detach()[which]), 0.0 if bias is None else float(bias.detach()[which])

    direction, bias = row(expert)
    if against is None:
        return FFNReader(layer, position, direction, bias)
    other, its = row(against)
    return FFNReader(layer, position, direction - other, bias - its)


def routing_sheet(capture: Capture, routing: pd.DataFrame) -> Sheet:
    """Which experts each token of the first prompt is routed to, the one with the largest weight first: a column a
    layer, or of one layer a column an expert, with its weight.
    """
    found = routing.query("prompt == 0").sort_values(["position", "layer", "weight"], ascending=[1, 1, 0])
    layers = found["layer"].unique()
    if len(layers) == 1:
        found["text"] = [f"{one.expert} ({one.weight:.3f})" for one in found.itertuples()]
        found["column"] = found.groupby("position").cumcount() + 1
        title, columns = f"experts of layer {layers[0]} that each token is routed to", "choice"
        caption = "the one with the largest weight first, its weight in brackets"
    else:
        found["text"], found["column"] = found["expert"].astype(str), found["layer"]
        title, columns = "experts that each token is routed to, by layer", "layer"
        caption = "the one with the largest weight first; with --layer, and in --csv, with the weights"
    chosen = found.groupby(["position", "column"])["text"].apply(" ".join).unstack().add_prefix(f"{columns} ")
    chosen.insert(0, "token", found.groupby("position")["token"].first())
    shown = (Column(name, left=False) for name in chosen.columns[1:])
    table = Table.of(chosen, Column("token", "token", stays=True), *shown, title=title, caption=caption)
    return Sheet.of(table, capture.provenance)
