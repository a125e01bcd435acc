"""``attribute_paths``: a token's logit as a sum over the memories of *every* position, carried there by attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from ..core.types import checked
from ..models.attention import FrozenAttention
from ..models.norms import at_least_float32
from ..models.residual import pulled_through
from ..models.tolerance import check_identity
from .captures import Capture, Target
from .firings import Firings, PromptQuestion


@checked
@dataclass(frozen=True, eq=False, repr=False)
class PathAttribution(Firings):
    """The logit at one position as a sum over memories at all positions. Made by :func:`ffnmem.attribute_paths`.

    Attributes:
        scores: ``[layer, pos, d_mlp]``, what each neuron, firing at each position, adds to the logit.
        coefficients: ``[layer, pos, d_mlp]``.
        components: one row a component: component, layer, logit; they sum to the logit.
        logit: the model's own logit of the target (minus the foil's) at ``position``; of an answer of several tokens
            the sum of theirs, each at its own position.
        by_token: one row a token that is read: position, token, logit, sum (of its own components).
    """

    column: ClassVar[str] = "logit"
    heading = "prompt after target foil logit error"
    tables: ClassVar = {
        "by_token": "token after logit",
        "firings": "neuron fired_at position coefficient logit share promotes | suppresses",
        "by_position": "token position logit share strongest_layer written_there",
        "map": "",
        "components": "| *",
    }
    uncut = "components"

    components: pd.DataFrame
    by_token: pd.DataFrame

    @property
    def error(self) -> float:
        """\\|sum of components − logit\\|, the largest over the tokens that are read."""
        return float((self.by_token["sum"] - self.by_token["logit"]).abs().max())

    @property
    def verdict(self) -> str:
        """How much of the answer the neurons of all positions wrote."""
        memories = float(self.map.sum())
        rest = float(self.components["logit"].sum()) - memories
        minus = "" if self.foil is None else ", the target’s minus the foil’s"
        summed = f", the sum over its {len(self.answer.target)} tokens" if self.answer.whole else ""
        return (
            f"Neurons at all positions wrote {memories:+.3f} of the logit {self.logit:.3f}{minus}{summed}"
            f"{self.provenance.before_cap}; embeddings and biases {rest:+.3f}."
        )

    @property
    def shown_by_token(self) -> pd.DataFrame | None:
        """Of an answer of several tokens, each with its logit."""
        after = [self.tokens[position] for position in self.by_token["position"]]
        return self.by_token.assign(after=after) if self.answer.whole else None


@checked
def attribute_paths(
    capture: Capture,
    target: Target = None,
    foil: str | int | None = None,
    position: int = -1,
    *,
    prompt: int | None = None,
    first_token: bool = False,
) -> PathAttribution:
    """Which memories, at which positions, wrote an answer.

    Splits the logit of an answer into what FFN neurons at every position of the prompt wrote, directly or carried by
    attention. :func:`ffnmem.attribute` credits attention with what it brings from elsewhere; this opens it. That a
    memory made a later one fire is not counted.

    Note:
        With attention patterns and every norm's scale as they were (frozen), attention is linear in what stands at each
        position, so the logit is an exact sum over the embeddings and over every neuron of every layer *at every
        position*, along all paths through attention. FFNs are sources, never paths.

        Of a long prompt the attention pattern of one layer is held at a time, some four times heads × pos² numbers; if
        an answer has several tokens, those of all layers.

    Args:
        capture: of all layers.
        target: as :func:`ffnmem.attribute` takes it, at one position. Of an answer of several tokens the sums of all
            tokens, each at its own position, are added; ``.by_token`` has each.
        foil: as :func:`ffnmem.attribute` takes it.
        position: where the answer is predicted: 0 is the first token, -1 the last.
        prompt: which one, of a capture of several.
        first_token: take the first token of a target or foil alone.

    Returns:
        A :class:`PathAttribution`: ``.top(k)`` (layer, neuron, position, token, coefficient, logit, share), ``.map``
        ``[layer, pos]``, ``.components``, ``.logit`` and ``.error``.

    Raises: as :func:`ffnmem.attribute`; HookError if a layer does not show its attention pattern.

    Source: the path expansion with frozen attention of Elhage et al. 2021, "A Mathematical Framework for Transformer
    Circuits", with FFN outputs as sources.

    Example:
        $ ffnmem paths "The Eiffel Tower is located in the city of"
        $ ffnmem paths "The capital of France is" --target " Paris" --foil " Rome"
        $ ffnmem paths "The capital of France is" --json | jq '.map'
    """
    question = PromptQuestion.of(capture, target, foil, position, prompt, first_token)
    directions, constants, logits = question.reads()
    attentions, at = question.attentions(), list(question.answer.positions)
    if len(at) > 1:
        attentions = [attention.with_graph() for attention in attentions]
    scores: Tensor | None = None
    rows: list[tuple[int, str, int | None, float]] = []
    for i, place in enumerate(at):
        own, found = walk(question, attentions, place, directions[i], float(constants[i]))
        scores = own if scores is None else scores.add_(own)
        rows += [(place, *row) for row in found]
    assert scores is not None
    parts = pd.DataFrame(rows, columns=["position", "component", "layer", "logit"]).astype({"layer": "Int64"})
    terms = parts.groupby("position")["logit"]
    sums = {"logit": logits.tolist(), "sum": terms.sum().tolist()}
    scale = np.abs([terms.max(), terms.min(), logits.tolist()]).max(0)
    missed, again = np.subtract(sums["sum"], sums["logit"]), question.attended is None
    check_identity(question.model, "attribute_paths", missed, scale, again=again)
    return PathAttribution(
        scores=scores,
        coefficients=at_least_float32(question.coefficients),
        components=parts.groupby(["component", "layer"], sort=False, dropna=False, as_index=False)["logit"].sum(),
        logit=float(logits.sum()),
        by_token=pd.DataFrame({"position": at, "token": question.model.token_strings(question.answer.read), **sums}),
        **question.result_fields(),
        widths=question.model.widths,
        provenance=capture.provenance.with_settings(frozen="attention patterns, norm scales"),
    )


def walk(
    question: PromptQuestion,
    attentions: list[FrozenAttention],
    position: int,
    answer: Float[Tensor, " d_model"],
    constant: float,
) -> tuple[Float[Tensor, "layer pos d_mlp"], list[tuple[str, int | None, float]]]:
    """What each component, and each neuron, adds to the logit that is read along a direction at one position."""
    capture, model, row = question.capture, question.model, question.row
    residual, span = capture.residual, slice(0, question.position + 1)
    assert residual is not None
    directions = torch.zeros(question.position + 1, model.d_model, dtype=answer.dtype, device=answer.device)
    directions[position] = answer

    def along(write: Tensor) -> float:
        return float((at_least_float32(write[row, span]).double() * directions.double()).sum())

    neurons = torch.zeros(model.n_layers, question.position + 1, model.d_mlp, dtype=answer.dtype, device=answer.device)
    rows: list[tuple[str, int | None, float]] = [("final bias", None, constant)]
    for layer in reversed(range(model.n_layers)):
        ffn = model.ffn[layer]
        along_ffn = pulled_through(model, layer, directions, capture.ffn_out[layer][row, span])
        logits = torch.matmul(along_ffn, at_least_float32(ffn.values.detach()).T, out=neurons[layer, :, : ffn.d_mlp])
        logits.mul_(capture.coefficients[layer][row, span])
        if ffn.value_bias is not None:
            rows.append(("ffn bias", layer, float(along_ffn.double().sum(0) @ ffn.value_bias.detach().double())))
        rows.append(("ffn", layer, float(logits.sum(dtype=torch.float64))))
        pulled, added = attentions[layer].pull(directions)
        rows.append(("attention bias", layer, float(added)))
        directions = directions + pulled
    if residual.position is not None:
        rows.append(("position", None, along(residual.position)))
    rows.append(("embedding", None, along(residual.embedding)))
    return neurons, rows[::-1]
