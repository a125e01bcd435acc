"""What a causal trace says of the layer to edit, beside what the layer's own number says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from ..core.errors import InputError, check_choice, counted
from ..core.sheets import Column, Table
from ..core.types import Count, Seed, checked
from .metrics import FEW, interval_ends

if TYPE_CHECKING:
    from ..tracing.maps import Traces
    from .sweeping import Sweep

GROUP_KINDS = ("state", "ffn")
TRACED = ("EM", "PM", "NM")
TRACE_COLUMNS = ("kind", "metric", "r", "within", "r2_layer", "r2_both", "gain", "gain_low", "gain_high", "facts")


@checked
def trace_against_layer(
    sweep: Sweep,
    traces: Traces,
    metrics: Sequence[str] = TRACED,
    *,
    draws: Count = 1000,
    seed: Seed = 0,
) -> pd.DataFrame:
    """How much of edits' scores a causal trace tells, fact by fact, beside what the layer's number tells alone.

    A point is a fact edited in a layer: its score, and the trace's indirect effect of that layer at the subject's last
    token. Two least-squares fits are compared: a mean for each layer, and the same with the effect beside it.

    Args:
        sweep: from :func:`ffnmem.evaluation.layer_sweep`.
        traces: from :func:`ffnmem.tracing.trace_facts`, of the same facts.
        metrics: columns of the sweep's cases; by default the margins behind ES, PS and NS, which are no mere yes or no.
        draws: of the bootstrap over facts. seed: of it.

    Returns: One row a kind of the trace ("state", "ffn") and metric: r (the correlation over all points), within (that
        of what is left when each layer's mean is taken off both), r2_layer and r2_both (the share of the score's
        variance that each fit explains), gain (their difference) with its 95% interval (NaN of fewer than five facts),
        and facts.

    Layers in which no fact could be edited, such as the last one, are left out.

    Raises: InputError: fewer than two layers, or than three facts that were both traced and edited in each of them; a
        metric that was not measured.

    Source: Hase et al. 2023 (2301.04213), §5: R² of layer and trace beside that of the layer alone. Theirs has its
        interval by facts, too.
    """
    measured = next(iter(sweep.scores.values())).metrics
    wanted = [check_choice("metric", name, measured) for name in metrics]
    kinds = [kind for kind in GROUP_KINDS if traces.traces and kind in traces.traces[0].kinds]
    edited = {layer: one for layer, one in sweep.scores.items() if one.cases[wanted].notna().any(axis=None)}
    if len(edited) < 2 or not kinds:
        raise InputError("a trace is compared with edits in two layers or more, and needs effects of states or FFNs")
    by_fact = {trace.fact: trace for trace in traces.traces}
    # Traces have the facts' names: ids, or prompts, where cases without an id have nothing to tell them apart.
    tables = [one.cases.set_index(pd.Index(sweep.names or one.cases["id"])) for one in edited.values()]
    tables = [cases[~cases.index.duplicated()] for cases in tables]
    found = []
    for kind in kinds:
        for metric in wanted:
            both = [
                name
                for name in by_fact
                if all(name in cases.index and np.isfinite(cases.loc[name, metric]) for cases in tables)
            ]
            if len(both) < 3:
                raise InputError(
                    f"{counted(len(both), 'fact')} have {metric} in every layer and a trace: give three or more"
                )
            y = np.array([[float(cases.loc[name, metric]) for cases in tables] for name in both])
            effects = [by_fact[name].indirect(kind)[:, by_fact[name].subject[-1]] for name in both]
            x = np.stack([effect[list(edited)] for effect in effects])
            found.append((kind, metric, *fit_by_layer(x, y), *gain_interval(x, y, draws, seed), len(both)))
    return pd.DataFrame(found, columns=list(TRACE_COLUMNS))


def traced_table(found: pd.DataFrame) -> Table:
    """What :func:`trace_against_layer` found, as a table."""
    named = {"r": "r", "within": "within", "R² layer": "r2_layer", "R² both": "r2_both", "gain": "gain"}
    low, high = (found[name].map("{:.3f}".format) for name in ("gain_low", "gain_high"))
    facts = int(found["facts"].max())
    return Table.of(
        found.assign(interval=(low + "–" + high).where(found["facts"] >= FEW, "–")),
        Column("trace", of="kind"),
        Column("score", of="metric"),
        *(Column(name, "number", places=3, of=of) for name, of in named.items()),
        Column("95%", of="interval"),
        title="what the causal trace tells of these scores beside the layer's number",
        caption=f"over {counted(facts, 'fact')}; within: with each layer's mean taken off",
    )


def fit_by_layer(x: np.ndarray, y: np.ndarray) -> tuple[float, float, float, float, float]:
    """r, within, r2_layer, r2_both and gain of effects and scores ``[facts, layers]``; NaN where nothing varies."""
    total = float(((y - y.mean()) ** 2).sum())
    a, b = x - x.mean(axis=0), y - y.mean(axis=0)
    within = correlation(a, b)
    layer = 1.0 - float((b**2).sum()) / total if total else np.nan
    # Of what the layers' means leave, the effect beside them explains so much (Frisch, Waugh and Lovell).
    gain = (1.0 - layer) * within**2
    return correlation(x - x.mean(), y - y.mean()), within, layer, layer + gain, gain


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Of two arrays without their means; NaN where one does not vary."""
    norm = float(np.sqrt((a**2).sum() * (b**2).sum()))
    return float((a * b).sum()) / norm if norm > 1e-12 else np.nan


def gain_interval(x: np.ndarray, y: np.ndarray, draws: int, seed: int) -> tuple[float, float]:
    """The 95% interval of the gain over facts drawn with replacement; NaN of too few of them."""
    if len(x) < FEW:
        return np.nan, np.nan
    generator = np.random.default_rng(seed)
    picks = generator.integers(0, len(x), (draws, len(x)))
    low, high = interval_ends(np.array([[fit_by_layer(x[pick], y[pick])[4]] for pick in picks]))
    return float(low[0]), float(high[0])
