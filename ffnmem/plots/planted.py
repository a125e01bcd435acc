"""How well measures recover what was planted: pictures of a calibration."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes

from ..core.errors import InputError, check_choice
from ..planted.calibrating import Calibration
from . import shapes
from .figures import draws
from .neuron_kinds import VERDICT_COLOURS

MEASURE_COLOURS = {
    "meanings": shapes.BLUE,
    "clusters": shapes.GOLD,
    "ms": shapes.GREEN,
    "trigger_tokens": shapes.PINK,
    "kurtosis": shapes.SKY,
    "firing_rate": shapes.RED,
}
NOMINAL = 0.05
CHANCE = {"auroc": 0.5, "spearman": 0.0}
LABELS = {"auroc": "AUROC", "spearman": "rank correlation"}
NEEDS = {"auroc": "curves", "spearman": "curves", **{name: name for name in ("verdicts", "nulls", "roles", "facts")}}
"""The table of each aspect."""


@draws(Calibration, aspects=lambda calibration: [what for what, table in NEEDS.items() if table in calibration.tables])
def calibration(calibration: Calibration, what: str = "auroc", ax: Axes | None = None) -> Axes:
    """How well measures recover what was planted.

    Args:
        calibration: from :func:`ffnmem.planted.calibrate`.
        what: ``"auroc"`` or ``"spearman"``: every measure of polysemanticity by superposition, with 95% intervals;
            ``"verdicts"``: the verdicts by planted number of meanings; ``"nulls"``: how often each null is rejected
            where nothing is to be found, against 5%; ``"roles"``: precision and recall of each role; ``"facts"``: how
            often each measure ranks a fact's neuron first.
    """
    check_choice("what", what, NEEDS)
    rows = getattr(calibration, NEEDS[what])
    if rows is None:
        raise InputError(f"this calibration has no {NEEDS[what]}: it has {', '.join(calibration.tables)}")
    ax = shapes.axes_for(ax, (7, 4))
    match what:
        case "verdicts":
            return draw_verdicts(rows, ax)
        case "nulls":
            names, series = list(rows["measure"]), {"rejected": [rows[name] for name in ("rate", "low", "high")]}
            shapes.line_at(ax, NOMINAL, across=False)
            label, title = "neurons with p < .05 where nothing is to be found", "How often each null is rejected"
        case "roles":
            names, series = list(rows["role"]), {name: [rows[name]] for name in ("precision", "recall")}
            label, title = "share", "Roles on planted models"
        case "facts":
            names = [f"{measure}, {site}" for measure, site in zip(rows["measure"], rows["site"], strict=True)]
            series = {"first": [rows[name] for name in ("first", "low", "high")], "first or second": [rows["second"]]}
            label, title = "facts whose neuron is ranked first", "Facts on planted models"
        case _:
            return draw_score(rows, ax, what)
    shapes.dots(ax, names, series, dict(zip(series, (shapes.BLUE, shapes.GOLD), strict=False)))
    ax.set_xlim(
        0 if what == "nulls" else -0.03, max(2 * NOMINAL, 1.1 * rows["high"].max()) if what == "nulls" else 1.03
    )
    return shapes.finish(ax, title, label, percent="x", legend="beside" if len(series) > 1 else "")


def draw_verdicts(rows: pd.DataFrame, ax: Axes) -> Axes:
    total = rows[list(VERDICT_COLOURS)].sum(axis=1).clip(lower=1)
    names = ["dead" if count == 0 else str(count) for count in rows["true_meanings"]]
    shapes.stacks(ax, names, {name: rows[name] / total for name in VERDICT_COLOURS}, VERDICT_COLOURS)
    title = "Verdicts on planted models"
    return shapes.finish(ax, title, "planted meanings", "share of neurons", percent="y", legend="stacked")


def draw_score(curves: pd.DataFrame, ax: Axes, score: str) -> Axes:
    """Lines by superposition, measures without a colour of their own share one; of a single superposition, dots."""
    titles = ("Telling polysemantic from monosemantic neurons", "Rank correlation with the planted number of meanings")
    title, label, columns = titles[score == "spearman"], LABELS[score], [score, f"{score}_low", f"{score}_high"]
    levels = sorted(set(curves["superposition"]))
    shapes.line_at(ax, CHANCE[score], across=len(levels) > 1, linestyle=":")
    if len(levels) == 1:
        shapes.dots(ax, list(curves["measure"]), {label: [curves[name] for name in columns]}, {label: shapes.BLUE})
        return shapes.finish(ax, title, f"{label} at superposition {levels[0]:g}")
    others = "the others"
    for name, rows in curves.groupby("measure", sort=False):
        value, *ends = (rows[column] for column in columns)
        if name in MEASURE_COLOURS:
            style = {"color": MEASURE_COLOURS[str(name)], "zorder": 3 if name == "meanings" else 2}
            shapes.curve(ax, rows["superposition"], value, str(name), *ends, marker="o", **style)
        else:
            shapes.curve(ax, rows["superposition"], value, others, color=shapes.GREY, marker="o", zorder=1)
            others = ""
    ax.set_xticks(levels, [f"{level:g}" for level in levels])
    return shapes.finish(ax, title, "superposition: features per dimension", label, legend="beside")
