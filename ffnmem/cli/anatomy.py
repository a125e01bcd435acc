"""``ffnmem anatomy``: where a model's parameters and arithmetic are, and what its FFNs are as memories."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..show.records import emit
from .figure import check_figure, write_figure
from .guard import Command
from .options import COUNT, output_options, plot_option, text

if TYPE_CHECKING:
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
    emit(found, form)


def draw(found: Anatomy, file: Path) -> None:
    """The figure: the whole above, one layer below."""
    from matplotlib.figure import Figure

    from ..anatomy_plots import HEIGHTS, SIZE, plot_anatomy

    figure = Figure(figsize=SIZE, layout="constrained")
    plot_anatomy(found, figure.subplots(2, 1, height_ratios=HEIGHTS))
    write_figure(figure, file)
