"""``attribute_paths``: a token's logit as a sum over the memories of *every* position, carried there by attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from ..core.sheets import Column, Sheet, Table
from ..core.types import Whole, checked
from ..models.attention import FrozenAttention
from ..models.norms import at_least_float32
from ..models.residual import pulled_through
from .answer_text import describe_answer
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
    in_json = "tokens position target foil logit firings map error components by_token"
    in_repr = "target foil logit error"

    components: pd.DataFrame
    by_token: pd.DataFrame

    @property
    def error(self) -> float:
        """\\|sum of components − logit\\|, the largest over the tokens that are read."""
        return float((self.by_token["sum"] - self.by_token["logit"]).abs().max())

    def sheet(self, top: Whole = 10) -> Sheet:
        """The answer, what the memories of each position add to it, and the ``top`` single firings."""
        memories = float(self.map.sum())
        rest = float(self.components["logit"].sum()) - memories
        facts = describe_answer(self, summed=True) | {
            "memories": f"wrote {memories:+.3f} of it; embeddings and biases {rest:+.3f}; error {self.error:.1e}",
        }
        after = Column("after", "token", of=lambda row: self.tokens[row["position"]])
        by_token = Table.of(self.by_token, "token", after, "logit") if self.answer.whole else None
        return Sheet.of(facts, by_token, self.position_table("memories"), self.firing_table(top), self.provenance)


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
    """Which memories, at which positions, wrote this answer: directly, or carried there by attention.

    :func:`ffnmem.attribute` sees only what is written at the answer's own position; what a memory wrote at the subject
    counts there as attention's. Here the attention layers are opened: with their patterns and every norm's scale as
    they were (frozen), attention is linear in what stands at each position, so the logit is an exact sum over the
    embeddings and over every neuron of every layer *at every position*, along all paths through attention. FFNs are
    sources, never paths: that a memory made a later memory fire is not counted.

    Of a long prompt the attention pattern of one layer is held at a time, some four times heads × pos² numbers; if an
    answer has several tokens, those of all layers.

    Args: as :func:`ffnmem.attribute`, at one position. Of an answer of several tokens the sums of all tokens, each at
        its own position, are added; ``.by_token`` has each.

    Returns:
        A :class:`PathAttribution`: ``.top(k)`` (layer, neuron, position, token, coefficient, logit, share), ``.map``
        ``[layer, pos]``, ``.components``, ``.logit`` and ``.error``.

    Raises: as :func:`ffnmem.attribute`; HookError if a layer does not show its attention pattern.

    Source: the path expansion with frozen attention of Elhage et al. 2021, "A Mathematical Framework for Transformer
    Circuits", with FFN outputs as sources.
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
    sums = {"logit": logits.tolist(), "sum": parts.groupby("position")["logit"].sum().tolist()}
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
