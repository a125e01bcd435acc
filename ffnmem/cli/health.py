"""``ffnmem health`` and ``ffnmem dying-relu``: neurons that never fire, and who comes back."""

from __future__ import annotations

from functools import partial

import click

from ..core import choices
from ..core.errors import InputError
from ..show.records import emit
from .figures import check_figure, save_axes
from .guard import Command
from .options import (
    COUNT,
    ModelChoice,
    bos_option,
    column_option,
    documents_option,
    full_option,
    given,
    model_options,
    output_options,
    plot_option,
    seed_option,
    text,
    top_option,
)
from .progress import Progress

# `ffnmem health`: which neurons never fire, which pass no gradient, and how much of it each one carries.


@click.command(cls=Command, short_help="Dead, stuck and saturated neurons, and the gradient that each carries.")
@click.argument("corpus", type=text, default="atlas")
@click.option(
    "--tokens",
    type=COUNT,
    default=20_000,
    show_default=True,
    metavar="N",
    help="Read whole sequences, drawn at random, until they hold so many tokens.",
)
@click.option("--all", "everything", is_flag=True, help="Read all of the corpus instead.")
@click.option(
    "--context",
    type=COUNT,
    metavar="N",
    help="The longest sequence in tokens, BOS included.  [default: 128, or what the model reads]",
)
@click.option(
    "--batch-tokens",
    type=COUNT,
    default=2048,
    show_default=True,
    metavar="N",
    help="Tokens of one pass; fewer need less memory.",
)
@click.option("--no-flow", is_flag=True, help="Leave the way back out: no gradients of the loss, half the time.")
@top_option("Neurons to list at each end.", 5)
@seed_option("Of the draw of sequences.")
@plot_option("shares by layer, and the gradient by neuron,")
@column_option
@documents_option
@bos_option
@model_options
@full_option
@output_options
@click.pass_context
def health(
    setting: click.Context,
    /,
    corpus: str,
    tokens: int,
    everything: bool,
    context: int | None,
    batch_tokens: int,
    no_flow: bool,
    top: int,
    seed: int,
    plot: str | None,
    column: str,
    documents: str | None,
    choice: ModelChoice,
    full: bool,
    form: str,
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
    if everything and "tokens" in given(setting):
        raise InputError("--all reads everything: leave --tokens out")
    if form == "csv" and "top" in given(setting):
        raise InputError("--csv has every neuron: leave --top out")
    figure = None if plot is None else check_figure(plot)
    model = choice.load()
    from ..neurons.health import neuron_health

    with Progress() as bars:
        found = neuron_health(
            model,
            corpus,
            tokens=None if everything else tokens,
            context=context,
            batch_tokens=batch_tokens,
            prepend_bos=choice.prepend_bos,
            flow=not no_flow,
            seed=seed,
            text=column,
            documents=documents,
            progress=bars.report,
        )
    emit(found, form, sheet=lambda: found.sheet(top), data=lambda: found.to_dict(None if full else top))
    if figure is not None:
        from ..plots.firing import health

        save_axes([partial(health, found, what) for what in ("shares", "flow")[: 1 + found.flow]], figure)


# `ffnmem dying-relu`: neurons pushed into the dead zone, and who comes back.


@click.command("dying-relu", cls=Command, short_help="Dead ReLU neurons stay dead; who comes back with GELU and SiLU.")
@click.option("--steps", type=COUNT, default=choices.DYING_STEPS, show_default=True, metavar="N", help="Of training.")
@click.option(
    "--share",
    type=float,
    default=choices.DYING_SHARE,
    show_default=True,
    metavar="SHARE",
    help="Of the 64 hidden neurons to push.",
)
@click.option(
    "--depth",
    type=float,
    default=choices.DYING_DEPTH,
    show_default=True,
    metavar="SIGMAS",
    help="How far below 0 a pushed neuron's highest pre-activation is, in standard deviations of it.",
)
@click.option(
    "--activation",
    "activations",
    type=text,
    multiple=True,
    metavar="NAME",
    help="Train with this one; may be given again.  [default: relu, gelu, silu]",
)
@click.option(
    "--optimiser",
    type=click.Choice(choices.DYING_OPTIMISERS),
    default="adam",
    show_default=True,
    help="How weights are changed.",
)
@click.option("--rate", type=float, metavar="RATE", help="The learning rate.  [default: 0.001 for adam, 0.1 for sgd]")
@seed_option("Of data and weights.")
@plot_option("the share still dead and the loss, by step,")
@output_options
def dying_relu(
    steps: int,
    share: float,
    depth: float,
    activations: tuple[str, ...],
    optimiser: str,
    rate: float | None,
    seed: int,
    plot: str | None,
    form: str,
) -> None:
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
    figure = None if plot is None else check_figure(plot)
    from ..neurons.dying import dying_relu as train

    with Progress() as bars:
        found = train(
            seed=seed,
            steps=steps,
            share=share,
            depth=depth,
            activations=activations or choices.DYING_ACTIVATIONS,
            optimiser=optimiser,
            rate=rate,
            progress=bars.report,
        )
    emit(found, form)
    if figure is not None:
        from ..plots.firing import dying

        first = "pushed_dead" if found.settings["pushed"] else "dead"
        save_axes([partial(dying, found, what) for what in (first, "loss")], figure)
