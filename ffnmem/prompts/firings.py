"""What every neuron, firing at every position, has to do with one answer: the tables that such results share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, SupportsIndex

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..core.errors import InputError, OutOfRangeError, check_count
from ..core.provenance import Provenance
from ..core.sheets import Column, Content, Prompt, Span, Table, decimals, rows, token
from ..models.attention import FrozenAttention, KnownFFNs, frozen_attention
from ..models.model import Model
from ..models.norms import at_least_float32
from ..models.residual import FinalNorm, model_logits
from .attribution import largest, plain_records
from .captures import Capture, foil_after, token_after

POSITIONS = 12  # rows of the table by position


@dataclass(frozen=True, eq=False)
class Asked:
    """One answer of one prompt of a capture, as users name it, resolved."""

    capture: Capture
    row: int
    position: int
    target: int
    foil: int | None

    @classmethod
    def of(
        cls,
        capture: Capture,
        target: str | SupportsIndex | None,
        foil: str | SupportsIndex | None,
        position: SupportsIndex,
        prompt: SupportsIndex | None,
        first_token: bool,
    ) -> Asked:
        """Raises InputError: a capture of some layers or of what the model is no longer, or no such token.
        OutOfRangeError: no such position or prompt."""
        if capture.residual is None:
            raise InputError("attribution needs every layer: capture(model, prompt) without layers=")
        capture.check_repeatable()  # the model's attention, if not all of it, is run once more
        row, pos = capture.row(prompt), capture.position(position, prompt)
        if target is None:
            target = int(capture.logits_at(row, pos).argmax())
        target_id = token_after(capture, target, row, pos, first_token)
        foil_id = foil_after(capture, foil, [target_id], row, pos, first_token)
        return cls(capture, row, pos, target_id, foil_id)

    @property
    def model(self) -> Model:
        return self.capture.model

    @property
    def tokens(self) -> Int[Tensor, " pos"]:
        """Up to the answer; later ones cannot reach it."""
        return self.capture.tokens[self.row, : self.position + 1]

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(self.capture.token_strings(self.row)[: self.position + 1])

    @property
    def target_text(self) -> str:
        return self.model.token_strings([self.target])[0]

    @property
    def foil_text(self) -> str | None:
        return None if self.foil is None else self.model.token_strings([self.foil])[0]

    def read(self) -> tuple[Float[Tensor, " d_model"], float, float]:
        """The direction of the stream that the answer is read along, with the final norm's scale as it was; what biases
        add to it; and the model's own logit."""
        residual, at = self.capture.residual, [self.position]
        assert residual is not None
        targets = torch.tensor([self.target], device=self.capture.tokens.device)
        norm = FinalNorm(self.model)
        directions, constant = norm.directions(targets, self.foil)
        scale = norm.scale(at_least_float32(residual.final_in[self.row, at]))
        logit = model_logits(self.model, residual.final_out[self.row, at], targets, self.foil)
        return directions[0] / scale, float(constant), float(logit)

    def attentions(self) -> list[FrozenAttention]:
        """Every attention layer of this prompt's pass up to the answer, frozen."""
        kept = self.capture.attended
        if kept is not None and len(self.tokens) == self.capture.tokens.shape[1]:
            return frozen_attention(self.model, self.tokens, kept)
        return frozen_attention(self.model, self.tokens, self.known_ffns())

    def known_ffns(self) -> KnownFFNs:
        """What the capture knows of the FFNs of that pass."""
        capture, own = self.capture, (self.row, slice(0, self.position + 1))
        assert capture.residual is not None
        pre, linear, out = (
            {layer: tensor[own] for layer, tensor in held.items()}
            for held in (capture.pre, capture.linear, capture.ffn_out)
        )
        return KnownFFNs(pre, linear, out, capture.residual.final_in[own])

    def answer(self) -> dict[str, Any]:
        """What every result says of the question and the answer, by the names of its fields."""
        return {
            "tokens": self.texts,
            "starts_with_bos": self.capture.starts_with_bos,
            "position": self.position,
            "target": self.target_text,
            "foil": self.foil_text,
        }

    def triples(self, firings: Any) -> list[tuple[int, int, int]]:
        """Named firings as (layer, neuron, position), each once, in their order.

        Args:
            firings: a table with these columns, such triples, or a result that has them as ``.firings``.

        Raises InputError: what names none. OutOfRangeError: a firing that this prompt does not have.
        """
        firings = getattr(firings, "firings", firings)
        columns = ("layer", "neuron", "position")
        if isinstance(firings, pd.DataFrame):
            missing = [name for name in columns if name not in firings]
            if missing:
                raise InputError(f"firings has no column {missing[0]}: it needs layer, neuron, position")
            firings = firings[list(columns)].itertuples(index=False, name=None)
        elif isinstance(firings, str) or not isinstance(firings, Iterable):
            raise InputError(f"firings are scores, a table, or (layer, neuron, position), not {firings!r}")
        found: dict[tuple[int, int, int], None] = {}
        for triple in firings:
            if not isinstance(triple, tuple | list) or len(triple) != 3:
                raise InputError(f"a firing is (layer, neuron, position), not {triple!r}")
            layer = self.model.layer(triple[0])
            neuron = self.model.neuron(layer, triple[1])
            position = self.capture.position(triple[2], self.row)
            if position > self.position:
                raise OutOfRangeError(f"position {position} is right of the answer's, {self.position}")
            found[layer, neuron, position] = None
        return list(found)


def answer_facts(
    tokens: tuple[str, ...], position: int, starts_with_bos: bool, target: str, foil: str | None, logit: float
) -> dict[str, Content]:
    """The question and the answer, at the head of a sheet."""
    return {
        "prompt": Prompt(tokens, position, starts_with_bos),
        "target": token(target, "strong"),
        **({} if foil is None else {"foil": token(foil, "strong")}),
        "logit": f"{logit:.3f}{'' if foil is None else ', the target’s minus the foil’s'}",
    }


def answer_values(one: Any) -> dict[str, Any]:
    """The question and the answer of a result, as plain values."""
    return {
        "prompt_tokens": list(one.tokens),
        "position": one.position,
        "target": one.target,
        "foil": one.foil,
        "logit": one.logit,
    }


class Firings(ABC):
    """A number for each neuron of each layer at each position, and what people see of them.

    Attributes:
        coefficients: ``[layer, pos, d_mlp]``.
        logit: the model's own logit of the target (minus the foil's) at ``position``; shares are of it.
        tokens: the prompt's tokens up to ``position``; later ones cannot reach it.
    """

    column: ClassVar[str]
    """What the number is called in tables."""

    coefficients: Float[Tensor, "layer pos d_mlp"]
    logit: float
    tokens: tuple[str, ...]
    starts_with_bos: bool
    position: int
    target: str
    foil: str | None
    provenance: Provenance

    @property
    @abstractmethod
    def of_firings(self) -> Float[Tensor, "layer pos d_mlp"]:
        """The numbers."""

    @cached_property
    def map(self) -> Float[Tensor, "layer pos"]:
        """The sum over all neurons of a layer at a position."""
        return self.of_firings.double().sum(-1)

    @cached_property
    def neurons(self) -> pd.DataFrame:
        """One row a neuron, its positions summed, largest first: layer, neuron, the number, share."""
        summed = self.of_firings.double().sum(1).cpu().numpy()
        order = largest(summed.ravel(), None)
        layer, neuron = np.unravel_index(order, summed.shape)
        found = summed.ravel()[order]
        return pd.DataFrame({"layer": layer, "neuron": neuron, self.column: found, "share": self.shares(found)})

    def top(self, k: int = 20) -> pd.DataFrame:
        """The ``k`` largest firings: layer, neuron, position, token, coefficient, the number, share."""
        flat = at_least_float32(self.of_firings).cpu().numpy()
        order = largest(flat.ravel(), check_count("top", k))
        layer, position, neuron = np.unravel_index(order, flat.shape)
        found = flat.ravel()[order].astype(np.float64)
        return pd.DataFrame(
            {
                "layer": layer,
                "neuron": neuron,
                "position": position,
                "token": [self.tokens[p] for p in position],
                "coefficient": self.coefficients[layer, position, neuron].double().cpu().numpy(),
                self.column: found,
                "share": self.shares(found),
            }
        )

    def shares(self, found: Float[np.ndarray, "*n"]) -> Float[np.ndarray, "*n"]:
        """Of the logit."""
        return found / (self.logit if self.logit else np.nan)

    def to_frame(self) -> pd.DataFrame:
        """One row a neuron and position, largest first; see :meth:`top`."""
        return self.top(self.of_firings.numel())

    def answer_facts(self) -> dict[str, Content]:
        """The question and the answer, at the head of the sheet."""
        return answer_facts(self.tokens, self.position, self.starts_with_bos, self.target, self.foil, self.logit)

    def answer_fields(self, top: int) -> dict[str, Any]:
        """The question, the answer and its largest firings, as plain values."""
        return {
            **answer_values(self),
            "firings": plain_records(self.top(top)),
            "map": self.map.tolist(),
        }

    def position_table(self, what: str) -> Table:
        """What the memories of each position come to, largest first, and the layer that does most there."""
        totals = self.map.sum(0)
        places = decimals(totals.tolist())
        shown = rows(
            Column("fired at", left=True),
            Column("position", "count"),
            Column(what, "number", places=places, sign=True, bars=True),
            Column("share", "percent"),
            Column("strongest layer", left=False),
        )
        order = totals.abs().argsort(descending=True, stable=True)[:POSITIONS].tolist()
        for position in order:
            by_layer = self.map[:, position]
            layer = int(by_layer.abs().argmax())
            total = float(totals[position])
            shown.add(
                Span("BOS") if position == 0 and self.starts_with_bos else token(self.tokens[position]),
                position,
                total,
                total / self.logit if self.logit else float("nan"),
                f"{layer}: {float(by_layer[layer]):+.{places}f}",
            )
        others = [p for p in range(len(totals)) if p not in order]
        if others:
            shown.add(f"{len(others)} more", None, float(totals[others].sum()))
        return shown.table()

    def firing_table(self, top: int) -> Table:
        """Single neurons at single positions."""
        shown = rows(
            Column("neuron", "neuron"),
            Column("fired at", "token", limit=20),
            Column("position", "count"),
            Column("coefficient", "number"),
            Column(self.column, "number", sign=True, bars=True),
            Column("share", "percent"),
        )
        for row in self.top(top).to_dict("records"):
            at = (int(row["layer"]), int(row["neuron"]))
            shown.add(at, row["token"], int(row["position"]), row["coefficient"], row[self.column], row["share"])
        return shown.table()
