"""``edit_quality``: what rank-one edits score with one second moment or another, for ``ffnmem.convergence``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, SupportsIndex

import pandas as pd

from ..arguments import public
from ..editing.moments import RIDGE, SecondMoment
from ..editing.preparing import find_values, plan_edits
from ..editing.rome import rank_one
from ..editing.settings import EditSettings
from ..errors import InputError, check_choice
from ..facts import Fact
from ..models import Model
from ..models.turns import in_turn
from .asking import make_case
from .bootstrap import summarised
from .measuring import ask_cases, measure
from .metrics import METRICS, check_metrics

NOT_HERE = ("texts", "generation")


@public
@in_turn
def edit_quality(
    model: Model,
    facts: Fact | Iterable[Fact],
    *,
    metric: str = "S",
    layer: SupportsIndex | None = None,
    keys: str = "consistent",
    contexts: Sequence[str] | None = None,
    seed: int = 0,
    settings: Mapping[str, Any] | EditSettings | None = None,
) -> Callable[[SecondMoment], float]:
    """A function that scores ROME's edits of some facts with a second moment that it is given.

    v* does not depend on the second moment: it is found here, once. Edits are made whatever their size, since a
    second moment of little text is what makes them large.

    Args:
        model, facts, layer, keys, contexts, seed, settings: as :func:`ffnmem.rome` has them.
        metric: "S", or one of :data:`ffnmem.evaluation.METRICS` that is read off a fact's own prompts.

    Returns: From a second moment to the mean over the facts, as :attr:`ffnmem.Scores.summary` has it.

    Raises: InputError: no facts, a fact without a new target, another metric. Otherwise as :func:`ffnmem.rome`.
    """
    known = ("S", *(name for name, one in METRICS.items() if one.asks not in NOT_HERE))
    names = check_metrics([check_choice("metric", metric, known)], generate=False)
    plan = plan_edits(model, facts, layer=layer, contexts=contexts, seed=seed, settings=settings)
    plan = replace(plan, doubting=False)
    found = find_values(plan)
    roles = {METRICS[name].asks for name in names}
    cases = [make_case(model, request.fact, None, roles) for request in plan.requests]

    def quality(moment: SecondMoment) -> float:
        own = replace(plan, source=moment)
        edits = [rank_one(own, i, one, keys, RIDGE, force=True) for i, one in enumerate(found)]
        before, after = ask_cases(plan.layers, cases, edits)
        rows = [measure(case, b, a, names) for case, b, a in zip(cases, before, after, strict=True)]
        table = summarised(pd.DataFrame(rows), names, draws=1, seed=seed)
        score = float(table.set_index("metric")["mean"][metric])
        if math.isnan(score):
            raise InputError(f"no fact has a prompt for {metric}")
        return score

    return quality
