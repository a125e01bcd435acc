"""matplotlib pictures of a calibration.

As in :mod:`ffnmem.plots.attribution`: each takes ``ax=None``, draws on it or on a new figure, and returns the Axes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from ..core.errors import InputError, check_choice
from ..core.types import checked
from ..planted.calibrating import Calibration
from .attribution import axes_for, ink, stacked, titled
from .neuron_kinds import VERDICT_COLOURS

COLOURS = {
    "meanings": "#0072B2",
    "clusters": "#E69F00",
    "ms": "#009E73",
    "trigger_tokens": "#CC79A7",
    "kurtosis": "#56B4E9",
    "firing_rate": "#D55E00",
}
OTHER = "#B8BEC6"
STACK = ("monosemantic", "unclear", "polysemantic", "inactive")
"""The bars of verdicts, from below: what is unclear stands between what is clear."""
NOMINAL = 0.05
LABELS = {"auroc": "AUROC", "spearman": "rank correlation"}
TITLES = {
    "auroc": "Telling polysemantic from monosemantic neurons",
    "spearman": "Rank correlation with the planted number of meanings",
}
CHANCE = {"auroc": 0.5, "spearman": 0.0}


@checked
def calibration(calibration: Calibration, what: str = "auroc", ax: Axes | None = None) -> Axes:
    """How well measures recover what was planted.

    Args:
        calibration: from :func:`ffnmem.planted.calibrate`.
        what: ``"auroc"`` or ``"spearman"``: every measure of polysemanticity by superposition, with 95% intervals;
            ``"verdicts"``: the verdicts by planted number of meanings; ``"nulls"``: how often each null is rejected
            where nothing is to be found, against 5%; ``"roles"``: precision and recall of each role; ``"facts"``: how
            often each measure ranks a fact's neuron first.
        ax: where to draw; default a new figure.

    Returns:
        The Axes.

    Raises:
        InputError: an unknown ``what``, or one that this calibration has no table of.
    """
    check_choice("what", what, DRAWS)
    needs = NEEDS[what]
    if getattr(calibration, needs) is None:
        raise InputError(f"this calibration has no {needs}: it has {', '.join(calibration.tables)}")
    ax = axes_for(ax, (7, 4))
    return titled(ax, DRAWS[what](calibration, ax))


def draw_curves(calibration: Calibration, ax: Axes, score: str) -> str:
    """Lines by superposition, measures without a colour of their own share one; of a single superposition, dots."""
    curves = calibration.curves
    assert curves is not None
    levels = sorted(set(curves["superposition"]))
    if len(levels) == 1:
        dots(ax, curves["measure"], *(curves[name] for name in (score, f"{score}_low", f"{score}_high")))
        ax.axvline(CHANCE[score], color=ink(), linestyle=":", linewidth=1)
        ax.set_xlabel(f"{LABELS[score]} at superposition {levels[0]:g}")
        return TITLES[score]
    rest = "the others"
    for name, rows in curves.groupby("measure", sort=False):
        colour = COLOURS.get(str(name), OTHER)
        label = str(name) if name in COLOURS else rest
        rest = "_" if label == rest else rest
        x = rows["superposition"].to_numpy()
        order = 3 if name == "meanings" else 2 if name in COLOURS else 1
        ax.plot(x, rows[score], color=colour, marker="o", markersize=4, label=label, zorder=order)
        if name in COLOURS:
            low, high = (rows[f"{score}_{end}"].to_numpy(float) for end in ("low", "high"))
            ax.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
    ax.axhline(CHANCE[score], color=ink(), linestyle=":", linewidth=1)
    ax.set_xticks(levels, [f"{level:g}" for level in levels])
    ax.set_xlabel("superposition: features per dimension")
    ax.set_ylabel(LABELS[score])
    ax.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return TITLES[score]


def dots(ax: Axes, names: Sequence[str] | pd.Series, value: pd.Series, low: pd.Series, high: pd.Series) -> None:
    """A dot with its interval for each name, from the top down."""
    places = np.arange(len(names))[::-1]
    ends = np.abs(np.stack([value - low, high - value]))
    ax.errorbar(value, places, xerr=ends, fmt="o", color=COLOURS["meanings"], markersize=5, capsize=3)
    ax.set_yticks(places, [str(name) for name in names])


def draw_nulls(calibration: Calibration, ax: Axes) -> str:
    rows = calibration.nulls
    assert rows is not None
    dots(ax, rows["measure"], rows["rate"], rows["low"], rows["high"])
    ax.axvline(NOMINAL, color=ink(), linestyle=":", linewidth=1)
    ax.set_xlim(0, max(2 * NOMINAL, 1.1 * float(rows["high"].max())))
    ax.set_xlabel("share of neurons with p < .05 where nothing is to be found")
    return "How often each null is rejected"


def draw_roles(calibration: Calibration, ax: Axes) -> str:
    rows = calibration.roles
    assert rows is not None
    places = np.arange(len(rows))[::-1]
    for shift, name, colour in ((0.18, "precision", COLOURS["meanings"]), (-0.18, "recall", COLOURS["clusters"])):
        ax.barh(places + shift, rows[name], 0.34, color=colour, label=name)
    ax.set_yticks(places, [str(role) for role in rows["role"]])
    ax.set_xlim(0, 1)
    ax.set_xlabel("share")
    ax.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return "Roles on planted models"


def draw_verdicts(calibration: Calibration, ax: Axes) -> str:
    rows = calibration.verdicts
    assert rows is not None
    names = list(STACK)
    share = rows[names].to_numpy(float) / np.maximum(rows[names].sum(axis=1).to_numpy()[:, None], 1)
    stacked(ax, range(len(rows)), dict(zip(names, share.T, strict=True)), 0.75, VERDICT_COLOURS)
    ax.set_xticks(range(len(rows)), ["dead" if n == 0 else str(n) for n in rows["true_meanings"]])
    ax.set_xlabel("planted meanings")
    ax.set_ylabel("share of neurons")
    ax.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0), reverse=True)
    return "Verdicts on planted models"


def draw_facts(calibration: Calibration, ax: Axes) -> str:
    rows = calibration.facts
    assert rows is not None
    names = [f"{measure}, {site}" for measure, site in zip(rows["measure"], rows["site"], strict=True)]
    dots(ax, names, rows["first"], rows["low"], rows["high"])
    ax.plot(
        rows["second"], ax.get_yticks(), "o", markersize=9, fillstyle="none", color=COLOURS["clusters"],
        label="first or second",
    )  # fmt: skip
    ax.set_xlim(-0.03, 1.03)
    ax.set_xlabel("share of facts whose neuron is ranked first")
    ax.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return "Facts on planted models"


DRAWS: dict[str, Callable[[Calibration, Axes], str]] = {
    "auroc": lambda calibration, ax: draw_curves(calibration, ax, "auroc"),
    "spearman": lambda calibration, ax: draw_curves(calibration, ax, "spearman"),
    "verdicts": draw_verdicts,
    "nulls": draw_nulls,
    "roles": draw_roles,
    "facts": draw_facts,
}
NEEDS = {"auroc": "curves", "spearman": "curves", **{name: name for name in ("verdicts", "nulls", "roles", "facts")}}
