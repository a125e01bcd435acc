"""``memit``, ``alphaedit``: many facts rewritten in closed form, in one layer or some."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from ..core.errors import InputError, UnsupportedModelError
from ..core.neuron_names import LayerName
from ..core.progress import Progress
from ..core.types import Count, Positive, Seed, checked
from ..facts.fact import Fact, as_facts
from ..models.model import Model
from .changes import EditedLayer, RowChanges
from .edit import Edit
from .moments import RIDGE
from .preparing import (
    EditPlan,
    Moment,
    Ridge,
    Settings,
    announce,
    check_reaches,
    find_values,
    make_edit,
    plan_edits,
    value_numbers,
)
from .published import UNNAMED, published
from .requests import Request, request_for
from .settings import EditSettings, is_published
from .values import BATCH_TOKENS, Directions, FoundValue, RequestRows, request_batches

# Closed forms for many facts at once, in one layer or spread over several: MEMIT and AlphaEdit.
#
# All add `leftᵀ @ right` to a layer's values, where the rows of `right` are what is still missing of each fact's v*
# and `left` says which coefficients bring it. They differ in `left` alone.

Keys = Float64[Tensor, "n d_mlp"]
PreviousKeys = Float64[Tensor, "p d_mlp"]
Left = Callable[[int, Keys, PreviousKeys], Keys]
"""``left(layer, keys, previous)`` for the keys of some facts, with the keys that shall stay where they are."""


@dataclass(frozen=True, eq=False)
class ClosedForm:
    """A closed form with all its choices made.

    Attributes:
        method: the editor's name.
        layers: which it changes, ascending.
        left: which coefficients bring what is missing.
        recorded: what an edit says of the choices.
        ridge: with which C is inverted, also to tell how rare a key is.
        previous: by layer, the keys of facts that were edited before, which shall stay where they are.
    """

    method: str
    layers: Sequence[int]
    left: Left
    recorded: Mapping[str, Any]
    ridge: float = RIDGE
    previous: Mapping[int, PreviousKeys] = field(default_factory=dict)


def layer_range(plan: EditPlan, layers: int | None, editor: str) -> list[int]:
    """The layers up to the plan's, ascending; by default a tenth of the depth (5 of 48 for GPT-2 XL), at least one.

    A plan of the editor's published program has as many as are published for the model.
    """
    high = plan.settings.layer
    if layers is not None and layers > high + 1:
        raise InputError(f"layers {layers} is too many: layer {high} has {high} below it")
    named = published(editor, plan.model.name) if plan.published else None
    usual = math.ceil(plan.model.n_layers / 10) if named is None else len(named.layers)
    wanted = usual if layers is None else layers
    return list(range(max(0, high - wanted + 1), high + 1))


def edit_together(
    plan: EditPlan,
    form: ClosedForm,
    force: bool,
    progress: Progress | None,
    previous: Fact | Iterable[Fact] | None = None,
) -> Edit:
    """One edit of all of a plan's requests, which holds the keys of ``previous`` facts where they are now; it is
    warned of where it changes a layer much."""
    if previous is not None:
        protected = as_facts(previous, least=0)
        # Keys depend on no target.
        requests = [request_for(plan.model, fact, "", (), plan.contexts) for fact in protected]
        keys = {layer: average_keys(plan, requests, layer) for layer in form.layers} if requests else {}
        recorded = {**form.recorded, "previous": [fact.id for fact in protected]}
        form = replace(form, previous=keys, recorded=recorded)
    found = find_values(plan, progress, find_directions(plan, ridge=form.ridge))
    edit = closed_form_edit(plan, range(len(plan.requests)), found, form, force)
    announce([edit])
    return edit


def closed_form_edit(
    plan: EditPlan, which: Sequence[int], found: Sequence[FoundValue], form: ClosedForm, force: bool
) -> Edit:
    """The edit of some of a plan's requests, given what was found for each of them."""
    requests = plan.of(which)
    for request, one in zip(requests, found, strict=True):
        check_reaches(plan, request, one)
    found, lengths = lengthen_values(plan, found, form.ridge)
    changes = spread_changes(plan, requests, found, form)
    rows = [{**value_numbers(request, one), **own} for request, one, own in zip(requests, found, lengths, strict=True)]
    recorded = {**plan.value_words(), "layers": list(form.layers), **form.recorded}
    return make_edit(plan, which, form.method, changes, rows, recorded, force)


def lengthen_values(
    plan: EditPlan, found: Sequence[FoundValue], ridge: float
) -> tuple[list[FoundValue], list[dict[str, float]]]:
    """What was found, each δ as long as the settings have it for a key so rare; and how rare, how much longer."""
    keys = torch.stack([one.key for one in found])
    rarities = plan.moment.rarity(plan.settings.layer, keys, ridge, plan.neurons).tolist()
    times = [choose_stretch(plan.settings, one, rarity) for one, rarity in zip(found, rarities, strict=True)]
    longer = [one if by == 1.0 else replace(one, delta=one.delta * by) for one, by in zip(found, times, strict=True)]
    return longer, [{"rarity": rarity, "stretch": by} for rarity, by in zip(rarities, times, strict=True)]


def choose_stretch(settings: EditSettings, found: FoundValue, rarity: float) -> float:
    """How many times as long the settings have δ for a key so rare, within their clamp.

    Where they set out from rarity, a δ that did not make the target likely enough is no direction to go further in.
    """
    if settings.stretch == 1.0 or (settings.rare > 0 and not (rarity >= settings.rare and found.nll <= settings.stop)):
        return 1.0
    return max(1.0, min(settings.stretch, found.longest / max(float(found.delta.norm()), 1e-30)))


def find_directions(plan: EditPlan, keys: str | None = None, ridge: float | None = None) -> Directions | None:
    """C⁻¹k* over k*ᵀC⁻¹k* of averaged keys, where v* is looked for with ΔW itself; None where it is not."""
    if plan.keys(keys) == "original":
        return None

    def directions(averaged: Keys) -> Keys:
        solved = plan.moment.solve(plan.settings.layer, averaged, plan.ridge(ridge), plan.neurons)
        return solved / (solved * averaged).sum(1, keepdim=True)

    return directions


def average_keys(plan: EditPlan, requests: Sequence[Request], layer: int) -> Keys:
    """The key of each request in a layer, the average over contexts, in the model as it is."""
    return RequestReplays(plan, requests, [layer]).read([], layer)[0]


def spread_changes(
    plan: EditPlan, requests: Sequence[Request], found: Sequence[FoundValue], form: ClosedForm
) -> list[EditedLayer]:
    """The changes of a closed form's layers that together bring each fact's δ to the highest of them.

    From the lowest layer up: keys and what is still missing are read with the changes so far, and a layer takes its
    share of the rest, one part of as many layers as are left.

    Raises: UnsupportedModelError: several layers of a model with norms behind its FFNs.

    Source: Meng et al. 2023 (2210.07229), §4.3 and algorithm 1.
    """
    layout, layers = plan.model.layout, form.layers
    if len(layers) > 1 and (layout.blocks[layers[-1]].post is not None or layout.write_scale != 1.0):
        raise UnsupportedModelError(
            f"{plan.model.name} norms or scales what its FFNs write before it is added, so what is missing of an edit "
            "cannot be handed from layer to layer: edit one layer (layers=1)"
        )
    texts = RequestReplays(plan, requests, layers)
    deltas = torch.stack([one.delta.double() for one in found])
    wanted = None
    changes: list[EditedLayer] = []
    for place, layer in enumerate(layers):
        keys, now = texts.read(changes, layer)
        wanted = now + deltas if wanted is None else wanted
        missing = (wanted - now) / (len(layers) - place)
        changes.append(EditedLayer(layer, form.left(layer, keys, form.previous.get(layer, keys[:0])), missing))
    return changes


class RequestReplays:
    """The rows of some requests from the lowest layer to the highest, with changes so far.

    Those that fit into a batch are kept from layer to layer; more are replayed a batch at a time, in each layer anew,
    so that memory does not grow with how many facts are edited together.
    """

    def __init__(self, plan: EditPlan, requests: Sequence[Request], layers: Sequence[int]) -> None:
        self.plan, self.requests, self.layers = plan, requests, layers
        self.chunks = [sorted(chunk) for chunk in request_batches(requests, BATCH_TOKENS, whole=True)]
        self.kept = self.replay(self.chunks[0]) if len(self.chunks) == 1 else None

    def replay(self, chunk: Sequence[int]) -> RequestReplay:
        return RequestReplay(self.plan, [self.requests[i] for i in chunk], self.layers)

    def read(self, changes: Sequence[EditedLayer], layer: int) -> tuple[Keys, Float64[Tensor, "n d_model"]]:
        """Each request's key in a layer, the average over contexts; for its plain prompt, what the highest leaves."""
        edited = RowChanges([changes])
        found = [(self.kept or self.replay(chunk)).read(edited, layer) for chunk in self.chunks]
        order = torch.tensor([i for chunk in self.chunks for i in chunk]).argsort()
        keys, above = (torch.cat(parts) for parts in zip(*found, strict=True))
        return keys[order.to(keys.device)], above[order.to(above.device)]


class RequestReplay(RequestRows):
    """The rows of requests that fit into a batch, and the layers from the lowest to the highest."""

    def __init__(self, plan: EditPlan, requests: Sequence[Request], layers: Sequence[int]) -> None:
        super().__init__(plan.layers, requests, plan.settings, layers[0], essence=False)
        self.low, self.high = layers[0], layers[-1]
        if len(layers) > 1:  # changes act at every position, and what they write before the lookup is attended to
            self.first = 0
        self.at = self.lookup - self.first

    def read(self, edited: RowChanges, layer: int) -> tuple[Keys, Float64[Tensor, "n d_model"]]:
        """What :meth:`RequestReplays.read` says, of these."""
        keys: list[Tensor] = []

        def change(at: int, part: str, first: int, written: Tensor, m: Tensor | None) -> Tensor:
            if part == "ffn" and at == layer:
                assert m is not None
                keys.append(m[self.every, self.at].double())
            return edited(at, part, first, written, m)

        x = self.replay.stream[self.low][:, self.first :]
        with torch.no_grad():
            for at in range(self.low, self.high + 1):
                x = self.replay.run_layer(at, x, self.first, self.every, None, change)
        above = x[self.every, self.at].double()[self.plain]
        averages = torch.zeros(len(self.plain), keys[0].shape[1], dtype=torch.float64, device=x.device)
        averages.index_add_(0, self.owner, self.key_weights.unsqueeze(1) * keys[0])
        return averages, above


# `memit`: many facts rewritten at once, over several layers.

SHARE = 0.1  # of d_mlp, the mean of kᵀC⁻¹k over the corpus, for other models


@checked
def memit(
    model: Model,
    facts: Fact | str | Iterable[Fact],
    target: str | None = None,
    *,
    subject: str | None = None,
    layer: LayerName | None = None,
    layers: Count | None = None,
    weight: Positive | None = None,
    norm: Ridge = 0.0,
    previous: Fact | Iterable[Fact] = (),
    moment: Moment = None,
    ridge: Ridge | None = None,
    contexts: Sequence[str] | None = None,
    seed: Seed = 0,
    settings: Settings = None,
    force: bool = False,
    progress: Progress | None = None,
) -> Edit:
    """Rewrite facts together: least squares over their keys and the corpus', spread over several layers.

    Each layer's values get (λC + KKᵀ)⁻¹ K Rᵀ, R being the layer's share of what is still missing of each fact's δ above
    the highest layer. Unlike :func:`ffnmem.rome` it gives way where facts or the corpus disagree: at one fact its key
    goes the share kᵀC⁻¹k / (λ + kᵀC⁻¹k) of the way in each layer. v* is found as :func:`ffnmem.rome` finds
    it, so ‖δ‖ is clamped in units of what the FFN writes; the published program does at .75 of the residual stream's
    (``settings="published"``).

    Args:
        model, facts, target, subject, moment, ridge, contexts, seed, settings, force, progress: as
            :func:`ffnmem.rome` has them; contexts also of the published program, which samples five.
        layer: the highest layer that is edited; default as :func:`rome` has it.
        layers: how many layers up to it share the edit; default a tenth of the depth, as published for GPT-2 XL; those
            published for the model where ``settings`` are "published".
        weight: λ; default the published one, else a tenth of d_mlp (which is the mean of kᵀC⁻¹k over the corpus).
        norm: λₙ, the weight of the change's own size, which is added to the diagonal of λC.
        previous: facts edited before, whose keys (K_p) shall stay where they are: K_pK_pᵀ is added, too.

    Returns: One :class:`Edit` of all facts.

    Raises: as :func:`ffnmem.rome`.

    Source: Meng et al. 2023 (2210.07229), eq. 14 and algorithm 1; norm and previous: Gupta et al. 2025 (2502.01636).
    """
    plan = plan_edits(model, facts, target, subject, layer, moment, contexts, seed, settings, procedure="memit")
    return edit_together(plan, memit_form(plan, layers, weight, norm, ridge), force, progress, previous)


def memit_form(
    plan: EditPlan,
    layers: int | None = None,
    weight: float | None = None,
    norm: float | None = None,
    ridge: float | None = None,
) -> ClosedForm:
    """MEMIT's closed form for a plan, with the published numbers, else ours.

    (λC + λₙI + K_pK_pᵀ + KKᵀ)⁻¹K by rows (Meng et al. 2023, eq. 14; Gupta et al. 2025, 2502.01636): by Woodbury, with
    B = [K, K_p] and M = C + λₙ/λ·I, M⁻¹B (λI + BᵀM⁻¹B)⁻¹, of which K's columns are kept.
    """
    moment, named = plan.moment, published("memit", plan.model.name)
    where, ridge = layer_range(plan, layers, "memit"), plan.ridge(ridge)
    plan.check_moment(where)
    if weight is None:
        weight = SHARE * plan.model.ffn[where[-1]].d_mlp if named is None else named.weight
    norm = norm or 0.0

    def left(layer: int, keys: Keys, previous: PreviousKeys) -> Keys:
        both = torch.cat([keys, previous])
        own = ridge + norm / (weight * moment.mean_diagonal(layer)) if norm else ridge
        solved = moment.solve(layer, both, own)
        inside = weight * torch.eye(len(both), dtype=keys.dtype, device=keys.device) + both @ solved.T
        return torch.linalg.solve(inside, solved)[: len(keys)]

    recorded = {"weight": weight, "norm": norm, **plan.moment_words(), "ridge": ridge}
    return ClosedForm("memit", where, left, recorded, ridge)


# `alphaedit`: facts rewritten in directions that the corpus hardly uses.


@checked
def alphaedit(
    model: Model,
    facts: Fact | str | Iterable[Fact],
    target: str | None = None,
    *,
    subject: str | None = None,
    layer: LayerName | None = None,
    layers: Count | None = None,
    threshold: float | None = None,
    penalty: Positive | None = None,
    previous: Fact | Iterable[Fact] = (),
    moment: Moment = None,
    contexts: Sequence[str] | None = None,
    seed: Seed = 0,
    settings: Settings = None,
    force: bool = False,
    progress: Progress | None = None,
) -> Edit:
    """Rewrite facts together, moving only what lies in the null space of the corpus' keys.

    The layer's values get (P(KKᵀ + K_pK_pᵀ) + λI)⁻¹ PK Rᵀ, P being the projection on the eigenvectors of C below a
    threshold: keys in the other directions are not touched at all. Spread over layers as :func:`ffnmem.editing.memit`
    does.

    Args:
        model, facts, target, subject, layer, layers, moment, contexts, seed, settings, force, progress: as
            :func:`ffnmem.editing.memit`.
        threshold: of C's eigenvalues, absolute; default the published 2e-2 for models with published settings, else
            the median of the layer's eigenvalues: what is small differs between models. Published ``settings`` take the
            published one for every model.
        penalty: λ; default the published 10 for those, else half the mean neuron's second moment.
        previous: facts edited before, whose keys (K_p) shall stay where they are.

    Returns: One :class:`Edit` of all facts.

    Raises: as :func:`ffnmem.rome`; InputError: no eigenvalue below the threshold, or none above it.

    Source: Fang et al. 2025 (2410.02355), §3.2, eq. 14.
    """
    plan = plan_edits(model, facts, target, subject, layer, moment, contexts, seed, settings, procedure="alphaedit")
    return edit_together(plan, alphaedit_form(plan, layers, threshold, penalty), force, progress, previous)


def alphaedit_form(
    plan: EditPlan, layers: int | None = None, threshold: float | None = None, penalty: float | None = None
) -> ClosedForm:
    """(P(KKᵀ + K_pK_pᵀ) + λI)⁻¹PK by rows, P the projection on what the corpus hardly uses (Fang et al. 2024).

    PK lies in P's image, where the matrix is P(…)P + λI: solved there by Woodbury in as many dimensions as keys.

    Raises: InputError: no eigenvalue below a threshold, or none above it.
    """
    moment, where = plan.moment, layer_range(plan, layers, "alphaedit")
    theirs = published("alphaedit", plan.model.name) or UNNAMED["alphaedit"]
    as_theirs = plan.published or is_published(plan.model)
    thresholds, ranks = {}, []
    for at in where:
        # Between the two in the middle of an even number: on which side one of these is, rounding would decide.
        usual = theirs.threshold if as_theirs else float(moment.eigenvalues(at).quantile(0.5))
        thresholds[at] = usual if threshold is None else threshold
        projection = moment.null_projection(at, thresholds[at])
        ranks.append(round(float(projection.trace())))
        if not 0 < ranks[-1] < len(projection):
            which = "every" if ranks[-1] else "no"
            raise InputError(
                f"layer {at}: {which} eigenvalue of the second moment lies below threshold {thresholds[at]:g}"
            )
    if penalty is None:
        penalty = theirs.penalty if as_theirs else float(moment.eigenvalues(where[-1]).mean()) / 2

    def left(layer: int, keys: Keys, previous: PreviousKeys) -> Keys:
        projection = moment.null_projection(layer, thresholds[layer]).to(keys.device)
        inside = keys @ projection
        both = torch.cat([inside, previous @ projection])
        gram = both @ both.T + penalty * torch.eye(len(both), dtype=keys.dtype, device=keys.device)
        # (λI + BBᵀ)⁻¹ PK = (PK − B (λI + BᵀB)⁻¹ Bᵀ PK) / λ
        return (inside - torch.linalg.solve(gram, both @ inside.T).T @ both) / penalty

    recorded = {"thresholds": list(thresholds.values()), "penalty": penalty, "null_rank": ranks, **plan.moment_words()}
    return ClosedForm("alphaedit", where, left, recorded)
