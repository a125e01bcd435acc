"""``ffnmem health`` and ``ffnmem dying-relu``: neurons that never fire, and who comes back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

import ffnmem as fm

from ..core.defaults import DYING_DEPTH, DYING_SHARE, DYING_STEPS
from ..core.errors import InputError
from ..core.types import DYING_ACTIVATIONS, DYING_OPTIMISERS
from ..show.records import emit
from . import click_options as options
from .click_guard import Command
from .click_options import COUNT, ModelChoice, argument, given, option
from .figures import save_figure
from .progress import Progress

# `ffnmem health`: which neurons never fire, which pass no gradient, and how much of it each one carries.


@click.command(cls=Command, short_help="Dead, stuck and saturated neurons, and the gradient that each carries.")
@argument("corpus", default="atlas")
@option(
    "--tokens",
    type=COUNT,
    default=20_000,
    metavar="N",
    help="Read whole sequences, drawn at random, until they hold so many tokens.",
)
@option("--all", "everything", is_flag=True, help="Read all of the corpus instead.")
@options.context()
@option("--batch-tokens", type=COUNT, default=2048, metavar="N", help="Tokens of one pass; fewer need less memory.")
@option("--no-flow", is_flag=True, help="Leave the way back out: no gradients of the loss, half the time.")
@options.top("Neurons to list at each end.", 5)
@options.seed("Of the draw of sequences.")
@options.plot("shares by layer, and the gradient by neuron,")
@options.text
@options.bos
@options.model
@options.full
@options.output
@click.pass_context
def health(
    context: click.Context,
    /,
    corpus: str,
    tokens: int,
    everything: bool,
    no_flow: bool,
    top: int,
    plot: Path | None,
    choice: ModelChoice,
    full: bool,
    form: str,
    **settings: Any,
) -> None:
    """Read a sample of CORPUS, forward and back, and say how every neuron fares.

    dead: never fires. stuck: passes no gradient at any position read (|act'| < 0.01 at all), as every dead ReLU neuron;
    a dead GELU neuron need not be. saturated: in one regime at 99% of positions, flat (|act'| < 0.01) or linear
    (|act' - 1| < 0.01). dL/dpre: the mean size of the loss's gradient at the pre-activation, where the loss is summed
    over a sequence: nats for one unit at one position. half: the share of neurons that carries half of it.

    CORPUS is what ffnmem scan takes; default atlas, the corpus that comes with ffnmem.

    \b
    Examples
      ffnmem health atlas
      ffnmem health texts.jsonl --tokens 5000 --no-flow --top 10
      ffnmem health atlas --plot health.png
      ffnmem health atlas --csv > neurons.csv

    --csv has one row a neuron: layer, neuron, fires, dead, local_gradient, flat, linear, stuck, saturated, and
    without --no-flow flow_coefficient, flow_pre and both with _rms. --json has the layers, the neurons listed (with
    --full all) and where the numbers come from.
    """
    if everything and "tokens" in given(context):
        raise InputError("--all reads everything: leave --tokens out")
    if form == "csv" and "top" in given(context):
        raise InputError("--csv has every neuron: leave --top out")
    model = choice.load()

    with Progress() as bars:
        found = fm.neurons.neuron_health(
            model,
            corpus,
            tokens=None if everything else tokens,
            prepend_bos=choice.prepend_bos,
            flow=not no_flow,
            progress=bars.report,
            **settings,
        )
    emit(found, form, sheet=lambda: found.sheet(top), data=lambda: found.to_dict(None if full else top))
    if plot is not None:
        save_figure(found, plot)


# `ffnmem dying-relu`: neurons pushed into the dead zone, and who comes back.


@click.command("dying-relu", cls=Command, short_help="Dead ReLU neurons stay dead; who comes back with GELU and SiLU.")
@option("--steps", type=COUNT, default=DYING_STEPS, metavar="N", help="Of training.")
@option("--share", type=float, default=DYING_SHARE, metavar="SHARE", help="Of the 64 hidden neurons to push.")
@option(
    "--depth",
    type=float,
    default=DYING_DEPTH,
    metavar="SIGMAS",
    help="How far below 0 a pushed neuron's highest pre-activation is, in standard deviations of it.",
)
@option(
    "--activation",
    "activations",
    multiple=True,
    metavar="NAME",
    help="Train with this one; may be given again.  [default: relu, gelu, silu]",
)
@option("--optimiser", type=click.Choice(DYING_OPTIMISERS), default="adam", help="How weights are changed.")
@option("--rate", type=float, metavar="RATE", help="The learning rate.  [default: 0.001 for adam, 0.1 for sgd]")
@options.seed("Of data and weights.")
@options.plot("the share still dead and the loss, by step,")
@options.output
def dying_relu(activations: tuple[str, ...], plot: Path | None, form: str, **settings: Any) -> None:
    """Train one small FFN with ReLU, GELU and SiLU from the same weights, half of its neurons pushed first to where
    they fire for no input, and count who fires again.

    A dead ReLU neuron has a gradient of exactly 0 at every input, so no weight of it ever moves. GELU and SiLU keep a
    small one, the smaller the deeper: some of their neurons come back, more near the edge (--depth), and with Adam,
    which makes much of small gradients; plain gradient descent (sgd) at its default rate brings back hardly any.

    \b
    Examples
      ffnmem dying-relu
      ffnmem dying-relu --seed 1 --depth 2 --csv
      ffnmem dying-relu --optimiser sgd --plot dying.png

    --csv has one row for each activation and step: activation, step, dead, pushed_dead, zero_slope, gradient, loss.
    --json has these, a summary and the settings.
    """
    with Progress() as bars:
        found = fm.neurons.dying_relu(activations=activations or DYING_ACTIVATIONS, progress=bars.report, **settings)
    emit(found, form)
    if plot is not None:
        save_figure(found, plot)
