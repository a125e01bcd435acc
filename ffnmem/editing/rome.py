"""``rome``: a fact rewritten by a rank-one change of one layer's values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, SupportsIndex

from torch import Tensor

from ..arguments import public
from ..errors import check_choice
from ..facts import Fact
from ..models import Model
from ..models.turns import in_turn
from .edit import Edit
from .edit_record import LayerChange
from .moments import RIDGE
from .preparing import (
    EditPlan,
    Moment,
    Progress,
    check_change,
    check_reaches,
    find_values,
    make_edit,
    moment_words,
    numbers_of,
    one_or_all,
    plan_edits,
)
from .settings import EditSettings
from .values import FoundValue

KEYS = ("consistent", "original")


@public
@in_turn
def rome(
    model: Model,
    facts: Fact | str | Iterable[Fact],
    target: str | None = None,
    *,
    subject: str | None = None,
    layer: SupportsIndex | None = None,
    keys: str = "consistent",
    moment: Moment = None,
    ridge: float = RIDGE,
    contexts: Sequence[str] | None = None,
    seed: int = 0,
    settings: Mapping[str, Any] | EditSettings | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> Edit | tuple[Edit, ...]:
    """Rewrite a fact: one layer shall write v* for the subject's key k*, and change little for other keys.

    k* is the average coefficient vector at the subject's last token over contexts; v* is what makes the model say the
    new target there; W + ΔW with ΔW = (v* − Wk*) (C⁻¹k*)ᵀ / (k*ᵀC⁻¹k*) takes k* to v* at the least cost for the keys
    of the corpus behind C. Several facts are prepared in one batch and give an edit each, independent of each other.

    Args:
        model: from :func:`ffnmem.load`, as it is now.
        facts: one, or some; or a text that holds its ``subject`` and ends where the ``target`` begins. Where nobody
            says what is true, what the model answers itself stands for it.
        target: the new target of all; default each fact's ``target_new``.
        subject: of a text, as it is spelled there.
        layer: whose FFN is edited; default by the model's name or depth.
        keys: "consistent" uses the averaged key throughout; "original" takes the plain prompt's key everywhere but in
            C⁻¹k*, as the published program does.
        moment: the second moment C: from :func:`ffnmem.second_moment`, a file, or None for one that ships.
        ridge: added to C, relative to its mean diagonal.
        contexts: texts with ``{}`` for the prompt; default 20 that the model writes, sampled with ``seed``.
        settings: changes of :class:`ffnmem.editing.settings.EditSettings`, as ``{"steps": 40}``.
        force: make an edit also where it changes the layer by more than twice its own norm.
        progress: called with the facts done and all of them.

    Returns: An :class:`Edit` for one fact, a tuple of them for some. Nothing is applied.

    Raises:
        InputError: no target, no second moment for this model, unknown settings, an outlier that is not forced.
        OutOfRangeError: no such layer. UnsupportedModelError: layers that cannot be run by themselves.

    Source: Meng et al. 2022 (2202.05262), §3.1; consistent keys: Gupta et al. 2024 (2403.07175).
    """
    check_choice("keys", keys, KEYS)
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
    plan.check_moment([plan.settings.layer], ridge)
    found = find_values(plan, progress)
    edits = [rank_one(plan, i, one, keys, ridge, force) for i, one in enumerate(found)]
    return one_or_all(facts, edits)


def rank_one(plan: EditPlan, which: int, found: FoundValue, keys: str, ridge: float, force: bool) -> Edit:
    """The edit of one of a plan's requests."""
    layer, request = plan.settings.layer, plan.requests[which]
    check_reaches(plan, request, found)
    left, right, strength = factors(plan, found, keys, ridge)
    change = LayerChange(layer, left.unsqueeze(0), right.unsqueeze(0))
    ratio = check_change(plan, [change], repr(request.fact.name), force, **{"k·u": strength})
    row = numbers_of(request, found, key_u=strength, change=ratio)
    recorded = {**plan.value_words(), "keys": keys, **moment_words(plan, ridge)}
    return make_edit(plan, [which], "rome", [change], [row], recorded)


def factors(plan: EditPlan, found: FoundValue, keys: str, ridge: float) -> tuple[Tensor, Tensor, float]:
    """u, r and k·u (u = C⁻¹k*/‖C⁻¹k*‖)."""
    averaged = found.key
    u = plan.moment.solve(plan.settings.layer, averaged.unsqueeze(0), ridge)[0]
    u = u / u.norm()
    key = averaged if keys == "consistent" else found.keys[0].double()
    strength = float(key @ u)
    # v* is what the layer writes for this key plus δ, so δ is what is missing: v* − Wk.
    return u, found.delta.double() / strength, strength
