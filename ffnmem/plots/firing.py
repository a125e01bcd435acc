"""How often neurons fire: histograms, rates, dead and unhealthy neurons."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes

from ..core.number_text import format_probability
from ..core.types import Whole
from ..neurons.cards import NeuronCards
from ..neurons.health import NeuronHealth
from ..scanning.neuron import Neuron
from ..scanning.store import RATES, Store
from . import shapes
from .figures import draws

BARS = 40  # of a histogram


@draws(Neuron)
def histogram(neuron: Neuron, ax: Axes | None = None) -> Axes:
    """How a neuron's coefficient is distributed over the tokens of the corpus.

    The height of a bin is its density, in tokens per unit of the coefficient, on a logarithmic scale, so that bins of
    different widths compare. Blue where the neuron writes its value, orange where it writes the opposite.

    Args:
        neuron: from :meth:`ffnmem.scanning.Store.neuron`.
    """
    bins = [(bin.low, bin.high, bin.density) for bin in neuron.bins(BARS) if bin.density > 0]
    low, high, density = np.array(bins).reshape(-1, 3).T
    floor = density.min() / 3 if bins else 1.0
    ax = shapes.axes_for(ax)
    style: shapes.Style = {"align": "edge", "color": shapes.sign_colours(low), "edgecolor": "none"}
    ax.bar(low, density - floor, high - low, bottom=floor, **style)
    ax.set_yscale("log")
    ax.set_ylim(bottom=floor)
    shapes.line_at(ax, 0, across=False)
    stats = neuron.stats
    fires = "dead in" if stats["dead"] else f"fires at {format_probability(stats['firing_rate'])} of"
    title = f"{neuron.name} of {neuron.store.model}: {fires} {stats['count']:,} tokens"
    return shapes.finish(ax, title, "coefficient", "tokens per unit of coefficient")


@draws(NeuronCards, aspects=lambda found: range(len(found.cards)))
def histograms(found: NeuronCards, which: Whole = 0, ax: Axes | None = None) -> Axes:
    """:func:`histogram` of one of several neurons.

    Args:
        found: from :func:`ffnmem.neurons.read_cards`.
        which: of them.
    """
    return histogram(found.cards[which], ax)


@draws(Store)
def firing_rates(store: Store, ax: Axes | None = None) -> Axes:
    """How often the neurons of each layer fire: quantiles over its neurons of the share of tokens at which the
    pre-activation is above 0.

    Args:
        store: from :func:`ffnmem.scan` or :func:`ffnmem.open_store`.
    """
    rows = store.to_frame()
    ax = shapes.axes_for(ax)
    labels = ("5% to 95% of neurons", "25% to 75%", "median")
    shapes.spreads(ax, range(len(rows)), [rows[name] for name in RATES], labels=labels)
    shapes.layer_axis(ax, rows["layer"])
    ax.set_ylim(bottom=0)
    title = f"How often neurons of {store.model} fire, by layer"
    return shapes.finish(ax, title, "", "firing rate (share of tokens)", percent="y", legend="inside")


@draws(Store)
def dead(store: Store, ax: Axes | None = None) -> Axes:
    """How many neurons of each layer never fired (pre-activation never above 0; of a gated neuron its gate's).

    Args:
        store: from :func:`ffnmem.scan` or :func:`ffnmem.open_store`.
    """
    rows = store.to_frame()
    count, neurons = rows["never_fired"].sum(), rows["neurons"].sum()
    ax = shapes.axes_for(ax)
    shapes.groups(ax, rows["layer"], {"dead": rows["never_fired"]}, {"dead": shapes.FFN})
    ax.set_ylim(0, max(1.05 * rows["never_fired"].max(), 1.0))
    if not count:
        shapes.say(ax, "every neuron fired")
    title = f"{count:,} of {neurons:,} neurons of {store.model} never fired in {store.n_tokens:,} tokens"
    return shapes.finish(ax, title, "", "dead neurons", whole="y")


FLAGS = {"dead": shapes.ORANGE, "stuck": shapes.BLUE, "saturated": shapes.GREY}


@draws(NeuronHealth)
def health(health: NeuronHealth, ax: Axes | None = None) -> Axes:
    """The shares of each layer's neurons that are dead, stuck and saturated.

    Args:
        health: from :func:`ffnmem.neurons.health.neuron_health`.
    """
    ax, model = shapes.axes_for(ax), health.provenance.model
    rows = health.layers
    highest = rows[list(FLAGS)].max(axis=None)
    shapes.groups(ax, rows["layer"], {flag: rows[flag] for flag in FLAGS}, FLAGS)
    ax.set_ylim(0, 1.15 * highest or 1.0)
    if not highest:
        shapes.say(ax, "no neuron is dead, stuck or saturated")
    title = f"Neurons of {model} over {health.positions:,} positions"
    return shapes.finish(ax, title, "", "share of neurons", percent="y", legend="beside")
