"""``ffnmem dying-relu``: neurons pushed into the dead zone, and who comes back."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

import click
from rich.text import Text

from ..show.records import print_csv, print_json
from ..show.terminal import captioned, console, number, percent, plain_table
from .figure import check_figure, save_axes
from .guard import Command
from .options import COUNT, output_options, plot_option, seed_option, text
from .progress import Progress

if TYPE_CHECKING:
    from rich.table import Table

    from ..health import Dying

OPTIMISERS = ("adam", "sgd")  # as in the library, which is too slow to import for a manual
ACTIVATIONS = ("relu", "gelu", "silu")


@click.command("dying-relu", cls=Command, short_help="Dead ReLU neurons stay dead; who comes back with GELU and SiLU.")
@click.option("--steps", type=COUNT, default=2000, show_default=True, metavar="N", help="Of training.")
@click.option(
    "--share", type=float, default=0.5, show_default=True, metavar="SHARE", help="Of the 64 hidden neurons to push."
)
@click.option(
    "--depth",
    type=float,
    default=0.5,
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
    "--optimiser", type=click.Choice(OPTIMISERS), default="adam", show_default=True, help="How weights are changed."
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
            activations=activations or ACTIVATIONS,
            optimiser=optimiser,
            rate=rate,
            progress=bars.report,
        )
    if form == "csv":
        print_csv(list(found.frame.columns), found.frame.to_dict("records"))
    elif form == "json":
        print_json(found.to_dict())
    else:
        print_dying(found)
    if figure is not None:
        from ..health_plots import plot_dying

        first = "pushed_dead" if found.settings["pushed"] else "dead"
        save_axes([partial(plot_dying, found, what) for what in (first, "loss")], figure)


def print_dying(found: Dying) -> None:
    out = console()
    pushed, of = found.settings["pushed"], found.settings["d_mlp"]
    out.print(Text(f"{pushed} of {of} neurons pushed to where they fire for no input", "bold"))
    for part in (step_table(found), summary_table(found)):
        out.print(part)
        out.print()
    out.print(Text(" · ".join(f"{name} {value}" for name, value in found.settings.items()), "dim"))


def step_table(found: Dying) -> Table:
    """The share of the pushed neurons that is dead, and the loss, by step."""
    names = [f"{name} {what}" for name in found.activations for what in ("dead", "loss")]
    table = plain_table("step", *names)
    pushed = found.settings["pushed"]
    column = "pushed_dead" if pushed else "dead"
    for step, rows in found.frame.groupby("step"):
        by = rows.set_index("activation")
        cells = [(percent(by.at[name, column]), number(by.at[name, "loss"], 4)) for name in found.activations]
        table.add_row(str(step), *(cell for pair in cells for cell in pair))
    of_whom = "of the pushed neurons, " if pushed else "of all neurons (none was pushed), "
    return captioned(table, f"dead: {of_whom}those that fire for no input; loss: mean square error")


def summary_table(found: Dying) -> Table:
    """What became of them in the end."""
    table = plain_table("", "came back", "dead", "act' = 0", "largest gradient of a dead neuron", left=[""])
    for row in found.summary.to_dict("records"):
        largest = row["largest_gradient"]
        table.add_row(
            row["activation"],
            *(percent(row[name]) for name in ("recovered", "dead", "zero_slope")),
            "0, at every step" if largest == 0 else "–" if math.isnan(largest) else f"{largest:.1e}",
        )
    return captioned(
        table, "came back: of the pushed neurons; dead, and act' = 0 at every input: of all; after the last step"
    )
