"""Two models compared: verdicts by layer, how far memories moved, and how alike they fire."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from ..comparing.comparison import VERDICTS, Comparison, largest_change, match_sizes
from ..core.errors import InputError, check_choice
from . import shapes
from .figures import draws

COLOURS = {"same": "#C9CDD3", "moved": shapes.BLUE, "permuted": shapes.GREEN, "new": shapes.ORANGE, "silent": "#3A3A3A"}


def aspects_of(comparison: Comparison) -> list[str]:
    """What there is to draw of a comparison."""
    changed = comparison.in_place and bool((largest_change(comparison.neurons) > comparison.tolerance).any())
    return ["verdicts", *["changes"] * changed, *["correlations"] * comparison.has_matches]


@draws(Comparison, aspects=aspects_of)
def comparison(comparison: Comparison, what: str = "verdicts", ax: Axes | None = None) -> Axes:
    """One aspect of two models compared.

    Args:
        comparison: from :func:`ffnmem.compare`.
        what: ``"verdicts"``: how many neurons of each layer are the same, moved, permuted, new and silent, as stacked
            shares. ``"changes"``: how far those that changed did, by layer: 5% to 95% of them light, 25% to 75% dark, a
            line at the median, a dot at the largest, on a logarithmic scale. ``"correlations"``: how many neurons
            have a best match of which correlation, and how many have it among random neurons.
    """
    draw = DRAWS[check_choice("what", what, DRAWS)]
    if what not in aspects_of(comparison):
        unchanged = "no neuron changed, or most have nothing to do with those of their places"
        raise InputError(f"there are no {what} to draw: {'no text was read' if what == 'correlations' else unchanged}")
    return draw(comparison, shapes.axes_for(ax))


def draw_verdicts(comparison: Comparison, ax: Axes) -> Axes:
    rows = comparison.layers
    shares = {name: rows[name] / rows["neurons"] for name in VERDICTS if rows[name].any()}
    shapes.stacks(ax, rows["layer"], shares, COLOURS)
    label = "share of the layer's neurons"
    return shapes.finish(ax, "What became of the memories", "", label, percent="y", legend="stacked")


def draw_changes(comparison: Comparison, ax: Axes) -> Axes:
    layers, neurons = comparison.layers["layer"].tolist(), comparison.neurons
    sizes = neurons.assign(size=largest_change(neurons)).query("size > @comparison.tolerance").groupby("layer")["size"]
    quantiles = [sizes.quantile(share) for share in (0.05, 0.25, 0.5, 0.75, 0.95)]
    places = [layers.index(layer) for layer in quantiles[0].index]
    shapes.spreads(ax, places, quantiles)
    ax.plot(places, sizes.max(), "o", color=shapes.ink(), markersize=4)
    shapes.layer_axis(ax, layers)
    ax.set_yscale("log")
    ax.set_ylim(bottom=0.6 * float(quantiles[0].min()))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g}%"))
    ax.yaxis.set_minor_formatter(FuncFormatter(lambda _value, _: ""))
    return shapes.finish(ax, "How far the weights of those that changed moved", "", "change, of the length before")


def draw_correlations(comparison: Comparison, ax: Axes) -> Axes:
    sizes, bins = match_sizes(comparison.neurons), np.linspace(0, 1, 51).tolist()
    best, random = sizes[np.isfinite(sizes)].clip(0, 1), comparison.neurons["baseline"].dropna().clip(0, 1)
    ax.hist(best, bins, histtype="stepfilled", color=shapes.BLUE, alpha=0.55, label="best match")
    ax.hist(random, bins, histtype="step", color="#7A7A7A", linewidth=1.6, label="among random neurons")
    ax.set_xlim(0, 1)
    title = "How alike neurons of both models fire"
    return shapes.finish(ax, title, "correlation of coefficients", "neurons", legend="inside")


DRAWS = {"verdicts": draw_verdicts, "changes": draw_changes, "correlations": draw_correlations}
