"""``ffnmem weights``: what makes a neuron fire and what it makes fire, without a prompt."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

import ffnmem as fm

from ..core.errors import InputError
from ..show.records import emit
from . import click_options as options
from .click_guard import Command
from .click_options import COUNT, ModelChoice, argument, option, read_neurons
from .figures import save_axes
from .progress import late_bar


@click.command(cls=Command, short_help="Which neurons make one fire and which it makes fire, by weights alone.")
@argument("neuron", metavar="LAYER.NEURON")
@options.top("How many connections in, and as many out.", 20)
@option("--heads/--no-heads", is_flag=True, default=True, help="Also through an attention head.  [default: --heads]")
@option(
    "--draws",
    type=COUNT,
    default=64,
    metavar="N",
    help="Random directions in place of the neuron, with which its connections are compared.",
)
@options.seed("Of these draws.")
@options.plot("bars of the connections")
@options.model
@options.output
def weights(
    neuron: str,
    top: int,
    heads: bool,
    draws: int,
    seed: int,
    plot: Path | None,
    choice: ModelChoice,
    form: str,
) -> None:
    """Find the neurons that are wired to one: those that make it fire, and those that it makes fire.

    What one neuron writes, times what another of a later layer reads, through the gain of the norm in front of it:
    directly, or through an attention head between them. All neurons have such weights with all others, because there
    are more of them than dimensions. z is how far a connection is from those that a random direction in place of the
    neuron has with the same layers, the same way; q is the share of connections as far as that which are chance.

    \b
    Examples
      ffnmem weights 3.17
      ffnmem weights 4.629 --no-heads --top 10
      ffnmem weights 5.705 --top 5 --plot weights.png

    --json and --csv have direction (incoming, outgoing), rank, layer, neuron, input (key; of gated neurons also gate),
    via (direct, or the head), weight, cosine, z, q, promotes (the token that the row's neuron promotes most).
    """
    named = read_neurons([neuron])
    if len(named) != 1:
        raise InputError(f"{neuron}: one neuron at a time")
    with late_bar() as report:
        model = choice.load()
        found = fm.virtual_weights(model, *named[0], k=top, heads=heads, draws=draws, seed=seed, progress=report)
    emit(found, form)
    if plot is not None:
        height = 1.4 + 0.26 * min(top, max(len(found.incoming), len(found.outgoing), 4))
        save_axes([partial(fm.plots.virtual_weights, found, side) for side in found.sides], plot, height=height)
