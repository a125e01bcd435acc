"""Pictures of how often neurons fire: histograms, rates, dead neurons, and who comes back."""

from __future__ import annotations

from collections.abc import Callable

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.ticker import MaxNLocator, PercentFormatter

from ..core.errors import InputError, check_choice
from ..core.number_text import format_probability
from ..core.types import checked
from ..ffn.activations import activation
from ..neurons.dying import Dying
from ..neurons.health import NeuronHealth
from ..scanning.neuron import Neuron
from ..scanning.store import RATES, Store
from .activation_functions import line_of
from .attribution import ADDS, ATTENTION, FFN, TAKES, axes_for, ink, layer_axis, titled

# matplotlib pictures of a store: a neuron's histogram, firing rates and dead neurons by layer.
#
# As in :mod:`ffnmem.plots.attribution`: each takes `ax=None`, draws on it or on a new figure, and returns the Axes.

BARS = 40  # of a histogram


@checked
def histogram(neuron: Neuron, ax: Axes | None = None) -> Axes:
    """How a neuron's coefficient is distributed over the tokens of the corpus.

    Args:
        neuron: from :meth:`ffnmem.scanning.Store.neuron`.
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
    count = neuron.stats["count"]
    fires = "dead" if neuron.stats["dead"] else f"fires at {format_probability(neuron.stats['firing_rate'])}"
    return titled(
        ax, f"{neuron.name} of {neuron.store.model}: {fires} of {count:,} tokens".replace("dead of", "dead in")
    )


@checked
def firing_rates(store: Store, ax: Axes | None = None) -> Axes:
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
    layer_axis(ax, range(store.n_layers))
    ax.set_ylabel("firing rate (share of tokens)")
    ax.legend(frameon=False, loc="best")
    return titled(ax, f"How often neurons of {store.model} fire, by layer")


@checked
def dead(store: Store, ax: Axes | None = None) -> Axes:
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
    layer_axis(ax, range(store.n_layers))
    ax.set_ylabel("dead neurons")
    if not dead:
        ax.text(0.5, 0.5, "every neuron fired", transform=ax.transAxes, ha="center", va="center", color=ink())
    return titled(ax, f"{dead:,} of {neurons:,} neurons of {store.model} never fired in {store.n_tokens:,} tokens")


# matplotlib pictures of neuron health: unhealthy neurons and gradient by layer, and who comes back from the dead zone.
#
# As in :mod:`ffnmem.plots.attribution`: each takes `ax=None`, draws on it or on a new figure, and returns the Axes.

FLAGS = {"dead": "#E07B00", "stuck": FFN, "saturated": ATTENTION}
MOST_NAMES = 8  # layers that a legend can tell apart; more are read off a colour bar
MARKS = "os^D"
MAP = "viridis"


@checked
def health(health: NeuronHealth, what: str = "shares", ax: Axes | None = None) -> Axes:
    """Unhealthy neurons by layer, or how much gradient the neurons of each layer carry.

    Args:
        health: from :func:`ffnmem.neurons.health.neuron_health`.
        what: ``"shares"``: per layer a bar each for the shares of its neurons that are dead, stuck and saturated.
            ``"flow"``: per layer a curve of mean |∂L/∂pre| over its neurons, those with the most first, on a
            logarithmic scale; a curve that ends before 100% has neurons without any gradient.
        ax: where to draw; default a new figure.

    Returns: The Axes.

    Raises: InputError: an unknown ``what``, or ``"flow"`` of a health without it.
    """
    check_choice("what", what, DRAWS)
    if what == "flow" and not health.flow:
        raise InputError("there is no gradient to draw: neuron_health was called with flow=False")
    ax = axes_for(ax, (7, 3.8))
    return titled(ax, DRAWS[what](health, ax))


def draw_shares(health: NeuronHealth, ax: Axes) -> str:
    rows = health.layers
    places = np.arange(len(rows))
    for number, (flag, colour) in enumerate(FLAGS.items()):
        ax.bar(places + 0.27 * (number - 1), rows[flag], 0.25, color=colour, label=flag)
    highest = float(rows[list(FLAGS)].to_numpy().max())
    ax.set_ylim(0, 1.15 * highest if highest else 1.0)
    ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=None))
    layer_axis(ax, list(rows["layer"]))
    ax.set_ylabel("share of neurons")
    if not highest:
        words = "no neuron is dead, stuck or saturated"
        ax.text(0.5, 0.5, words, transform=ax.transAxes, ha="center", va="center", color=ink())
    ax.legend(frameon=False, loc="upper right", ncols=3)
    return f"Neurons of {health.provenance.model} over {health.positions:,} positions"


def draw_flow(health: NeuronHealth, ax: Axes) -> str:
    layers = list(health.layers["layer"])
    colours = mpl.colormaps[MAP]
    shade = Normalize(0, max(1.1 * max(layers), 1))  # the map's last colours are too pale for lines
    for layer, rows in health.neurons.groupby("layer"):
        values = np.sort(rows["flow_pre"].to_numpy())[::-1]
        values = np.where(values > 0, values, np.nan)
        share = np.arange(1, len(values) + 1) / len(values)
        ax.plot(share, values, color=colours(shade(layer)), linewidth=1.5, label=f"layer {layer}")
    ax.set_yscale("log")
    ax.set_xlim(0, 1)
    ax.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=None))
    ax.set_xlabel("neurons of the layer, most gradient first")
    ax.set_ylabel("mean |∂L/∂pre|, nats per unit")
    if len(layers) > MOST_NAMES:
        bar = ax.figure.colorbar(ScalarMappable(shade, colours), ax=ax, label="layer")
        bar.ax.set_ylim(min(layers), max(layers))
        bar.ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    else:
        ax.legend(frameon=False, loc="best", ncols=2)
    return f"Gradient that neurons of {health.provenance.model} pass to their keys"


DRAWS: dict[str, Callable[[NeuronHealth, Axes], str]] = {"shares": draw_shares, "flow": draw_flow}


@checked
def dying(dying: Dying, what: str = "pushed_dead", ax: Axes | None = None) -> Axes:
    """What became of neurons pushed into the dead zone, by step of training, a line an activation.

    Args:
        dying: from :func:`ffnmem.neurons.dying.dying_relu`.
        what: ``"pushed_dead"``: the share of the pushed neurons that fires for no input. ``"dead"``: of all hidden
            neurons. ``"loss"``: the mean square error, on a logarithmic scale.
        ax: where to draw; default a new figure.

    Returns: The Axes.

    Raises: InputError: an unknown ``what``, or ``"pushed_dead"`` where none was pushed.
    """
    check_choice("what", what, TITLES)
    pushed = dying.settings["pushed"]
    if what == "pushed_dead" and not pushed:
        raise InputError("there is nothing to draw: no neuron was pushed (share 0)")
    ax = axes_for(ax, (7, 3.8))
    for number, name in enumerate(dying.activations):
        rows = dying.frame[dying.frame["activation"] == name]
        marker = MARKS[number % len(MARKS)]
        ax.plot(rows["step"], rows[what], **line_of(activation(name)), marker=marker, markersize=4)
    ax.set_xlabel("training step")
    ax.set_ylabel(TITLES[what])
    if what == "loss":
        ax.set_yscale("log")
    else:
        ax.set_ylim(-0.03, 1.03)
        ax.yaxis.set_major_formatter(PercentFormatter(1.0))
    ax.legend(frameon=False, loc="best")
    settings = dying.settings
    whose = f"{pushed} of {settings['d_mlp']} neurons pushed {settings['depth']:g} σ below 0"
    return titled(ax, f"{whose}, {settings['optimiser']}, seed {settings['seed']}")


TITLES = {
    "pushed_dead": "pushed neurons that fire for no input",
    "dead": "hidden neurons that fire for no input",
    "loss": "mean square error",
}
