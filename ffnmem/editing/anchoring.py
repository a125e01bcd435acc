"""The norm anchor: how long v* is on a model that is not edited yet, for edits that come one after another."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ..core.errors import InputError, check_choice, counted, warn
from ..core.neuron_names import LayerName
from ..core.progress import Progress
from ..core.types import Seed, checked
from ..facts.fact import Fact, as_facts
from ..models.model import Model
from ..models.turns import in_turn
from .preparing import Settings, check_reaches, choose_contexts, find_values, plan_edits, read_settings, with_truth
from .published import UNNAMED
from .requests import PLAIN, make_requests

DROPPED = 20  # one in so many, the longest


@checked
@in_turn
def value_norm(
    model: Model,
    facts: Fact | Iterable[Fact],
    *,
    layer: LayerName | None = None,
    contexts: Sequence[str] | None = (PLAIN,),
    seed: Seed = 0,
    editor: str = "rome",
    settings: Settings = None,
    progress: Progress | None = None,
) -> float:
    """The mean ‖v*‖ over facts, the longest twentieth left out: what ``anchor`` of the editors' settings is for.

    In a sequence of edits v* grows with the weights. ``anchor = value_norm(model, facts)``, measured before the first
    edit, and ``settings={"anchor": anchor}`` keep it as long as it was: v* = v₀ + δ, v₀ being what the FFN writes for
    the plain prompt, is rescaled to that norm once δ is found. A v* that is more than twice as long is no edit: the
    editors refuse it, and one for several facts refuses them all.

    Args:
        model: from :func:`ffnmem.load`, as it is now, so without the edits that are to come.
        facts: with new targets; the program takes 1,000 of CounterFact. Those that cannot be edited are left out, with
            a warning that counts them and has the first one's reason.
        layer, seed: as :func:`ffnmem.rome` has them.
        contexts: as :func:`ffnmem.rome` has them, with None for sampled ones; default the prompt alone, as the program
            has it.
        editor: whose settings: of its published program where ``settings`` are "published", and its early stop.
        settings: as the editors have them, without an anchor.
        progress: called with "edit", the facts done and all of them.

    Returns: The norm, in the units of what the layer's FFN writes.

    Raises:
        InputError: as :func:`ffnmem.rome`, though no second moment is needed; settings with an anchor; no
            fact that can be edited, as where the layer reaches no answer.
        OutOfRangeError: no such layer. UnsupportedModelError: layers that cannot be run by themselves.

    Source: Liu et al. 2026 (2602.02543), norm-anchor scaling; ``util/vstar_stats.py`` of their program, which gives a
        fact whose v* is too long no δ, and goes on without a word.
    """
    check_choice("editor", editor, UNNAMED)
    own, _ = read_settings(model, layer, settings, editor)
    if own.anchor is not None:
        raise InputError("settings have an anchor, which is what is measured here: leave it out")
    (texts, _), every = choose_contexts(model, contexts, seed), as_facts(facts)
    fine, reasons = [], []
    for fact in every:
        try:
            fine += [request.fact for request in make_requests(model, [with_truth(model, fact)], None, texts)]
        except InputError as error:
            reasons.append(str(error))
    norms = []
    if fine:
        plan = plan_edits(model, fine, contexts=texts, seed=seed, settings=own)
        found = find_values(replace(plan, doubting=False), progress)
        for request, one in zip(plan.requests, found, strict=True):
            try:
                check_reaches(plan, request, one)
            except InputError as error:
                reasons.append(str(error))
            else:
                norms.append(float((one.written[0].double() + one.delta.double()).norm()))
    if not norms:
        raise InputError(f"no fact has a v* to measure, the first because: {reasons[0]}")
    if reasons:
        left = f"{len(reasons)} of {counted(len(every), 'fact')} are left out"
        warn(f"{left}, the first because: {reasons[0]}")
    kept = sorted(norms)[: len(norms) - len(norms) // DROPPED]
    return sum(kept) / len(kept)
