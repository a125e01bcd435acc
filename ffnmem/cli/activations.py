"""``ffnmem activations``: the activation functions of FFNs with their gradients, as a table, a figure or a page."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .._version import __version__
from ..errors import quoted
from ..files import check_destination
from ..show.records import print_csv, print_json
from ..show.terminal import console, number, plain_table
from .figure import check_figure, write_figure
from .guard import Command, note
from .options import output_options, plot_option, text

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table

    from ..ffn.activations import Activation

PLACES = 4
GAP = 2  # columns between two cells
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


@click.command(cls=Command, short_help="Activation functions and their gradients: table, figure, explorer.")
@click.argument("names", metavar="[NAME]...", type=text, nargs=-1)
@click.option(
    "--at",
    type=numbers,
    multiple=True,
    metavar="X",
    help="Only at these points: a number, or several with commas; may be given again.  [default: -2,-1,-0.5,0,0.5,1,2]",
)
@click.option(
    "--beta", type=float, default=BETA, show_default=True, metavar="B", help="β of the Swish, xσ(βx); at least 0."
)
@plot_option("curves and gradients")
@click.option(
    "--html",
    type=text,
    metavar="FILE",
    help="Also write the explorer into FILE: one page with a movable line, for any browser, without a network.",
)
@output_options
def activations(
    names: tuple[str, ...],
    at: tuple[tuple[float, ...], ...],
    beta: float,
    plot: str | None,
    html: str | None,
    form: str,
) -> None:
    """Show activation functions and their gradients at some points; no model is needed.

    NAMEs are relu, gelu, gelu_tanh, silu, swish (that of --beta), relu2, sigmoid and identity, or what Hugging Face
    calls them, such as gelu_new; default: all. The explorer has them all, whatever is named.

    \b
    Examples
      ffnmem activations
      ffnmem activations gelu silu --at -0.7518 --at -1.2785
      ffnmem activations --beta 5 --plot activations.pdf
      ffnmem activations --html activations.html

    --csv has name, beta, x, value, gradient in float64; --json these by activation with the formulas and the sources.
    """
    from ..activation_curves import POINTS, activation_table, curves

    figure = None if plot is None else check_figure(plot)
    page = None if html is None else check_destination(html)
    shown = curves(names or None, beta)
    points = tuple(x for some in at for x in some) or POINTS
    frame = activation_table(points, names or None, beta)
    if figure is not None:
        draw(names, beta, figure)
    if page is not None:
        from ..reports.activations import activations_report

        note(f"wrote {activations_report(page, beta=beta)}")
    if form == "csv":
        columns = ["name", "beta", "x", "value", "gradient"]
        print_csv(columns, frame[columns].to_dict("records"))
    elif form == "json":
        print_json(described(shown, frame))
    else:
        print_activations(shown, frame)


def described(shown: list[Activation], frame: pd.DataFrame) -> dict[str, Any]:
    """The activations with their formulas, and their values and gradients, as plain values."""
    rows = frame[["x", "value", "gradient"]].to_dict("records")
    count = len(rows) // len(shown)
    fields = ("name", "title", "beta", "formula", "gradient_formula", "source")
    return {
        "activations": [
            {**{field: getattr(one, field) for field in fields}, "points": rows[i * count : (i + 1) * count]}
            for i, one in enumerate(shown)
        ],
        "ffnmem": __version__,
    }


def print_activations(shown: list[Activation], frame: pd.DataFrame) -> None:
    out = console()
    points = [f"{x:g}" for x in frame["x"][: len(frame) // len(shown)]]
    parts: list[Table] = []
    for column, title in (("value", "f(x) at x ="), ("gradient", "f′(x) at x =")):
        cells = [number(value, PLACES) for value in frame[column]]
        rows = {one.title: cells[i * len(points) : (i + 1) * len(points)] for i, one in enumerate(shown)}
        parts += tables(title, points, rows, out.width)
    for index, table in enumerate(parts):
        if index:
            out.print()
        out.print(table)


def tables(title: str, points: list[str], rows: dict[str, list[str]], width: int) -> Iterator[Table]:
    """One row an activation, one column a point, as many of these a table as the width allows."""
    widths = [max(map(len, cells)) for cells in zip(points, *rows.values(), strict=True)]
    start = 0
    while start < len(points):
        left, stop = width - max(map(len, [title, *rows])), start
        while stop < len(points) and (stop == start or left >= GAP + widths[stop]):
            left -= GAP + widths[stop]
            stop += 1
        table = plain_table(title, *points[start:stop], left=[title])
        for name, cells in rows.items():
            table.add_row(name, *cells[start:stop])
        yield table
        start = stop


def draw(names: tuple[str, ...], beta: float, file: Path) -> None:
    """The figure: curves and gradients side by side."""
    from matplotlib.figure import Figure

    from ..activations_plots import plot_activations

    figure = Figure(figsize=(11, 4.4), layout="constrained")
    plot_activations(names or None, beta, figure.subplots(1, 2))
    write_figure(figure, file)
