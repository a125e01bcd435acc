"""``ffnmem activations``: the activation functions of FFNs with their gradients, as a table or a figure."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

import click

import ffnmem as fm

from ..core.errors import quoted
from ..show.records import emit
from ..show.terminal import console
from . import click_options as options
from .click_guard import Command
from .click_options import argument, option
from .figures import save_axes

BETA = 2.0  # as in activation_curves, which needs torch


def numbers(value: str) -> tuple[float, ...]:
    """A click type: one finite number, or several with commas between them."""
    try:
        found = tuple(float(part) for part in value.split(","))
    except ValueError:
        found = ()
    if not found or not all(math.isfinite(x) for x in found):
        raise click.BadParameter(f"{quoted(value)} is no number, or list of numbers with commas, such as -1,0.5")
    return found


@click.command(cls=Command, short_help="Activation functions and their gradients: table, figure.")
@argument("names", metavar="[NAME]...", nargs=-1)
@option(
    "--at",
    type=numbers,
    multiple=True,
    metavar="X",
    help="Only at these points: a number, or several with commas; may be given again.  [default: -2,-1,-0.5,0,0.5,1,2]",
)
@option("--beta", type=float, default=BETA, metavar="B", help="β of the Swish, xσ(βx); at least 0.")
@options.plot("curves and gradients")
@options.output
def activations(
    names: tuple[str, ...],
    at: tuple[tuple[float, ...], ...],
    beta: float,
    plot: Path | None,
    form: str,
) -> None:
    """Show activation functions and their gradients at some points; no model is needed.

    NAMEs are relu, gelu, gelu_tanh, silu, swish (that of --beta), relu2, sigmoid and identity, or what Hugging Face
    calls them, such as gelu_new; default: all.

    \b
    Examples
      ffnmem activations
      ffnmem activations gelu silu --at -0.7518 --at -1.2785
      ffnmem activations --beta 5 --plot activations.pdf

    --csv has name, beta, x, value, gradient in float64; --json these by activation with the formulas and the sources.
    """
    from ..ffn.activations import POINTS, activation_table, activations_dict, activations_sheet, curves

    shown = curves(names or None, beta)
    points = tuple(x for some in at for x in some) or POINTS
    frame = activation_table(points, names or None, beta)
    if plot is not None:
        draw = partial(fm.plots.activations, names or None, beta=beta)
        save_axes([draw, partial(draw, gradient=True)], plot)
    emit(
        None,
        form,
        sheet=lambda: activations_sheet(shown, frame, console().width),
        data=lambda: activations_dict(shown, frame),
        frame=lambda: frame[["name", "beta", "x", "value", "gradient"]],
    )
