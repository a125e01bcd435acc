"""matplotlib pictures of neuron health: unhealthy neurons and gradient by layer, and who comes back from the dead zone.

As in :mod:`ffnmem.plots`: each takes ``ax=None``, draws on it or on a new figure, and returns the Axes.
"""

from __future__ import annotations

from collections.abc import Callable

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.ticker import MaxNLocator, PercentFormatter

from .arguments import public
from .errors import InputError, check_choice
from .ffn.activations import activation
from .health import Dying, NeuronHealth
from .plots import ATTENTION, FFN, MOST_TICKS, axes_for, ink, titled

FLAGS = {"dead": "#E07B00", "stuck": FFN, "saturated": ATTENTION}
MOST_NAMES = 8  # layers that a legend can tell apart; more are read off a colour bar
LINES = (("#D55E00", "-", "o"), ("#0072B2", "--", "s"), ("#009E73", ":", "^"), ("#CC79A7", "-.", "D"))
MAP = "viridis"


@public
def plot_health(health: NeuronHealth, what: str = "shares", ax: Axes | None = None) -> Axes:
    """Unhealthy neurons by layer, or how much gradient the neurons of each layer carry.

    Args:
        health: from :func:`ffnmem.health.neuron_health`.
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
    every = 1 + len(rows) // MOST_TICKS
    ax.set_xticks(places[::every], [str(layer) for layer in rows["layer"][::every]])
    ax.set_xlim(-0.6, len(rows) - 0.4)
    ax.set_xlabel("layer")
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


@public
def plot_dying(dying: Dying, what: str = "pushed_dead", ax: Axes | None = None) -> Axes:
    """What became of neurons pushed into the dead zone, by step of training, a line an activation.

    Args:
        dying: from :func:`ffnmem.health.dying_relu`.
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
        colour, style, marker = LINES[number % len(LINES)]
        label = activation(name).title
        ax.plot(rows["step"], rows[what], color=colour, linestyle=style, marker=marker, markersize=4, label=label)
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
