"""``attribute_paths``: a token's logit as a sum over the memories of *every* position, carried there by attention."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from ..core.arguments import public
from ..core.errors import InputError, check_count
from ..core.provenance import Provenance
from ..core.sheets import Column, Content, Facts, Origin, Prompt, Sheet, Span, Table, decimals, rows, token
from ..models.attention import frozen_attention
from ..models.norms import at_least_float32
from ..models.residual import FinalNorm, model_logits, pulled_through
from ..models.turns import in_turn
from ..show.result import Result
from .attribution import plain_records
from .captures import Capture, token_after

POSITIONS = 12  # rows of the table by position


@public
@dataclass(frozen=True, eq=False, repr=False)
class PathAttribution(Result):
    """The logit at one position as a sum over memories at all positions. Made by :func:`ffnmem.attribute_paths`.

    Attributes:
        neuron_logits: ``[layer, pos, d_mlp]``, what each neuron, firing at each position, adds to the logit.
        coefficients: ``[layer, pos, d_mlp]``.
        components: one row a component: component, layer, logit; they sum to the logit.
        logit: the model's own logit of the target (minus the foil's) at ``position``.
        tokens: the prompt's tokens up to ``position``; later ones cannot reach it.
    """

    neuron_logits: Float[Tensor, "layer pos d_mlp"]
    coefficients: Float[Tensor, "layer pos d_mlp"]
    components: pd.DataFrame
    logit: float
    tokens: tuple[str, ...]
    starts_with_bos: bool
    position: int
    target: str
    target_id: int
    foil: str | None
    provenance: Provenance

    @property
    def error(self) -> float:
        """\\|sum of components − logit\\|."""
        return abs(float(self.components["logit"].sum()) - self.logit)

    @cached_property
    def map(self) -> Float[Tensor, "layer pos"]:
        """What all memories of a layer at a position add to the logit (their output bias left out)."""
        return self.neuron_logits.double().sum(-1)

    @cached_property
    def neurons(self) -> pd.DataFrame:
        """One row a neuron, its positions summed, largest \\|logit\\| first: layer, neuron, logit, share."""
        summed = self.neuron_logits.double().sum(1).cpu().numpy()
        order = np.argsort(-np.abs(summed).ravel(), kind="stable")
        layer, neuron = np.unravel_index(order, summed.shape)
        logit = summed.ravel()[order]
        return pd.DataFrame({"layer": layer, "neuron": neuron, "logit": logit, "share": self.shares(logit)})

    def top(self, k: int = 20) -> pd.DataFrame:
        """The ``k`` firings with the largest \\|logit\\|: layer, neuron, position, token, coefficient, logit, share."""
        flat = self.neuron_logits.double().cpu().numpy()
        order = np.argsort(-np.abs(flat).ravel(), kind="stable")[: check_count("top", k)]
        layer, position, neuron = np.unravel_index(order, flat.shape)
        logit = flat.ravel()[order]
        return pd.DataFrame(
            {
                "layer": layer,
                "neuron": neuron,
                "position": position,
                "token": [self.tokens[p] for p in position],
                "coefficient": self.coefficients.double().cpu().numpy()[layer, position, neuron],
                "logit": logit,
                "share": self.shares(logit),
            }
        )

    def shares(self, logits: Float[np.ndarray, "*n"]) -> Float[np.ndarray, "*n"]:
        return logits / (self.logit if self.logit else np.nan)

    def to_dict(self, top: int = 20) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "prompt_tokens": list(self.tokens),
            "position": self.position,
            "target": self.target,
            "foil": self.foil,
            "logit": self.logit,
            "error": self.error,
            "firings": plain_records(self.top(top)),
            "map": self.map.tolist(),
            "components": plain_records(self.components),
            "provenance": self.provenance.to_dict(),
        }

    def to_frame(self) -> pd.DataFrame:
        """One row a neuron and position, largest \\|logit\\| first; see :meth:`top`."""
        return self.top(self.neuron_logits.numel())

    def summary(self) -> str:
        against = "" if self.foil is None else f" against {self.foil!r}"
        return f"of {self.target!r}{against}, logit {self.logit:.3f}, error {self.error:.1e}"

    def sheet(self, top: int = 10) -> Sheet:
        """The answer, what the memories of each position add to it, and the ``top`` single firings."""
        memories = float(self.map.sum())
        rest = float(self.components["logit"].sum()) - memories
        facts: dict[str, Content] = {
            "prompt": Prompt(self.tokens, self.position, self.starts_with_bos),
            "target": token(self.target, "strong"),
            **({} if self.foil is None else {"foil": token(self.foil, "strong")}),
            "logit": f"{self.logit:.3f}{'' if self.foil is None else ', the target’s minus the foil’s'}",
            "memories": f"wrote {memories:+.3f} of it; embeddings and biases {rest:+.3f}; error {self.error:.1e}",
        }
        return Sheet.of(Facts(facts), self.position_table(), self.firing_table(top), Origin(self.provenance.to_dict()))

    def position_table(self) -> Table:
        """What the memories of each position add, largest first, and the layer that adds most there."""
        totals = self.map.sum(0)
        places = decimals(totals.tolist())
        shown = rows(
            Column("fired at", left=True),
            Column("position", "count"),
            Column("memories", "number", places=places, sign=True, bars=True),
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
            Column("logit", "number", sign=True, bars=True),
            Column("share", "percent"),
        )
        for row in self.top(top).itertuples():
            at = (int(row.layer), int(row.neuron))
            shown.add(at, row.token, int(row.position), row.coefficient, row.logit, row.share)
        return shown.table()


@public
@in_turn
def attribute_paths(
    capture: Capture,
    target: str | int | None = None,
    foil: str | int | None = None,
    position: int = -1,
    *,
    prompt: int = 0,
    first_token: bool = False,
) -> PathAttribution:
    """Which memories, at which positions, wrote this answer: directly, or carried there by attention.

    :func:`ffnmem.attribute` sees only what is written at the answer's own position; what a memory wrote at the subject
    counts there as attention's. Here the attention layers are opened: with their patterns and every norm's scale as
    they were (frozen), attention is linear in what stands at each position, so the logit is an exact sum over the
    embeddings and over every neuron of every layer *at every position*, along all paths through attention. FFNs are
    sources, never paths: that a memory made a later memory fire is not counted.

    Args: as :func:`ffnmem.attribute`, at one position.

    Returns:
        A :class:`PathAttribution`: ``.top(k)`` (layer, neuron, position, token, coefficient, logit, share), ``.map``
        ``[layer, pos]``, ``.components``, ``.logit`` and ``.error``.

    Raises: as :func:`ffnmem.attribute`; HookError if a layer does not show its attention pattern.

    Source: the path expansion with frozen attention of Elhage et al. 2021, "A Mathematical Framework for Transformer
    Circuits", with FFN outputs as sources.
    """
    if capture.residual is None:
        raise InputError("attribution needs every layer: capture(model, prompt) without layers=")
    capture.check_repeatable()  # its attention patterns are read in a pass of their own
    model, row, pos = capture.model, capture.row(prompt), capture.position(position, prompt)
    if target is None:
        target = int(capture.logits_at(row, pos).argmax())
    target_id = token_after(capture, target, row, pos, first_token)
    foil_id = None if foil is None else token_after(capture, foil, row, pos, first_token, "foil")
    targets = torch.tensor([target_id], device=capture.tokens.device)
    neurons, rows = sum_over_paths(capture, row, pos, targets, foil_id)
    span = slice(0, pos + 1)
    coefficients = [at_least_float32(capture.coefficients[layer][row, span]) for layer in capture.layers]
    return PathAttribution(
        neuron_logits=neurons,
        coefficients=torch.stack(coefficients),
        components=pd.DataFrame(rows, columns=["component", "layer", "logit"]).astype({"layer": "Int64"}),
        logit=float(model_logits(model, capture.residual.final_out[row, [pos]], targets, foil_id)),
        tokens=tuple(capture.token_strings(prompt)[span]),
        starts_with_bos=capture.starts_with_bos,
        position=pos,
        target=model.token_strings([target_id])[0],
        target_id=target_id,
        foil=None if foil_id is None else model.token_strings([foil_id])[0],
        provenance=capture.provenance.with_settings(frozen="attention patterns, norm scales"),
    )


def sum_over_paths(
    capture: Capture, row: int, pos: int, targets: Tensor, foil: int | None
) -> tuple[Float[Tensor, "layer pos d_mlp"], list[tuple[str, int | None, float]]]:
    """Walk the logit's direction down through the layers, collecting what each writes along it."""
    residual, model, span = capture.residual, capture.model, slice(0, pos + 1)
    assert residual is not None
    norm = FinalNorm(model)
    u, constant = norm.directions(targets, foil)
    scale = norm.scale(at_least_float32(residual.final_in[row, [pos]]))
    directions = torch.zeros(pos + 1, model.d_model, dtype=u.dtype, device=u.device)
    directions[pos] = u[0] / scale

    def along(write: Tensor) -> float:
        return float((at_least_float32(write[row, span]).double() * directions.double()).sum())

    attentions = frozen_attention(model, capture.tokens[row, span])
    neurons: list[Tensor] = []
    rows: list[tuple[str, int | None, float]] = [("final bias", None, float(constant))]
    for layer in reversed(range(model.n_layers)):
        ffn = model.ffn[layer]
        along_ffn = pulled_through(model, layer, directions, capture.ffn_out[layer][row, span])
        logits = at_least_float32(capture.coefficients[layer][row, span]) * (
            along_ffn @ at_least_float32(ffn.values.detach()).T
        )
        neurons.append(logits)
        if ffn.value_bias is not None:
            rows.append(("ffn bias", layer, float(along_ffn.double().sum(0) @ ffn.value_bias.detach().double())))
        rows.append(("ffn", layer, float(logits.double().sum())))
        pulled, added = attentions[layer].pull(directions)
        rows.append(("attention bias", layer, float(added)))
        directions = directions + pulled
    if residual.position is not None:
        rows.append(("position", None, along(residual.position)))
    rows.append(("embedding", None, along(residual.embedding)))
    return torch.stack(neurons[::-1]), rows[::-1]
