"""What every neuron, firing at every position, has to do with one answer: the tables that such results share."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar, SupportsIndex

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..core.errors import InputError, OutOfRangeError, quoted
from ..core.neuron_names import add_experts, read_neuron
from ..core.provenance import experts_in
from ..core.sheets import Grid, token
from ..facts.answers import Answer
from ..models.attention import AttentionPass, FrozenAttention, frozen_attention
from ..models.hooks import OpenBlock
from ..models.layout import inner
from ..models.model import Model
from ..models.residual import model_logits
from .answer_text import AnswerResult
from .attribution import rank_cells
from .captures import Capture, Target, answer_after, with_answer


@dataclass(frozen=True, eq=False)
class PromptQuestion:
    """One answer of one prompt of a capture, as users name it, resolved.

    Attributes:
        capture: of the prompt, and of the answer's tokens before the last one that is read. row: of its prompts.
        answer: which tokens.
    """

    capture: Capture
    row: int
    answer: Answer

    @classmethod
    def of(
        cls,
        capture: Capture,
        target: Target,
        foil: str | SupportsIndex | None,
        position: SupportsIndex,
        prompt: SupportsIndex | None,
        first_token: bool,
    ) -> PromptQuestion:
        """Raises InputError: a capture of some layers or of what the model is no longer, or no such token.
        OutOfRangeError: no such position or prompt."""
        if capture.residual is None:
            raise InputError("attribution needs every layer: capture(model, prompt) without layers=")
        capture.check_repeatable()  # the model's attention, if not all of it, is run once more
        row, pos = capture.row(prompt), capture.position(position, prompt)
        answer = answer_after(capture, target, foil, row, pos, first_token)
        found = cls(*with_answer(capture, answer, row), answer)
        short, length = found.model.short_ctx, found.capture.length(found.row)
        if short is not None and found.position < short < length:
            raise InputError(
                f"{found.model.name} reads a text of {length} tokens with other LongRoPE factors than one that ends at "
                f"position {found.position}: capture the prompt up to there"
            )
        return found

    @property
    def model(self) -> Model:
        return self.capture.model

    @property
    def position(self) -> int:
        """The last one that is read."""
        return self.answer.positions[-1]

    @property
    def tokens(self) -> Int[Tensor, " pos"]:
        """Up to the last position that is read; later ones cannot reach it."""
        return self.capture.tokens[self.row, : self.position + 1]

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(self.capture.token_strings(self.row)[: self.position + 1])

    @cached_property
    def coefficients(self) -> Float[Tensor, "layer pos d_mlp"]:
        """Of the capture, in the model's type, as :meth:`Model.stack_layers` puts layers together."""
        every = self.capture.coefficients
        layers = range(self.model.n_layers)
        return self.model.stack_layers(every[layer][self.row, : self.position + 1] for layer in layers)

    @property
    def targets(self) -> Int[Tensor, " n"]:
        """The ids that are read, one a position."""
        return torch.tensor(self.answer.read, device=self.capture.tokens.device)

    def reads(self) -> tuple[Float[Tensor, "n d_model"], Float[Tensor, " n"], Float[Tensor, " n"]]:
        """:meth:`Capture.read_along` of the positions that are read."""
        return self.capture.read_along(self.row, self.answer.positions, self.targets, self.answer.foil_id)

    def measure(self, final: Float[Tensor, "rows pos d_model"]) -> Float[Tensor, " rows"]:
        """Δ of the outputs of the final norm at all positions, in float64: the logit of the target, before a soft cap
        (minus the foil's); of several tokens the log-probability of all of them."""
        at, targets, foil = list(self.answer.positions), self.targets, self.answer.foil_id
        if not self.answer.whole:
            return model_logits(self.model, final[:, at[0]], targets.expand(len(final)), foil)
        logs = self.model.logits_of(final[:, at]).double().log_softmax(-1)
        return logs.gather(-1, targets.expand(len(final), -1).unsqueeze(-1)).sum((1, 2))

    def rerun(self, rows: int, change: Callable[[int, Tensor], Tensor]) -> Float[Tensor, " rows"]:
        """Δ of ``rows`` runs of the prompt, as one batch: what each layer's down projection reads, ``[rows, pos,
        d_mlp]``, goes through ``change(layer, m)`` first."""
        me, final = threading.get_ident(), list[Tensor]()
        tokens = self.tokens.expand(rows, -1)

        def replace(layer: int, _module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
            if threading.get_ident() != me:
                return None
            m: Tensor = args[0]  # which some models flatten
            return (change(layer, m.reshape(*tokens.shape, -1)).reshape(m.shape), *args[1:])

        with OpenBlock() as block:
            for layer, parts in enumerate(self.model.layout.blocks):
                block.hook(inner(parts.project_out), partial(replace, layer), before=True)
            block.listen(outputs=[(self.model.layout.final_norm, final.append)])
            self.model.layout.body(input_ids=tokens, use_cache=False)
        return self.measure(final[-1].reshape(*tokens.shape, -1))

    def gradients(
        self, rows: int, change: Callable[[int, Tensor], Tensor]
    ) -> tuple[list[Float[Tensor, "rows pos d_mlp"]], list[Float[Tensor, "rows pos d_mlp"]], Float[Tensor, " rows"]]:
        """Of runs as those of :meth:`rerun`, by layer: ∂Δ/∂m of every coefficient that is read, and these coefficients;
        and Δ."""
        places: dict[int, Tensor] = {}

        def place(layer: int, m: Tensor) -> Tensor:
            m = change(layer, m)
            places[layer] = m = m if m.requires_grad else m.detach().requires_grad_()
            return m

        with torch.enable_grad():  # whoever asks may have switched gradients off
            logits = self.rerun(rows, place)
            layers = [places[layer] for layer in range(self.model.n_layers)]
            found = torch.autograd.grad(logits.sum(), layers, allow_unused=True)
        filled = [torch.zeros_like(m) if one is None else one for m, one in zip(layers, found, strict=True)]
        return filled, [m.detach() for m in layers], logits.detach()

    @property
    def attended(self) -> AttentionPass | None:
        """What the capture recorded of attention; None where that is of other prompts or later tokens, too."""
        return self.capture.attended if len(self.tokens) == self.capture.tokens.shape[1] else None

    def attentions(self) -> list[FrozenAttention]:
        """Every attention layer of this prompt's pass up to the answer, frozen."""
        return frozen_attention(self.model, self.tokens, self.attended)

    def result_fields(self) -> dict[str, Any]:
        """What every result says of the question and the answer, by the names of its fields."""
        return {
            "tokens": self.texts,
            "starts_with_bos": self.capture.starts_with_bos,
            "position": self.position,
            "target": self.answer.target_text,
            "foil": self.answer.foil_text,
            "answer": self.answer,
            "model": self.model,
        }

    def triples(self, firings: Any) -> list[tuple[int, int, int]]:
        """Named firings as (layer, neuron, position), each once, in their order.

        Args:
            firings: a table with these columns, such triples, one name or several such as "3.17@5" or "3.17" (at every
                position), or a result of this prompt that has them as ``.firings``.

        Raises InputError: what names none, or a result of another prompt. OutOfRangeError: a firing that this prompt
        does not have.
        """
        if isinstance(firings, AnswerResult) and any(a != b for a, b in zip(firings.tokens, self.texts, strict=False)):
            theirs, ours = (quoted("".join(texts)) for texts in (firings.tokens, self.texts))
            raise InputError(f"these firings are of another prompt: {theirs}, not {ours}")
        table, columns = getattr(firings, "firings", firings), ["layer", "neuron", "position"]
        table = [table] if isinstance(table, str) else table
        if isinstance(table, list | tuple) and any(isinstance(one, str) for one in table):
            table = [place for one in table for place in (self.read_firing(one) if isinstance(one, str) else [one])]
        if not isinstance(table, pd.DataFrame):
            try:
                table = pd.DataFrame([*table], columns=columns, dtype=object)
            except (TypeError, ValueError):
                what = "names such as 3.17@5, (layer, neuron, position), a table or a result"
                raise InputError(f"firings are {what}, not {quoted(table)}") from None
        missing = [name for name in columns if name not in table]
        if missing:
            raise InputError(f"firings has no column {missing[0]}: it needs layer, neuron, position")
        found: dict[tuple[int, int, int], None] = {}
        for name, number, place in table[columns].itertuples(index=False, name=None):
            layer = self.model.layer(name)
            position = self.capture.position(place, self.row)
            if position > self.position:
                raise OutOfRangeError(f"position {position} is right of the answer's, {self.position}")
            found[layer, self.model.neuron(layer, number), position] = None
        return list(found)

    def read_firing(self, name: str) -> list[tuple[int, SupportsIndex, int]]:
        """A firing as "3.17@5", or "3.17" for a neuron at every position. Raises InputError."""
        neuron, at, place = name.strip().partition("@")
        try:
            place_of_it = read_neuron(neuron)
        except InputError:
            place_of_it = None
        if place_of_it is None or (at and not place.lstrip("-").isdecimal()):
            raise InputError(
                f"a firing is LAYER.NEURON@POSITION, such as 3.17@5, or 3.17 for every position, not {quoted(name)}"
            )
        return [(*place_of_it, p) for p in ([int(place)] if at else range(self.position + 1))]


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Firings(AnswerResult):
    """A score for each neuron of each layer at each position, and what people see of them.

    Attributes:
        scores, coefficients: ``[layer, pos, d_mlp]``, 0 behind the neurons of narrower layers.
        widths: how many neurons each layer has.
        logit: the model's own logit of the target (minus the foil's) at ``position``; shares are of it.
    """

    main = "firings"

    column: ClassVar[str]
    """What the score is called in tables."""

    scores: Float[Tensor, "layer pos d_mlp"]
    coefficients: Float[Tensor, "layer pos d_mlp"]
    widths: tuple[int, ...]
    logit: float

    @cached_property
    def map(self) -> Float[Tensor, "layer pos"]:
        """The sum over all neurons of a layer at a position."""
        return self.scores.double().sum(-1)

    @cached_property
    def neurons(self) -> pd.DataFrame:
        """One row a neuron, its positions summed, largest first: layer, neuron, the score, share."""
        found = rank_cells(["layer", "neuron"], self.widths, None, **{self.column: self.scores.double().sum(1)})
        return add_experts(found.assign(share=found[self.column] / self.shared), experts_in(self.provenance))

    def top(self, k: int | None = 20) -> pd.DataFrame:
        """The ``k`` largest firings (all for None): layer, neuron, position, token, coefficient, the score, share."""
        arrays = {self.column: self.scores, "coefficient": self.coefficients}
        found = rank_cells(["layer", "position", "neuron"], self.widths, k, **arrays)
        tokens = [self.tokens[position] for position in found["position"]]
        found = found.assign(token=tokens, share=found[self.column] / self.shared)
        found = found[["layer", "neuron", "position", "token", "coefficient", self.column, "share"]]
        return add_experts(found, experts_in(self.provenance))

    @property
    def shared(self) -> float:
        """What shares are of: the logit; NaN where that is 0."""
        return self.logit or math.nan

    def shown_firings(self, top: int | None = 20) -> pd.DataFrame:
        """The largest firings: a neuron at a position."""
        return self.top(top)

    @cached_property
    def firings(self) -> pd.DataFrame:
        """All firings, largest first; a firing is a neuron at a position."""
        return self.top(None)

    @property
    def count(self) -> int:
        return sum(self.widths) * self.scores.shape[1]

    @property
    def by_position(self) -> pd.DataFrame:
        """What the neurons of each position come to, largest first, and the layer whose neurons do most there."""
        totals = self.map.sum(0)
        order = totals.abs().argsort(descending=True, stable=True)
        layers = self.map[:, order].abs().argmax(0)
        columns = {
            "token": [self.tokens[position] for position in order.tolist()],
            "position": order.tolist(),
            self.column: totals[order].tolist(),
            "share": (totals[order] / self.shared).tolist(),
            "strongest_layer": layers.tolist(),
            "written_there": self.map[layers, order].tolist(),
        }
        return pd.DataFrame(columns)

    @property
    def shown_map(self) -> Callable[[int | None], Grid]:
        """The sum over all neurons of a layer at a position, the last layer first."""
        values = self.map.tolist()[::-1]
        return lambda _top: Grid(
            rows=tuple(f"layer {layer}" for layer in reversed(range(len(values)))),
            columns=tuple(token(text) for text in self.tokens[: len(values[0])]),
            values=tuple(map(tuple, values)),
            limit=float(self.map.abs().max()) or 1.0,
            unit="logits",
            marked=self.answer.positions[-1],
            leads={
                (row, at): (len(values) - 1 - row, at) for row in range(len(values)) for at in range(len(values[0]))
            },
        )
