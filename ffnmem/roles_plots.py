"""matplotlib pictures of roles. As in :mod:`ffnmem.plots`: each takes ``ax=None`` and returns the Axes."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from .arguments import public
from .errors import InputError
from .plots import MOST_TICKS, axes_for, titled
from .semantics.role_rules import NONE
from .semantics.roles import known_roles, role_counts

COLOURS = {
    "dead": "#1A1A1A",
    "position": "#CC79A7",
    "entropy": "#D55E00",
    "token-frequency": "#F0C000",
    "prediction": "#0072B2",
    "suppression": "#E69F00",
    "partition": "#009E73",
    "token-detector": "#56B4E9",
    "strengthening": "#7B5EA7",
    "weakening": "#A6761D",
}
"""From Okabe and Ito's palette as far as it goes."""


@public
def plot_roles(frame: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """What part the neurons of each layer play: the shares of their primary roles, stacked.

    Args:
        frame: of :func:`ffnmem.roles`.
        ax: where to draw; default a new figure.

    Returns:
        The Axes: a bar a layer, in the order of precedence from below; what is left of the layer has none of the roles.
        Roles that no neuron has are not drawn; the axis reaches as far as the fullest layer.

    Raises:
        InputError: a table of something else.
    """
    if "role" not in frame:
        raise InputError("frame must be a table of fm.roles, with a column role")
    ax = axes_for(ax, (8, 4))
    counts = role_counts(frame)
    layers = counts["layer"].to_numpy()
    names = [role.name for role in known_roles(frame)]
    total = counts[[*names, NONE]].sum(axis=1).to_numpy()
    below = np.zeros(len(layers))
    for name in names:
        share = counts[name].to_numpy() / total
        if share.any():
            ax.bar(layers, share, 0.75, bottom=below, color=COLOURS[name], label=name)
            below += share
    ax.set_ylim(0, min(1.0, max(1.08 * float(below.max()), 0.01)))
    ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=None))
    ax.set_xticks(layers[:: 1 + len(layers) // MOST_TICKS])
    ax.set_xlabel("layer")
    ax.set_ylabel("share of the layer's neurons, by first role")
    handles, labels = ax.get_legend_handles_labels()
    if handles:
        ax.legend(handles[::-1], labels[::-1], frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    else:
        ax.text(0.5, 0.5, "no neuron has any of these roles", transform=ax.transAxes, ha="center", va="center")
    model = frame.attrs.get("provenance", {}).get("model", "this model")
    return titled(ax, f"{int(counts[names].to_numpy().sum()):,} of {int(total.sum()):,} neurons of {model} have a role")


def plot_percentiles(frame: pd.DataFrame, column: str, ax: Axes | None = None, threshold: float | None = None) -> Axes:
    """How a statistic is spread over the neurons of each layer: 1–99%, 5–95%, 25–75% and the median, as bands.

    Args:
        frame: of :func:`ffnmem.roles`. column: which of its statistics.
        ax: where to draw; default a new figure.
        threshold: a line at it, and at its negative where the statistic has both signs.
    """
    ax = axes_for(ax, (7, 3.8))
    quantiles = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
    rows = frame.groupby("layer")[column].quantile(list(quantiles)).unstack()
    layers = rows.index.to_numpy()
    for low, high, shade in ((0.01, 0.99, "#DCE9F2"), (0.05, 0.95, "#A9CBE2"), (0.25, 0.75, "#5B9CC9")):
        label = f"{low:.0%}–{high:.0%}"
        ax.fill_between(layers, rows[low].to_numpy(), rows[high].to_numpy(), color=shade, label=label, linewidth=0)
    ax.plot(layers, rows[0.5].to_numpy(), color="#00324F", marker="o", markersize=3, label="median")
    if threshold is not None:
        ax.axhline(threshold, color="#E07B00", linestyle="--", linewidth=1, label=f"threshold {threshold:.3g}")
        if float(rows.to_numpy().min()) < 0 and column != "cosine_kurtosis":
            ax.axhline(-threshold, color="#E07B00", linestyle="--", linewidth=1)
    ax.set_xticks(layers[:: 1 + len(layers) // MOST_TICKS])
    ax.set_xlabel("layer")
    ax.set_ylabel(column.replace("_", " "))
    ax.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return titled(ax, f"{column.replace('_', ' ')} by layer, quantiles over neurons")
