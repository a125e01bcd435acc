"""matplotlib pictures of a store: a neuron's histogram, firing rates and dead neurons by layer.

As in :mod:`ffnmem.plots`: each takes ``ax=None``, draws on it or on a new figure, and returns the Axes.
"""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter

from .arguments import public
from .plots import ADDS, ATTENTION, FFN, MOST_TICKS, TAKES, axes_for, ink, titled
from .scanning.neuron import Neuron
from .scanning.store import RATES, Store

BARS = 40  # of a histogram


@public
def plot_histogram(neuron: Neuron, ax: Axes | None = None) -> Axes:
    """How a neuron's coefficient is distributed over the tokens of the corpus.

    Args:
        neuron: from :meth:`ffnmem.Store.neuron`.
        ax: where to draw; default a new figure.

    Returns:
        The Axes: a bar a bin, as wide as the bin; its height is the density, in tokens per unit of the coefficient, on
        a logarithmic scale, so that bins of different widths compare. Blue where the neuron writes its value, orange
        where it writes the opposite.
    """
    ax = axes_for(ax, (7, 3.8))
    found = [b for b in neuron.bins(BARS) if b.density > 0]
    colours = [ADDS if b.low >= 0 else TAKES for b in found]
    floor = min((b.density for b in found), default=1.0) / 3
    ax.bar(
        [b.low for b in found],
        [b.density - floor for b in found],
        [b.high - b.low for b in found],
        bottom=floor,
        align="edge",
        color=colours,
        edgecolor="none",
    )
    ax.set_yscale("log")
    ax.set_ylim(bottom=floor)
    ax.axvline(0, color=ink(), linewidth=0.8)
    ax.set_xlabel("coefficient")
    ax.set_ylabel("tokens per unit of coefficient")
    rate, count = neuron.stats["firing_rate"], neuron.stats["count"]
    fires = "dead" if neuron.stats["dead"] else f"fires at {rate:.3g}" if rate < 0.0005 else f"fires at {rate:.1%}"
    return titled(
        ax, f"{neuron.name} of {neuron.store.model}: {fires} of {count:,} tokens".replace("dead of", "dead in")
    )


@public
def plot_firing_rates(store: Store, ax: Axes | None = None) -> Axes:
    """How often the neurons of each layer fire: the distribution over neurons, not the mean.

    Args:
        store: from :func:`ffnmem.scan` or :func:`ffnmem.open_store`.
        ax: where to draw; default a new figure.

    Returns:
        The Axes: per layer a light band from the 5% to the 95% quantile of its neurons' firing rates (shares of tokens
        whose pre-activation is above 0), a dark one from 25% to 75%, and a line at the median.
    """
    ax = axes_for(ax, (7, 3.8))
    rows = store.to_frame()
    layers = rows["layer"].to_numpy()
    low, first, median, third, high = (rows[name].to_numpy() for name in RATES)
    ax.bar(layers, high - low, 0.7, bottom=low, color=ATTENTION, label="5% to 95% of neurons")
    ax.bar(layers, third - first, 0.7, bottom=first, color=FFN, label="25% to 75%")
    ax.hlines(median, layers - 0.35, layers + 0.35, color=ink(), linewidth=2, label="median")
    ax.set_ylim(bottom=0)
    ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=None))
    layer_axis(ax, store)
    ax.set_ylabel("firing rate (share of tokens)")
    ax.legend(frameon=False, loc="best")
    return titled(ax, f"How often neurons of {store.model} fire, by layer")


@public
def plot_dead(store: Store, ax: Axes | None = None) -> Axes:
    """How many neurons of each layer never fired (pre-activation never above 0; of a gated neuron its gate's).

    Args:
        store: from :func:`ffnmem.scan` or :func:`ffnmem.open_store`.
        ax: where to draw; default a new figure.

    Returns:
        The Axes: one bar a layer. Where there is none, the picture says so.
    """
    ax = axes_for(ax, (7, 3.8))
    rows = store.to_frame()
    dead, neurons = int(rows["dead"].sum()), int(rows["neurons"].sum())
    ax.bar(rows["layer"], rows["dead"], 0.7, color=FFN)
    ax.set_ylim(0, max(1.05 * float(rows["dead"].max()), 1.0))
    ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    layer_axis(ax, store)
    ax.set_ylabel("dead neurons")
    if not dead:
        ax.text(0.5, 0.5, "every neuron fired", transform=ax.transAxes, ha="center", va="center", color=ink())
    return titled(ax, f"{dead:,} of {neurons:,} neurons of {store.model} never fired in {store.n_tokens:,} tokens")


def layer_axis(ax: Axes, store: Store) -> None:
    every = 1 + store.n_layers // MOST_TICKS
    ax.set_xticks(range(0, store.n_layers, every))
    ax.set_xlim(-0.6, store.n_layers - 0.4)
    ax.set_xlabel("layer")
