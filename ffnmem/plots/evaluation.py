"""matplotlib pictures of edits' scores: by editor, by layer beside a causal trace, by number of edits.

As in :mod:`ffnmem.plots.attribution`: each takes ``ax=None``, draws on it or on a new figure, and returns the Axes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from ..core.errors import InputError, check_choice, counted, quoted
from ..core.types import checked
from ..evaluation.metrics import METRICS, SCORES
from ..evaluation.scores import NAMES, Scores
from ..evaluation.series import Decay
from ..evaluation.sweeping import Sweep
from ..tracing.traces import Traces
from .attribution import axes_for, ink, titled

COLOURS: Mapping[str, str] = MappingProxyType(
    {"S": "#000000", "ES": "#0072B2", "PS": "#009E73", "NS": "#E69F00", "NS_plus": "#D55E00"}
)
OTHERS = ("#56B4E9", "#CC79A7", "#8A9099", "#F0E442")
MAIN = ("ES", "PS", "NS", "NS_plus", "S")
TRACE = ("state", "ffn")
GROUP = "last subject"
DASH = 4.0  # of a line that coincides with others, in units of its width
NEAR = 0.012  # of the axis: lines that are nearer hide one another
LEAST = 20.0  # points that an axis of scores in percent spans
SHARE = 0.1  # of the unedited model's, that an axis of loss or norm spans: less than that is not much
STEPS = {"loss": "loss, nats\na token", "norm": "‖W‖/‖W₀‖"}  # of what each edit leaves


@checked
def scores(scores: Scores, metrics: Sequence[str] | None = None, ax: Axes | None = None) -> Axes:
    """Scores of editors with 95% intervals: a row an editor, a dot a metric.

    Args:
        scores: from :func:`ffnmem.evaluate`.
        metrics: of its summary; default ES, PS, NS, NS+ and S as far as they were measured.
        ax: where to draw; default a new figure.

    Returns: The Axes.

    Raises: InputError: a metric that was not measured.
    """
    names = metrics_to_draw(scores.summary, metrics)
    editors = scores.editors
    ax = axes_for(ax, (7, 1.4 + 0.24 * len(editors) * (1 + len(names))))
    step = 0.8 / len(names)
    for place, name in enumerate(names):
        rows = scores.summary[scores.summary["metric"] == name].set_index("editor").loc[list(editors)]
        y = np.arange(len(editors)) - 0.4 + step * (place + 0.5)
        spans = np.abs(np.nan_to_num(rows[["low", "high"]].to_numpy().T - rows["mean"].to_numpy()))
        ax.errorbar(rows["mean"], y, xerr=spans, fmt="o", markersize=5, capsize=2, color=colour(name, names))
        ax.plot([], [], "o", color=colour(name, names), label=NAMES.get(name, name))
    ax.set_yticks(range(len(editors)), list(editors), parse_math=False)
    ax.invert_yaxis()
    ax.set_xlabel("mean over facts, 95% interval")
    ax.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return titled(ax, f"Edits of {counted(len(scores), 'fact')} of {scores.provenance.model}")


@checked
def sweep(
    sweep: Sweep,
    trace: Traces | pd.DataFrame | None = None,
    ax: Axes | None = None,
    metrics: Sequence[str] | None = None,
) -> Axes:
    """Scores by edited layer, and below them where a causal trace finds the facts.

    Args:
        sweep: from :func:`ffnmem.evaluation.layer_sweep`.
        trace: :class:`ffnmem.tracing.traces.Traces` or their ``groups``: the mean indirect effect at the subject's
            last token of states and FFNs is drawn in a panel of its own, below.
        ax: where to draw, the panel in the lower part of it; default a new figure.
        metrics: of the sweep's frame; default ES, PS, NS, NS+ and S as far as they were measured.

    Returns: The Axes of the scores.

    Raises: InputError: a metric that was not measured, a trace without effects at the subject's last token, a trace
        and Axes that stand in no grid.
    """
    names = metrics_to_draw(sweep.frame, metrics)
    effects = None if trace is None else effects_at_subject(trace)
    ax = axes_for(ax, (7.5, 4.2 if effects is None else 6.0))
    panels = panels_below(ax, int(effects is not None))
    curves(ax, sweep.frame, "layer", names)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    if effects is not None:
        if not panels:
            raise InputError("the trace is drawn below the scores: give Axes of a grid (plt.subplots), or none")
        draw_trace(panels[0], effects)
        ax.tick_params(labelbottom=False)
    (panels or [ax])[0].set_xlabel("layer")
    for one, title in zip((ax, *panels), (None, "at the subject's end"), strict=False):
        one.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0), handlelength=3, title=title)
    facts = len(next(iter(sweep.scores.values())))
    return titled(ax, f"{sweep.editor} by layer, {counted(facts, 'fact')} of {sweep.provenance.model}")


def effects_at_subject(trace: Traces | pd.DataFrame) -> pd.DataFrame:
    """Indirect effects at the subject's last token; raises InputError where there are none."""
    groups = trace.groups if isinstance(trace, Traces) else trace
    missing = {"kind", "group", "layer", "mean", "low", "high"} - set(groups.columns)
    if missing:
        raise InputError(f"the trace has no columns {sorted(missing)}: give Traces, or their groups")
    rows = groups[(groups["group"] == GROUP) & groups["kind"].isin(TRACE)]
    if rows.empty:
        raise InputError(f"the trace has no effects of {' or '.join(TRACE)} in the group {quoted(GROUP)}")
    return rows


def draw_trace(ax: Axes, rows: pd.DataFrame) -> None:
    """Indirect effects by layer, a line a kind."""
    for style, (kind, effects) in zip((":", "--"), rows.groupby("kind", sort=False), strict=False):
        label = f"trace: {'FFN' if kind == 'ffn' else kind}"
        ax.plot(effects["layer"], effects["mean"], linestyle=style, color=ink(), linewidth=1.5, label=label)
        ax.fill_between(effects["layer"], effects["low"], effects["high"], color=ink(), alpha=0.1, linewidth=0)
    ax.set_ylabel("indirect\neffect")
    ax.set_ylim(bottom=min(0.0, float(rows["low"].min())))
    ax.spines[["top", "right"]].set_visible(False)


@checked
def decay(decay: Decay, ax: Axes | None = None, metrics: Sequence[str] | None = None) -> Axes:
    """Scores of all edits so far by how many were made, one after another; below, what each edit left.

    Below stand the loss on ordinary text and the norm of the weights, a panel each, where they vary; each axis spans a
    tenth of the unedited model's value or more. A line in every panel says where the model collapsed.

    Args:
        decay: from :func:`ffnmem.evaluation.sequential`.
        ax: where to draw, the panels below in the lower part of it; default a new figure.
        metrics: of its frame; default ES, PS, NS, NS+ and S as far as they were measured.

    Returns: The Axes of the scores.

    Raises: InputError: a metric that was not measured.
    """
    names = metrics_to_draw(decay.frame, metrics)
    steps = decay.steps[decay.steps["edits"] > 0]
    told = {name: label for name, label in STEPS.items() if steps[name].dropna().nunique() > 1}
    ax = axes_for(ax, (7, 4 + 1.6 * len(told)))
    panels = panels_below(ax, len(told))
    curves(ax, decay.frame, "edits", names)
    for panel, (name, label) in zip(panels, told.items(), strict=False):  # there may be no place
        panel.plot(steps["edits"], steps[name], color=ink(), linewidth=1.2)
        before = float(decay.steps[name].iloc[0])
        panel.axhline(before, color=ink(), linewidth=0.8, linestyle=":")
        panel.set_ylim(*widened(*panel.get_ylim(), SHARE * abs(before)))
        panel.ticklabel_format(axis="y", useOffset=False)
        panel.set_ylabel(label)
        panel.spines[["top", "right"]].set_visible(False)
    every, bottom = [ax, *panels], (panels or [ax])[-1]
    if decay.collapsed is not None:
        for one in every:
            one.axvline(decay.collapsed, color=OTHERS[2], linewidth=1.2, linestyle="--")
        ax.lines[-1].set_label(f"collapsed at {decay.collapsed:,}")
    ax.set_xscale("log")
    points = sorted(decay.frame["edits"].unique())
    for one in every:
        one.set_xticks(points, [str(point) for point in points])
        one.minorticks_off()
        one.tick_params(labelbottom=one is bottom)
    bottom.set_xlabel("edits made and kept")
    ax.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0), handlelength=3)
    return titled(ax, f"{decay.editor}, {decay.manner} in {decay.provenance.model}")


def panels_below(ax: Axes, count: int) -> list[Axes]:
    """Panels that share an Axes' place and its x; none where it has no place in a grid."""
    place = ax.get_subplotspec()
    if not count or place is None or ax.figure is None:
        return []
    grid = place.subgridspec(1 + count, 1, height_ratios=[5] + [2] * count)
    ax.set_subplotspec(grid[0])
    return [ax.figure.add_subplot(grid[1 + i], sharex=ax) for i in range(count)]


def convergence(frame: pd.DataFrame, ax: Axes | None = None, quality: str = "edit quality") -> Axes:
    """How far an edit's direction is from where it ends, by the tokens of the second moment; and what edits score.

    Args:
        frame: from :func:`ffnmem.editing.convergence`.
        ax: where to draw, the panel below in the lower part of it; default a new figure.
        quality: what its column of that name holds, e.g. "S"; drawn in a panel below, if it is there.

    Returns: The Axes of the distance.

    Raises: InputError: quality, and Axes that stand in no grid.
    """
    scored = "quality" in frame
    ax = axes_for(ax, (7, 5.5 if scored else 4))
    panels = panels_below(ax, int(scored))
    ax.plot(frame["tokens"], frame["distance_mean"], "o-", color=COLOURS["S"], label="mean")
    ax.plot(frame["tokens"], frame["distance_max"], ":", color=COLOURS["S"], label="largest")
    ax.set_xscale("log")
    ax.set_ylim(0, max(1.5, float(frame["distance_max"].max()) * 1.05))
    ax.set_ylabel("‖u − u in the end‖")
    ax.legend(frameon=False, loc="upper right")
    if scored:
        if not panels:
            raise InputError("the quality is drawn below the distance: give Axes of a grid (plt.subplots), or none")
        panels[0].plot(frame["tokens"], frame["quality"], "s-", color=ink())
        panels[0].set_ylim(*widened(*panels[0].get_ylim(), LEAST, -2.0, 102.0))
        panels[0].set_ylabel(quality)
        panels[0].spines[["top", "right"]].set_visible(False)
        ax.tick_params(labelbottom=False)
    (panels or [ax])[0].set_xlabel("tokens of the second moment")
    provenance = frame.attrs.get("provenance", {})
    where = f"layer {provenance.get('layer', '?')} of {provenance.get('model', 'the model')}"
    return titled(ax, f"How much text an edit needs: {where}")


def curves(ax: Axes, frame: pd.DataFrame, x: str, names: Sequence[str]) -> None:
    """A line a metric, its interval as a band. Those that coincide share one, each its own dashes and ring."""
    tables = {name: frame[frame["metric"] == name].sort_values(x) for name in names}
    ys = {name: rows.set_index(x)["mean"] for name, rows in tables.items()}
    means = pd.concat(list(ys.values()))
    near = NEAR * max(float(means.max() - means.min()), LEAST)
    for name, rows in tables.items():
        shade, alike = colour(name, names), [other for other in names if coincide(ys[name], ys[other], near)]
        place = alike.index(name)
        dashes = ((len(alike) - place) * DASH, (DASH, (len(alike) - 1) * DASH))
        (line,) = ax.plot(rows[x], rows["mean"], marker="o", color=shade, label=NAMES.get(name, name))
        line.set(markersize=4 + 3 * place, linestyle=dashes if len(alike) > 1 else "-")
        if place:
            line.set(markerfacecolor="none")
        if len(rows) > 1:
            ax.fill_between(rows[x].astype(float), rows["low"], rows["high"], color=shade, alpha=0.12, linewidth=0)
        else:  # a band over one place has no width
            ax.vlines(rows[x], rows["low"], rows["high"], color=shade, alpha=0.5, linewidth=1)
    percents = all(name in SCORES or METRICS[name].times == 100 for name in names)
    if percents:
        bounds = (-2.0, 102.0) if means.between(0, 100).all() else (-math.inf, math.inf)
        ax.set_ylim(*widened(*ax.get_ylim(), LEAST, *bounds))
    ax.set_ylabel("mean over facts, 95% interval")


def coincide(one: pd.Series, other: pd.Series, near: float) -> bool:
    """Whether two lines lie on each other at two places that follow one another, or at all that there are."""
    close = ((one - other).dropna().abs() <= near).to_numpy()
    return bool((close[1:] & close[:-1]).any()) if len(close) > 1 else bool(close.any())


def widened(
    low: float, high: float, least: float, bottom: float = -math.inf, top: float = math.inf
) -> tuple[float, float]:
    """The ends of an axis, with at least so much between them; what is added stays within bottom and top."""
    more = max(0.0, least - (high - low)) / 2
    over = max(0.0, high + more - max(top, high)) - max(0.0, min(bottom, low) - (low - more))
    return low - more - over, high + more - over


def metrics_to_draw(summary: pd.DataFrame, metrics: Sequence[str] | None) -> list[str]:
    """The metrics to draw; raises InputError for one that was not measured."""
    known = list(dict.fromkeys(summary.dropna(subset="mean")["metric"]))
    if metrics is None:
        metrics = [name for name in MAIN if name in known] or known[:4]
    names = [check_choice("metric", name, known) for name in metrics]
    if not names:
        raise InputError("there is no metric to draw: nothing was measured")
    return names


def colour(name: str, names: Sequence[str]) -> str:
    others = [other for other in names if other not in COLOURS]
    if name == "S":
        return ink()
    return COLOURS[name] if name in COLOURS else OTHERS[others.index(name) % len(OTHERS)]
