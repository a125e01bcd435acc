"""``memit``: many facts rewritten at once, over several layers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, SupportsIndex

from ..arguments import public
from ..errors import InputError, quoted
from ..facts import Fact
from ..models import Model
from ..models.turns import in_turn
from .closed_forms import ClosedForm, edit_together, layer_range, memit_left
from .edit import Edit
from .moments import RIDGE
from .preparing import EditPlan, Moment, Progress, moment_words, plan_edits
from .settings import EditSettings

WEIGHTS = {"gpt2-xl": 20_000.0}  # λ of the published program
SHARE = 0.1  # of d_mlp, the mean of kᵀC⁻¹k over the corpus, for other models


@public
@in_turn
def memit(
    model: Model,
    facts: Fact | str | Iterable[Fact],
    target: str | None = None,
    *,
    subject: str | None = None,
    layer: SupportsIndex | None = None,
    layers: int | None = None,
    weight: float | None = None,
    moment: Moment = None,
    ridge: float = RIDGE,
    contexts: Sequence[str] | None = None,
    seed: int = 0,
    settings: Mapping[str, Any] | EditSettings | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> Edit:
    """Rewrite facts together: least squares over their keys and the corpus', spread over several layers.

    Each layer's values get (λC + KKᵀ)⁻¹ K Rᵀ, R being the layer's share of what is still missing of each fact's δ above
    the highest layer. Unlike :func:`ffnmem.rome` it gives way where facts or the corpus disagree: at one fact its key
    goes the share kᵀC⁻¹k / (λ + kᵀC⁻¹k) of the way in each layer. v* is found as :func:`ffnmem.rome` finds
    it, so ‖δ‖ is clamped in units of what the FFN writes; the published program does at .75 of the residual stream's.

    Args:
        model, facts, target, subject, moment, ridge, contexts, seed, settings, force, progress: as
            :func:`ffnmem.rome` has them.
        layer: the highest layer that is edited; default by the model's name or depth.
        layers: how many layers up to it share the edit; default a tenth of the depth, as published for GPT-2 XL.
        weight: λ; default the published one, else a tenth of d_mlp (which is the mean of kᵀC⁻¹k over the corpus).

    Returns: One :class:`Edit` of all facts.

    Raises: as :func:`ffnmem.rome`.

    Source: Meng et al. 2023 (2210.07229), eq. 14 and algorithm 1.
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
    return edit_together(plan, memit_form(plan, layers, weight, ridge), force, progress)


def memit_form(
    plan: EditPlan, layers: int | None = None, weight: float | None = None, ridge: float = RIDGE
) -> ClosedForm:
    """The closed form for a plan; raises InputError for a weight that is not above 0."""
    model = plan.model
    published = WEIGHTS.get(model.name.removeprefix("openai-community/"), SHARE * model.d_mlp)
    own = published if weight is None else weight
    if not own > 0:
        raise InputError(f"weight must be above 0, not {quoted(weight)}")
    where = layer_range(plan, layers)
    plan.check_moment(where, ridge)
    recorded = {"weight": own, **moment_words(plan, ridge)}
    return ClosedForm("memit", where, memit_left(plan, own, ridge), recorded)
