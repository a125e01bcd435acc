"""``alphaedit``: facts rewritten in directions that the corpus hardly uses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, SupportsIndex

from jaxtyping import Float64
from torch import Tensor

from ..arguments import public
from ..errors import InputError, quoted
from ..facts import Fact
from ..facts.fact import as_facts
from ..models import Model
from ..models.turns import in_turn
from .closed_forms import ClosedForm, alphaedit_left, edit_together, keys_of, layer_range
from .edit import Edit
from .moments import NULL
from .preparing import EditPlan, Moment, Progress, moment_words, plan_edits
from .requests import key_request
from .settings import EditSettings, is_published

PENALTY = 10.0  # the published program's


@public
@in_turn
def alphaedit(
    model: Model,
    facts: Fact | str | Iterable[Fact],
    target: str | None = None,
    *,
    subject: str | None = None,
    layer: SupportsIndex | None = None,
    layers: int | None = None,
    threshold: float | None = None,
    penalty: float | None = None,
    previous: Fact | Iterable[Fact] = (),
    moment: Moment = None,
    contexts: Sequence[str] | None = None,
    seed: int = 0,
    settings: Mapping[str, Any] | EditSettings | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> Edit:
    """Rewrite facts together, moving only what lies in the null space of the corpus' keys.

    The layer's values get (P(KKᵀ + K_pK_pᵀ) + λI)⁻¹ PK Rᵀ, P being the projection on the eigenvectors of C below a
    threshold: keys in the other directions are not touched at all. Spread over layers as :func:`ffnmem.memit` does.

    Args:
        model, facts, target, subject, layer, layers, moment, contexts, seed, settings, force, progress: as
            :func:`ffnmem.memit`.
        threshold: of C's eigenvalues, absolute; default the published 2e-2 for models with published settings, else
            the median of the layer's eigenvalues: what is small differs between models.
        penalty: λ; default the published 10 for those, else half the mean neuron's second moment.
        previous: facts edited before, whose keys (K_p) shall stay where they are.

    Returns: One :class:`Edit` of all facts.

    Raises: as :func:`ffnmem.rome`; InputError: no eigenvalue below the threshold, or none above it.

    Source: Fang et al. 2025 (2410.02355), §3.2, eq. 14.
    """
    plan = plan_edits(
        model,
        facts,
        target,
        subject=subject,
        layer=layer,
        moment=moment,
        contexts=contexts,
        seed=seed,
        settings=settings,
    )
    protected = as_facts(previous, least=0)
    where = layer_range(plan, layers)
    form = alphaedit_form(plan, layers, threshold, penalty, previous_keys(plan, protected, where))
    form = replace(form, recorded={**form.recorded, "previous": [fact.id for fact in protected]})
    return edit_together(plan, form, force, progress)


def alphaedit_form(
    plan: EditPlan,
    layers: int | None = None,
    threshold: float | None = None,
    penalty: float | None = None,
    previous: Mapping[int, Float64[Tensor, "p d_mlp"]] | None = None,
) -> ClosedForm:
    """The closed form for a plan; raises InputError: a penalty that is not above 0, no eigenvalue below a threshold."""
    where, published = layer_range(plan, layers), is_published(plan.model)
    own, weight = {}, penalty
    for at in where:
        eigenvalues = plan.moment.eigenvalues(at)
        own[at] = threshold if threshold is not None else NULL if published else float(eigenvalues.median())
        if not float(eigenvalues[0]) < own[at] <= float(eigenvalues[-1]):
            which = "no" if float(eigenvalues[0]) >= own[at] else "every"
            raise InputError(f"layer {at}: {which} eigenvalue of the second moment lies below threshold {own[at]:g}")
    if weight is None:
        weight = PENALTY if published else float(plan.moment.eigenvalues(where[-1]).mean()) / 2
    if not weight > 0:
        raise InputError(f"penalty must be above 0, not {quoted(penalty)}")
    recorded = {
        "thresholds": [own[at] for at in where],
        "penalty": weight,
        "null_rank": [int((plan.moment.eigenvalues(at) < own[at]).sum()) for at in where],
        **{name: value for name, value in moment_words(plan, 0.0).items() if name != "ridge"},
    }
    return ClosedForm("alphaedit", where, alphaedit_left(plan, own, weight, previous or {}), recorded)


def previous_keys(plan: EditPlan, facts: list[Fact], layers: Sequence[int]) -> dict[int, Float64[Tensor, "p d_mlp"]]:
    """The keys of facts edited before, by layer."""
    if not facts:
        return {}
    requests = [key_request(plan.model, fact, plan.contexts) for fact in facts]
    return {layer: keys_of(plan, requests, layer) for layer in layers}
