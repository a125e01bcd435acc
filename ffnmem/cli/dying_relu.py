"""``ffnmem dying-relu``: neurons pushed into the dead zone, and who comes back."""

from __future__ import annotations

from functools import partial

import click

from ..core import choices
from ..show.records import emit
from .figure import check_figure, save_axes
from .guard import Command
from .options import COUNT, output_options, plot_option, seed_option, text
from .progress import Progress


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
    from ..health import dying_relu as train

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
        from ..health_plots import plot_dying

        first = "pushed_dead" if found.settings["pushed"] else "dead"
        save_axes([partial(plot_dying, found, what) for what in (first, "loss")], figure)
