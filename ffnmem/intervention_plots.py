"""matplotlib pictures of interventions: what neurons say directly against what their absence does.

As in :mod:`ffnmem.plots`: each takes ``ax=None``, draws on it or on a new figure, and returns the Axes.
"""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes

from .arguments import public
from .interventions.ablation import Ablation
from .plots import ADDS, ATTENTION, TAKES, axes_for, ink, titled

NAMED = 8  # the neurons with the largest total effect carry their names
ROOM = (0.1, 0.045)  # width and height of a name, as shares of the axes


@public
def plot_ablation(ablation: Ablation, ax: Axes | None = None) -> Axes:
    """The total effect of each neuron on the logit against its direct one.

    Args:
        ablation: from :func:`ffnmem.ablate`.
        ax: where to draw; default a new figure.

    Returns:
        The Axes: a point a neuron, in logits; blue where both effects have the same sign, orange where direct
        attribution points the wrong way; a line where both are equal. The eight largest are named ``layer.neuron``
        where there is room.
    """
    ax = axes_for(ax, (6, 5.2))
    direct, total = (ablation.neurons[name].to_numpy(dtype=float) for name in ("direct", "logit"))
    both = np.concatenate([direct, total, [0.0]])
    low, high = float(both.min()), float(both.max())
    room = 0.08 * ((high - low) or 1.0)
    ends = (low - room, high + room)
    ax.plot(ends, ends, color=ATTENTION, linewidth=1.2, zorder=1)
    ax.axhline(0, color=ink(), linewidth=0.6, zorder=1)
    ax.axvline(0, color=ink(), linewidth=0.6, zorder=1)
    against = direct * total < 0
    for chosen, colour, label in ((~against, ADDS, "same sign"), (against, TAKES, "opposite signs")):
        if chosen.any():
            ax.scatter(direct[chosen], total[chosen], s=26, color=colour, label=label, zorder=2)
    ax.set_xlim(ends)
    ax.set_ylim(ends)
    name_points(ax, ablation, ends[1] - ends[0])
    ax.set_xlabel("direct effect on the logit, all else frozen")
    ax.set_ylabel("total effect: clean minus ablated")
    ax.legend(frameon=False, loc="upper left")
    rank = "" if np.isnan(ablation.spearman) else f", Spearman {ablation.spearman:.2f}"
    answer = repr(ablation.target) + ("" if ablation.foil is None else f" minus {ablation.foil!r}")
    return titled(ax, f"{len(ablation.neurons):,} neurons behind {answer}{rank}")


def name_points(ax: Axes, ablation: Ablation, width: float) -> None:
    """``layer.neuron`` beside the points with the largest total effect: right of them, else left, else not at all."""
    placed: list[tuple[float, float]] = []
    for row in ablation.neurons.head(NAMED).itertuples():
        for side, align in ((1, "left"), (-1, "right")):
            middle = (row.direct + side * 0.55 * ROOM[0] * width, row.logit)
            if all(abs(middle[0] - x) > ROOM[0] * width or abs(middle[1] - y) > ROOM[1] * width for x, y in placed):
                placed.append(middle)
                ax.annotate(
                    f"{row.layer}.{row.neuron}",
                    (row.direct, row.logit),
                    xytext=(5 * side, 3),
                    textcoords="offset points",
                    ha=align,
                    fontsize=8,
                )
                break
