"""``emmet``: many facts rewritten at once in one layer, each of them exactly."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, SupportsIndex

from ..arguments import public
from ..errors import InputError, quoted
from ..facts import Fact
from ..models import Model
from ..models.turns import in_turn
from .closed_forms import ClosedForm, edit_together, emmet_left
from .edit import Edit
from .moments import RIDGE
from .preparing import EditPlan, Moment, Progress, moment_words, plan_edits
from .settings import EditSettings


@public
@in_turn
def emmet(
    model: Model,
    facts: Fact | str | Iterable[Fact],
    target: str | None = None,
    *,
    subject: str | None = None,
    layer: SupportsIndex | None = None,
    epsilon: float = 0.0,
    moment: Moment = None,
    ridge: float = RIDGE,
    contexts: Sequence[str] | None = None,
    seed: int = 0,
    settings: Mapping[str, Any] | EditSettings | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> Edit:
    """Rewrite facts together under ROME's constraint: each key goes all the way, at the least cost for the corpus.

    The layer's values get C⁻¹K (KᵀC⁻¹K + εI)⁻¹ Rᵀ. Of one fact it is ROME with consistent keys.

    Args:
        model, facts, target, subject, layer, moment, ridge, contexts, seed, settings, force, progress: as
            :func:`ffnmem.rome`.
        epsilon: relative to the mean diagonal of KᵀC⁻¹K; above 0 where keys are alike, as of one subject's facts.

    Returns: One :class:`Edit` of all facts.

    Raises: as :func:`ffnmem.rome`; InputError: two facts with one key, which cannot both be satisfied at epsilon 0.

    Source: Gupta et al. 2024 (2403.14236), §3.
    """
    check_epsilon(epsilon)
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
    return edit_together(plan, emmet_form(plan, epsilon, ridge), force, progress)


def emmet_form(plan: EditPlan, epsilon: float = 0.0, ridge: float = RIDGE) -> ClosedForm:
    """The closed form for a plan; raises InputError for an epsilon below 0."""
    plan.check_moment([plan.settings.layer], ridge)
    recorded = {"epsilon": check_epsilon(epsilon), **moment_words(plan, ridge)}
    return ClosedForm("emmet", [plan.settings.layer], emmet_left(plan, epsilon, ridge), recorded)


def check_epsilon(epsilon: float) -> float:
    if not epsilon >= 0:
        raise InputError(f"epsilon must be at least 0, not {quoted(epsilon)}")
    return epsilon
