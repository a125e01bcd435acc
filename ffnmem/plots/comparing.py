"""Pictures of two models compared: verdicts by layer, how far memories moved, and how alike they fire."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, PercentFormatter

from ..comparing.comparison import VERDICTS, Comparison, largest_change, match_sizes
from ..core.errors import InputError, check_choice
from ..core.types import checked
from .attribution import FFN, axes_for, ink, layer_axis, stacked, titled

# As in :mod:`ffnmem.plots.attribution`: each takes `ax=None` and returns the Axes.

COLOURS = {"same": "#C9CDD3", "moved": "#0072B2", "permuted": "#009E73", "new": "#E07B00", "silent": "#3A3A3A"}
DRAWS = ("verdicts", "changes", "correlations")
RANDOM = "#7A7A7A"
BINS = np.linspace(0, 1, 51).tolist()


def drawn_of(found: Comparison) -> list[str]:
    """What there is to draw of a comparison."""
    draws = ["verdicts"]
    if found.in_place and bool((largest_change(found.neurons) > found.tolerance).any()):
        draws.append("changes")
    return [*draws, "correlations"] if found.has_matches else draws


@checked
def comparison(comparison: Comparison, what: str = "verdicts", ax: Axes | None = None) -> Axes:
    """One aspect of two models compared.

    Args:
        comparison: from :func:`ffnmem.compare`.
        what: ``"verdicts"``: how many neurons of each layer are the same, moved, permuted, new and silent, as stacked
            shares. ``"changes"``: how far those that changed did, by layer: 5% to 95% of them light, 25% to 75% dark, a
            line at the median, a dot at the largest, on a logarithmic scale. ``"correlations"``: how many neurons
            have a best match of which correlation, and how many have it among random neurons.
        ax: where to draw; default a new figure.

    Returns: The Axes.

    Raises: InputError: another name; no neuron changed, or models of other sizes; no text was read.
    """
    check_choice("what", what, DRAWS)
    if what not in drawn_of(comparison):
        moved = "no neuron changed, or most have nothing to do with those of their places"
        why = "no text was read" if what == "correlations" else moved
        raise InputError(f"there are no {what} to draw: {why}")
    ax = axes_for(ax, (7.2, 4))
    return {"verdicts": verdicts, "changes": changes, "correlations": correlations}[what](comparison, ax)


def verdicts(found: Comparison, ax: Axes) -> Axes:
    """Stacked shares by layer."""
    layers, total = found.layers["layer"].tolist(), found.layers["neurons"]
    held = [name for name in VERDICTS if (found.layers[name] > 0).any()]
    shares = {name: (found.layers[name] / total).to_numpy() for name in held}
    stacked(ax, np.arange(len(layers)), shares, 0.75, COLOURS)
    layer_axis(ax, layers)
    ax.set_ylim(0, 1)
    ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    ax.set_ylabel("share of the layer's neurons")
    ax.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0), reverse=True)
    return titled(ax, "What became of the memories")


def changes(found: Comparison, ax: Axes) -> Axes:
    """Relative changes of weights, of the neurons that changed, by layer."""
    layers, least = found.layers["layer"].tolist(), np.inf
    size = largest_change(found.neurons)
    for place, layer in enumerate(layers):
        some = size[(found.neurons["layer"] == layer).to_numpy() & (size > found.tolerance)]
        if not len(some):
            continue
        low, quarter, middle, most, high = np.quantile(some, [0.05, 0.25, 0.5, 0.75, 0.95])
        ax.bar(place, high - low, 0.6, bottom=low, color=FFN, alpha=0.3, linewidth=0)
        ax.bar(place, most - quarter, 0.6, bottom=quarter, color=FFN, alpha=0.75, linewidth=0)
        ax.hlines(middle, place - 0.3, place + 0.3, color=ink(), linewidth=1.6)
        ax.plot(place, some.max(), "o", color=ink(), markersize=4)
        least = min(least, low)
    layer_axis(ax, layers)
    ax.set_xlim(-0.6, len(layers) - 0.4)
    ax.set_yscale("log")
    ax.set_ylim(bottom=0.6 * least)
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g}%"))
    ax.yaxis.set_minor_formatter(FuncFormatter(lambda _value, _: ""))
    ax.set_ylabel("change, of the length before")
    return titled(ax, "How far the weights of those that changed moved")


def correlations(found: Comparison, ax: Axes) -> Axes:
    """Best matches, and those among random neurons, as outlines of histograms."""
    sizes = match_sizes(found.neurons)
    ax.hist(
        sizes[np.isfinite(sizes)].clip(0, 1), BINS, histtype="stepfilled", color=FFN, alpha=0.55, label="best match"
    )
    ax.hist(
        found.neurons["baseline"].dropna().clip(0, 1), BINS, histtype="step", color=RANDOM, linewidth=1.6,
        label="among random neurons",
    )  # fmt: skip
    ax.set_xlim(0, 1)
    ax.set_xlabel("correlation of coefficients")
    ax.set_ylabel("neurons")
    ax.legend(frameon=False, loc="best")
    return titled(ax, "How alike neurons of both models fire")
