"""``rome``: a fact rewritten by a rank-one change of one layer's values, and tried again where it is not reached."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal, get_args

from ..core.errors import InputError, OutOfRangeError, check_index, listed, quoted
from ..core.neuron_names import LayerName
from ..core.progress import Progress
from ..core.types import Seed, Whole, checked
from ..facts.fact import Fact
from ..models.model import Model
from .changes import EditedLayer
from .closed_forms import average_keys, find_directions, lengthen_values
from .edit import Edit
from .preparing import (
    EditPlan,
    Moment,
    Ridge,
    Settings,
    check_reaches,
    find_values,
    finish_edits,
    make_edit,
    plan_edits,
    value_numbers,
)
from .settings import EditSettings
from .values import FoundValue, optimise

WhichKey = Literal["consistent", "original"]
KEYS = get_args(WhichKey)
LONGER = 1.5  # times the clamp, where an edit is not reached


@checked
def rome(
    model: Model,
    facts: Fact | str | Iterable[Fact],
    target: str | None = None,
    *,
    subject: str | None = None,
    layer: LayerName | None = None,
    keys: WhichKey | None = None,
    moment: Moment = None,
    ridge: Ridge | None = None,
    contexts: Sequence[str] | None = None,
    seed: Seed = 0,
    settings: Settings = None,
    expert: Whole | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> Edit | tuple[Edit, ...]:
    """Rewrite a fact: one layer shall write v* for the subject's key k*, and change little for other keys.

    k* is the average coefficient vector at the subject's last token over contexts; v* is what makes the model say the
    new target there; W + ΔW with ΔW = (v* − Wk*) (C⁻¹k*)ᵀ / (k*ᵀC⁻¹k*) takes k* to v* at the least cost for the keys
    of the corpus behind C. Several facts are prepared in one batch and give an edit each, independent of each other.

    The edited model is asked for the target in the prompt, and behind four contexts that no search had. Where it does
    not say it, settings that nobody gave are changed: twice the steps, with all contexts, to half the loss and half as
    long again; then other layers, unless the layer was given, published or chosen for the model. The first edit that is
    reached is returned, else the best; ``numbers["tried"]`` says what each came to.

    Args:
        model: from :func:`ffnmem.load`, as it is now.
        facts: one, or some; or a text that holds its ``subject`` and ends where the ``target`` begins. Where nobody
            says what is true, what the model answers itself stands for it.
        target: the new target of all; default each fact's ``target_new``.
        subject: of a text, as it is spelled there.
        layer: whose FFN is edited; default the one published for the model's name, else one that ships for it, else one
            by its depth (:func:`ffnmem.evaluation.layer_sweep` finds the best one).
        keys: "consistent", the default, uses the averaged key throughout, and looks for v* with ΔW itself, which acts
            as far as a position's key is like k*; "original" takes the plain prompt's key everywhere but in C⁻¹k*, and
            adds v* − Wk* at the subject's last token alone while it looks for v*, as the published program does.
        moment: the second moment C: from :func:`ffnmem.editing.second_moment`, a file, or None for one that ships.
        ridge: added to C, relative to its mean diagonal; default a millionth.
        contexts: texts with ``{}`` for the prompt; default 20 that the model writes, sampled with ``seed``.
        settings: changes of :class:`ffnmem.editing.settings.EditSettings`, as ``{"steps": 40}``; or "published": this
            editor's published program in everything, its hyperparameters by the model's name, and here
            ``keys="original"`` and no ridge, unless they are given. ``{"base": "published", "steps": 40}`` changes it.
        expert: in a layer of experts, the one whose values alone are changed, by its number; the subject's last token
            must go to it in the prompt (``capture.routing()`` says where it goes). C⁻¹k* is then that of the expert's
            own neurons, so that tokens that go to others are not touched in this layer. Default: all neurons, also of
            experts that the subject does not go to.
        force: make an edit also where it changes the layer by more than twice its own norm.
        progress: called with "edit", the facts done and all of them.

    Returns: An :class:`Edit` for one fact, a tuple of them for some. Nothing is applied.

    Raises:
        InputError: no target, no second moment for this model, unknown settings, an outlier that is not forced.
        OutOfRangeError: no such layer or expert. UnsupportedModelError: layers that cannot be run by themselves.

    Source: Meng et al. 2022 (2202.05262), §3.1; consistent keys: Gupta et al. 2024 (2403.07175).
    """
    plan = plan_edits(model, facts, target, subject, layer, moment, contexts, seed, settings, procedure="rome")
    plan.check_moment([plan.settings.layer])
    if expert is not None:
        plan = replace(plan, expert=expert)
        check_routed(plan, expert)
    found = find_values(plan, progress, find_directions(plan, keys, ridge))
    edits = [edit_rank_one(plan, i, one, keys, ridge, force) for i, one in enumerate(found)]
    return finish_edits(facts, edits)


def edit_rank_one(
    plan: EditPlan, which: int, found: FoundValue, keys: str | None, ridge: float | None, force: bool
) -> Edit:
    """The edit of one of a plan's requests, the first that is reached of those that are tried, else the best."""
    edits: list[Edit] = []
    tried: list[str] = []
    refusal: InputError | OutOfRangeError | None = None
    own, values = plan, [found]
    for settings, words in [(plan.settings, f"layer {plan.settings.layer}"), *list_tries(plan)]:
        try:
            if settings is not plan.settings:
                own = replace(plan, requests=(plan.requests[which],), settings=settings)
                values = optimise(own.layers, own.requests, settings, directions=find_directions(own, keys, ridge))
            edit = solve_rank_one(own, which if own is plan else 0, values[0], keys, ridge, force)
        except (InputError, OutOfRangeError) as error:  # the latter: a layer that the second moment does not have
            refusal = refusal or error
            tried.append(f"{words} refused")
            continue
        edits.append(edit)
        row = edit.numbers.iloc[0]
        unseen = row.get("unseen", 1.0)
        doubt = f", in {unseen:.0%} of unseen contexts" if row["reached"] and unseen < 1 else ""
        tried.append(f"{words} {row['after']:.2g}{doubt}")
        if row["reached"] and not doubt:
            break
    if not edits:
        assert refusal is not None
        raise refusal
    best = max(
        edits, key=lambda edit: tuple(edit.numbers.iloc[0].reindex(["reached", "unseen", "after"], fill_value=0))
    )
    return best if len(tried) == 1 else replace(best, numbers=best.numbers.assign(tried="; ".join(tried)))


def check_routed(plan: EditPlan, expert: int) -> None:
    """Raise unless the plan's layer has this expert and every request's subject goes to it."""
    layer = plan.settings.layer
    experts = plan.model.ffn[layer].experts
    if not experts:
        raise InputError(f"layer {layer} has no experts: leave expert {expert} out")
    check_index("expert", expert, len(experts), f"layer {layer}")
    plain = [replace(request, rows=request.rows[:1]) for request in plan.requests]
    for request, key in zip(plan.requests, average_keys(plan, plain, layer), strict=True):
        there = [number for number, one in enumerate(experts) if bool(key[one.neurons.start : one.neurons.stop].any())]
        if expert not in there:
            subject, to = quoted(request.fact.subject), listed(there)
            raise InputError(f"{subject} does not go to expert {expert} in layer {layer}, but to {to}")


def list_tries(plan: EditPlan) -> list[tuple[EditSettings, str]]:
    """What else is tried where an edit is not reached, in words too: of derived settings a longer and longer search,
    then other layers where nobody chose one."""
    settings, last = plan.settings, round(plan.model.n_layers * 2 / 3)
    if settings.source != "derived":
        return []
    longer = replace(
        settings, steps=2 * settings.steps, first=None, stop=settings.stop / 2, clamp=LONGER * settings.clamp
    )
    chosen = settings.layer_by != "depth" or plan.expert is not None
    near = [] if chosen else [settings.layer + 1, settings.layer + 2, settings.layer - 1]
    others = [replace(settings, layer=at, layer_by="tried") for at in near if 0 <= at < max(last, 1)]
    return [(longer, f"layer {settings.layer}, longer"), *((one, f"layer {one.layer}") for one in others)]


def solve_rank_one(
    plan: EditPlan, which: int, found: FoundValue, keys: str | None, ridge: float | None, force: bool
) -> Edit:
    """The edit of one of a plan's requests with a v* that was found for it."""
    keys, ridge = plan.keys(keys), plan.ridge(ridge)
    layer, request = plan.settings.layer, plan.requests[which]
    check_reaches(plan, request, found)
    averaged = found.key
    u = plan.moment.solve(layer, averaged.unsqueeze(0), ridge, plan.neurons)[0]  # C⁻¹k*
    longer, lengths = lengthen_values(plan, [found], ridge)
    found = longer[0]
    u = u / u.norm()
    strength = float((found.keys[0].double() if keys == "original" else averaged) @ u)
    # v* is what the layer writes for this key plus δ, so δ is what is missing: v* − Wk.
    change = EditedLayer(layer, u.unsqueeze(0), (found.delta.double() / strength).unsqueeze(0))
    row = {**value_numbers(request, found), **lengths[0], "key_u": strength}
    recorded = {**plan.value_words(), "keys": keys, **plan.moment_words(), "ridge": ridge}
    return make_edit(plan, [which], "rome", [change], [row], recorded, force)
