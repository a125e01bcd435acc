"""Closed forms for many facts at once, in one layer or spread over several: MEMIT, EMMET and AlphaEdit.

All add ``leftᵀ @ right`` to a layer's values, where the rows of ``right`` are what is still missing of each fact's v*
and ``left`` says which coefficients bring it. They differ in ``left`` alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from ..errors import InputError, UnsupportedModelError, check_count
from ..models.replaying import Replay
from ..models.scoring import padded
from .edit import Edit
from .edit_record import LayerChange
from .preparing import EditPlan, Progress, announce, check_change, check_reaches, find_values, make_edit, numbers_of
from .requests import Request
from .values import FoundValue

SINGULAR = 1e10  # the condition number of KᵀC⁻¹K from which on keys count as the same

Closed = Callable[[int, Float64[Tensor, "n d_mlp"]], Float64[Tensor, "n d_mlp"]]
"""``closed(layer, keys)``: ``left`` for the keys of some facts."""


@dataclass(frozen=True, eq=False)
class ClosedForm:
    """A closed form with all its choices made.

    Attributes:
        method: the editor's name.
        layers: which it changes, ascending.
        closed: gives ``left`` for keys.
        recorded: what an edit says of the choices.
    """

    method: str
    layers: Sequence[int]
    closed: Closed
    recorded: Mapping[str, Any]


def layer_range(plan: EditPlan, layers: int | None) -> list[int]:
    """The layers up to the plan's, ascending; by default a tenth of the depth (5 of 48 for GPT-2 XL), at least one."""
    high = plan.settings.layer
    wanted = math.ceil(plan.model.n_layers / 10) if layers is None else check_count("layers", layers)
    if wanted > high + 1:
        if layers is not None:
            raise InputError(f"layers {layers} is too many: layer {high} has {high} below it")
        wanted = high + 1
    return list(range(high - wanted + 1, high + 1))


def edit_together(plan: EditPlan, form: ClosedForm, force: bool, progress: Progress | None) -> Edit:
    """One edit of all of a plan's requests; what is doubtful about it is warned of."""
    edit = closed_form_edit(plan, range(len(plan.requests)), find_values(plan, progress), form, force)
    announce([edit])
    return edit


def closed_form_edit(
    plan: EditPlan, which: Sequence[int], found: Sequence[FoundValue], form: ClosedForm, force: bool
) -> Edit:
    """The edit of some of a plan's requests, given what was found for each of them."""
    requests = plan.of(which)
    for request, one in zip(requests, found, strict=True):
        check_reaches(plan, request, one)
    changes = spread(plan, requests, found, form.layers, form.closed)
    name = repr(requests[0].fact.name)
    ratio = check_change(plan, changes, name if len(requests) == 1 else f"{len(requests)} facts", force)
    rows = [numbers_of(request, one, change=ratio) for request, one in zip(requests, found, strict=True)]
    recorded = {**plan.value_words(), "layers": list(form.layers), **form.recorded}
    return make_edit(plan, list(which), form.method, changes, rows, recorded)


def keys_of(plan: EditPlan, requests: Sequence[Request], layer: int) -> Float64[Tensor, "n d_mlp"]:
    """The key of each request in a layer, the average over contexts, in the model as it is."""
    return RequestReplay(plan, requests, [layer]).read([], layer)[0]


def spread(
    plan: EditPlan, requests: Sequence[Request], found: Sequence[FoundValue], layers: Sequence[int], closed: Closed
) -> list[LayerChange]:
    """The changes of some layers that together bring each fact's δ to the highest of them.

    From the lowest layer up: keys and what is still missing are read with the changes so far, and a layer takes its
    share of the rest, one part of as many layers as are left.

    Raises: UnsupportedModelError: several layers of a model with norms behind its FFNs.

    Source: Meng et al. 2023 (2210.07229), §4.3 and algorithm 1.
    """
    layout = plan.model.layout
    if len(layers) > 1 and (layout.blocks[layers[-1]].post is not None or layout.write_scale != 1.0):
        raise UnsupportedModelError(
            f"{plan.model.name} norms or scales what its FFNs write before it is added, so what is missing of an edit "
            "cannot be handed from layer to layer: edit one layer (layers=1)"
        )
    text = RequestReplay(plan, requests, layers)
    wanted = text.clean + torch.stack([one.delta.double() for one in found])
    changes: list[LayerChange] = []
    for place, layer in enumerate(layers):
        keys, now = text.read(changes, layer)
        missing = (wanted - now) / (len(layers) - place)
        changes.append(LayerChange(layer, closed(layer, keys), missing))
    return changes


class RequestReplay:
    """The rows of some requests from the lowest layer to the highest, with changes so far."""

    def __init__(self, plan: EditPlan, requests: Sequence[Request], layers: Sequence[int]) -> None:
        rows = [row for request in requests for row in request.rows]
        device = plan.model.device
        tokens, mask = padded([row.tokens for row in rows], device)
        self.replay = Replay(plan.layers, tokens, mask, start=layers[0])
        self.low, self.high = layers[0], layers[-1]
        self.first = self.replay.length - max(row.after for row in rows)
        self.at = torch.tensor([self.replay.length - row.after for row in rows], device=device) - self.first
        self.owner = torch.tensor([i for i, request in enumerate(requests) for _ in request.rows], device=device)
        self.plain = torch.searchsorted(self.owner, torch.arange(len(requests), device=device))
        shares = [plan.settings.weights(len(request.rows)) for request in requests]
        self.weights = torch.cat(shares).to(device)
        self.every = torch.arange(len(rows), device=device)
        self.clean = self.read([], layers[0])[1]

    def read(
        self, changes: Sequence[LayerChange], layer: int
    ) -> tuple[Float64[Tensor, "n d_mlp"], Float64[Tensor, "n d_model"]]:
        """Each request's key in a layer, the average over contexts; for its plain prompt, what the highest leaves."""
        by_layer = {change.layer: change for change in changes}
        keys: list[Tensor] = []

        def change(at: int, part: str, _first: int, written: Tensor, m: Tensor | None) -> Tensor:
            if part != "ffn":
                return written
            assert m is not None
            if at == layer:
                keys.append(m[self.every, self.at].double())
            if at not in by_layer:
                return written
            own = by_layer[at]
            more = (m.double() @ own.left.to(m.device).T) @ own.right.to(m.device)
            return (written.double() + more).to(written.dtype)

        x = self.replay.stream[self.low][:, self.first :]
        with torch.no_grad():
            for at in range(self.low, self.high + 1):
                x = self.replay.run_layer(at, x, self.first, self.every, None, change)
        above = x[self.every, self.at].double()[self.plain]
        averages = torch.zeros(len(self.plain), keys[0].shape[1], dtype=torch.float64, device=x.device)
        averages.index_add_(0, self.owner, self.weights.unsqueeze(1) * keys[0])
        return averages, above


def memit_left(plan: EditPlan, weight: float, ridge: float) -> Closed:
    """(λC + KKᵀ)⁻¹K by rows, by Woodbury: C⁻¹K (λI + KᵀC⁻¹K)⁻¹ (Meng et al. 2023, eq. 14)."""

    def closed(layer: int, keys: Float64[Tensor, "n d_mlp"]) -> Float64[Tensor, "n d_mlp"]:
        solved = plan.moment.solve(layer, keys, ridge)
        inside = weight * torch.eye(len(keys), dtype=keys.dtype, device=keys.device) + keys @ solved.T
        return torch.linalg.solve(inside, solved)

    return closed


def emmet_left(plan: EditPlan, epsilon: float, ridge: float) -> Closed:
    """(KᵀC⁻¹K + εI)⁻¹KᵀC⁻¹ (Gupta et al. 2024, 2403.14236): every key goes exactly where it should at ε = 0.

    ε is relative to the mean diagonal of KᵀC⁻¹K.
    """

    def closed(layer: int, keys: Float64[Tensor, "n d_mlp"]) -> Float64[Tensor, "n d_mlp"]:
        solved = plan.moment.solve(layer, keys, ridge)
        inside = keys @ solved.T
        unit = torch.eye(len(keys), dtype=keys.dtype, device=keys.device)
        inside = inside + epsilon * inside.diagonal().mean() * unit
        if float(torch.linalg.cond(inside)) > SINGULAR:
            raise InputError(
                f"{len(keys)} facts have keys so alike in layer {layer} that not each can go its own way: "
                "edit them one by one, or with epsilon above 0"
            )
        return torch.linalg.solve(inside, solved)

    return closed


def alphaedit_left(
    plan: EditPlan, thresholds: Mapping[int, float], penalty: float, previous: Mapping[int, Float64[Tensor, "p d_mlp"]]
) -> Closed:
    """(P(KKᵀ + K_pK_pᵀ) + λI)⁻¹PK by rows, P the projection on what the corpus hardly uses (Fang et al. 2024).

    PK lies in P's image, where the matrix is P(…)P + λI: solved there by Woodbury in as many dimensions as keys.
    """

    def closed(layer: int, keys: Float64[Tensor, "n d_mlp"]) -> Float64[Tensor, "n d_mlp"]:
        projection = plan.moment.null_projection(layer, thresholds[layer]).to(keys.device)
        inside = keys @ projection
        both = torch.cat([inside, previous[layer] @ projection]) if layer in previous else inside
        gram = both @ both.T + penalty * torch.eye(len(both), dtype=keys.dtype, device=keys.device)
        # (λI + BBᵀ)⁻¹ PK = (PK − B (λI + BᵀB)⁻¹ Bᵀ PK) / λ
        return (inside - torch.linalg.solve(gram, both @ inside.T).T @ both) / penalty

    return closed
