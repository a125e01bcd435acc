"""``ffnmem anatomy``: where a model's parameters and arithmetic are, and what its FFNs are as memories."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.text import Text

from .._version import __version__
from ..show.records import print_csv, print_json
from ..show.terminal import captioned, console, labelled, percent, plain_table, user_text
from .figure import check_figure, write_figure
from .guard import Command
from .options import COUNT, output_options, plot_option, text

if TYPE_CHECKING:
    from rich.table import Table

    from ..models.anatomy import Anatomy


@click.command(cls=Command, short_help="Where parameters and FLOPs are, and the FFNs as memories; no weights are read.")
@click.argument("model", type=text, default="atlas", metavar="[MODEL]")
@click.option(
    "--context",
    type=COUNT,
    metavar="N",
    help="FLOPs are those of a token that attends over N positions.  [default: 1024, or all that the model has]",
)
@plot_option("all parameters as one bar and one layer's matrices to scale")
@output_options
def anatomy(model: str, context: int | None, plot: str | None, form: str) -> None:
    """Count a model's parameters and the FLOPs of a token by component, and describe its FFNs as memories.

    MODEL is atlas (the default), a folder of which config.json is enough, or a Hugging Face id such as gpt2. Only the
    config is read and no weights, so that the largest model takes as long as the smallest. FLOPs are those of matrix
    products in one forward pass, two for a multiply-add. Parity is the width at which an FFN of the other kind, gated
    or classic, has as many weights.

    \b
    Examples
      ffnmem anatomy
      ffnmem anatomy atlas --context 128 --csv
      ffnmem anatomy --plot anatomy.png

    --csv has one row a component: component, layer_parameters, parameters, share, layer_flops, flops, flops_share.
    --json has these and all else.
    """
    from ..models.dissecting import anatomy as dissect

    figure = None if plot is None else check_figure(plot)
    found = dissect(model, context=context)
    if figure is not None:
        draw(found, figure)
    if form == "csv":
        frame = found.to_frame()
        print_csv(list(frame.columns), frame.to_dict("records"))
    elif form == "json":
        print_json(found.to_dict())
    else:
        print_anatomy(found)


def print_anatomy(found: Anatomy) -> None:
    out = console()
    kind = f"{found.architecture}, {found.ledger.n_layers:,} layers, d_model {found.d_model:,}"
    out.print(user_text(found.name, "bold").append(f": {kind}, vocabulary {found.d_vocab:,}"))
    out.print()
    out.print(component_table(found))
    out.print()
    out.print(labelled({name: Text(words) for name, words in found.summary().items()}))
    out.print()
    out.print(user_text(f"config of {found.name} · ffnmem {__version__}", "dim"))


def component_table(found: Anatomy) -> Table:
    """One row a component, and their sum."""
    table = plain_table("component", "parameters", "share", "FLOPs a token", "share", left=["component"])
    for row in found.to_frame().to_dict("records"):
        numbers = (f"{row['parameters']:,}", percent(row["share"]), f"{row['flops']:,}", percent(row["flops_share"]))
        table.add_row(row["component"], *numbers)
    table.add_row("all", f"{found.parameters:,}", percent(1.0), f"{found.ledger.flops:,}", percent(1.0), style="bold")
    return captioned(table, f"FLOPs of a token that attends over {found.ledger.context:,} positions")


def draw(found: Anatomy, file: Path) -> None:
    """The figure: the whole above, one layer below."""
    from matplotlib.figure import Figure

    from ..anatomy_plots import HEIGHTS, SIZE, plot_anatomy

    figure = Figure(figsize=SIZE, layout="constrained")
    plot_anatomy(found, figure.subplots(2, 1, height_ratios=HEIGHTS))
    write_figure(figure, file)
