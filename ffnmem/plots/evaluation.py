"""Edits' scores: by editor, by layer above a causal trace, and by number of edits."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes

from ..core.errors import InputError, check_choice, counted, quoted
from ..evaluation.metrics import METRICS, SCORES
from ..evaluation.scores import NAMES, Scores
from ..evaluation.series import Decay
from ..evaluation.sweeping import Sweep
from ..tracing.maps import Traces
from . import shapes
from .figures import draws

MAIN = {"ES": shapes.BLUE, "PS": shapes.GREEN, "NS": shapes.GOLD, "NS_plus": shapes.RED, "S": ""}
"""Drawn by default, with their colours; that of S is the ink's."""
OTHERS = (shapes.SKY, shapes.PINK, shapes.DARK_GREY, "#F0E442")
MARKS = "osD^vP*X<>"
TRACE = {"state": ":", "ffn": "--"}
GROUP = "last subject"
STEPS = {"loss": "loss, nats\na token", "norm": "‖W‖/‖W₀‖"}  # of what each edit leaves
AXIS = "mean over facts, 95% interval"


@draws(Scores)
def scores(scores: Scores, metrics: Sequence[str] | None = None, ax: Axes | None = None) -> Axes:
    """Scores of editors with 95% intervals: a row an editor, a dot a metric.

    Args:
        scores: from :func:`ffnmem.evaluate`.
        metrics: of its summary; default ES, PS, NS, NS+ and S as far as they were measured.
    """
    colours = colours_of(scores.summary, metrics)
    editors = list(scores.editors)
    tables = {name: rows.set_index("editor").loc[editors] for name, rows in scores.summary.groupby("metric")}
    series = {NAMES.get(name, name): [tables[name][end] for end in ("mean", "low", "high")] for name in colours}
    ax = shapes.axes_for(ax, (7, 1.4 + 0.24 * len(editors) * (1 + len(colours))))
    shapes.dots(ax, editors, series, dict(zip(series, colours.values(), strict=True)))
    title = f"Edits of {counted(len(scores), 'fact')} of {scores.provenance.model}"
    return shapes.finish(ax, title, AXIS, legend="beside")


@draws(Sweep)
def sweep(
    sweep: Sweep,
    trace: Traces | None = None,
    ax: Axes | None = None,
    metrics: Sequence[str] | None = None,
) -> Axes:
    """Scores by edited layer, and below them where a causal trace finds the facts.

    Args:
        sweep: from :func:`ffnmem.evaluation.layer_sweep`.
        trace: of the same facts, whose mean indirect effect at the subject's last token of states and FFNs is drawn in
            a panel of its own, in the lower part of ``ax``.
        metrics: of the sweep's frame; default ES, PS, NS, NS+ and S as far as they were measured.
    """
    colours = colours_of(sweep.frame, metrics)
    effects = None if trace is None else effects_at_subject(trace)
    ax = shapes.axes_for(ax, (7.5, 4.2 if effects is None else 6.0))
    panels = shapes.panels_below(ax, int(effects is not None))
    draw_metrics(ax, sweep.frame, "layer", colours)
    if effects is not None:
        for kind, rows in effects.groupby("kind", sort=False):
            style = {"linestyle": TRACE[str(kind)], "color": shapes.ink()}
            label = f"{'FFN' if kind == 'ffn' else kind} at the\nsubject's end"
            shapes.curve(panels[0], rows["layer"], rows["mean"], label, rows["low"], rows["high"], **style)
        panels[0].set_ylim(bottom=min(0.0, effects["low"].min()))
        shapes.finish(panels[0], "", "layer", "indirect\neffect", whole="x", legend="beside")
    facts = counted(len(next(iter(sweep.scores.values()))), "fact")
    title = f"{sweep.editor} by layer, {facts} of {sweep.provenance.model}"
    return shapes.finish(ax, title, "" if panels else "layer", AXIS, whole="x", legend="beside")


def effects_at_subject(trace: Traces) -> pd.DataFrame:
    """Indirect effects at the subject's last token; raises InputError where there are none."""
    rows = trace.groups[(trace.groups["group"] == GROUP) & trace.groups["kind"].isin(list(TRACE))]
    if rows.empty:
        raise InputError(f"the trace has no effects of {' or '.join(TRACE)} in the group {quoted(GROUP)}")
    return rows


@draws(Decay)
def decay(decay: Decay, ax: Axes | None = None, metrics: Sequence[str] | None = None) -> Axes:
    """Scores of all edits so far by how many were made, one after another; below, what each edit left.

    Below stand, in the lower part of ``ax``, the loss on ordinary text and the norm of the weights, a panel each, where
    they vary; each axis spans a tenth of the unedited model's value or more. A line in every panel says where the model
    collapsed.

    Args:
        decay: from :func:`ffnmem.evaluation.sequential`.
        metrics: of its frame; default ES, PS, NS, NS+ and S as far as they were measured.
    """
    colours = colours_of(decay.frame, metrics)
    steps = decay.steps[decay.steps["edits"] > 0]
    varying = [name for name in STEPS if steps[name].dropna().nunique() > 1]
    ax = shapes.axes_for(ax, (7, 4 + 1.6 * len(varying)))
    panels = shapes.panels_below(ax, len(varying))
    draw_metrics(ax, decay.frame, "edits", colours)
    for panel, name in zip(panels, varying, strict=True):
        shapes.curve(panel, steps["edits"], steps[name], color=shapes.ink())
        before = decay.steps[name].iloc[0]
        shapes.line_at(panel, before, linestyle=":")
        shapes.reach(panel, 0.95 * before, 1.05 * before)  # little should not look like much
        panel.ticklabel_format(axis="y", useOffset=False)
        panel.set_ylabel(STEPS[name])
    points = sorted(decay.frame["edits"].unique())
    for panel in (ax, *panels):
        if decay.collapsed is not None:
            style = {"color": shapes.DARK_GREY, "linewidth": 1.2, "linestyle": "--"}
            shapes.line_at(panel, decay.collapsed, f"collapsed at {decay.collapsed:,}", across=False, **style)
        panel.set_xscale("log")
        panel.set_xticks(points, [str(point) for point in points])
        panel.minorticks_off()
    [ax, *panels][-1].set_xlabel("edits made and kept")
    return shapes.finish(ax, f"{decay.editor}, {decay.manner} in {decay.provenance.model}", "", AXIS, legend="beside")


def draw_metrics(ax: Axes, frame: pd.DataFrame, x: str, colours: dict[str, str]) -> None:
    """A line a metric, its interval as a band; hollow marks of growing size, so that lines that coincide all show."""
    for number, (name, colour) in enumerate(colours.items()):
        rows = frame[frame["metric"] == name].sort_values(x)
        style = {
            "color": colour,
            "marker": MARKS[number % len(MARKS)],
            "markersize": 4 + 2 * number,
            "fillstyle": "none",
        }
        shapes.curve(ax, rows[x], rows["mean"], NAMES.get(name, name), rows["low"], rows["high"], **style)
    if all(name in SCORES or METRICS[name].times == 100 for name in colours):
        shapes.reach(ax, -2, 102)


def colours_of(summary: pd.DataFrame, metrics: Sequence[str] | None) -> dict[str, str]:
    """The colours of the metrics to draw; raises InputError for one that was not measured."""
    known = list(dict.fromkeys(summary.dropna(subset="mean")["metric"]))
    if metrics is None:
        metrics = [name for name in MAIN if name in known] or known[:4]
    names = [check_choice("metric", name, known) for name in metrics]
    if not names:
        raise InputError("there is no metric to draw: nothing was measured")
    others = [name for name in names if name not in MAIN]
    colours = MAIN | {name: OTHERS[place % len(OTHERS)] for place, name in enumerate(others)}
    return {name: colours[name] or shapes.ink() for name in names}
