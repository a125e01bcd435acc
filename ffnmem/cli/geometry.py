"""``ffnmem anatomy`` and ``ffnmem geometry``: what can be read off the weights."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

import ffnmem as fm

from ..core.defaults import DUPLICATE_COSINE
from ..core.errors import InputError
from ..show.records import emit
from . import click_options as options
from .click_guard import Command
from .click_options import COUNT, ModelChoice, argument, given, option
from .figures import save_axes, write_figure
from .progress import Progress

# `ffnmem anatomy`: where a model's parameters and arithmetic are, and what its FFNs are as memories.


@click.command(cls=Command, short_help="Where parameters and FLOPs are, and the FFNs as memories; no weights are read.")
@argument("model", default="atlas", metavar="[MODEL]")
@option(
    "--context",
    type=COUNT,
    metavar="N",
    help="FLOPs are those of a token that attends over N positions.  [default: 1024, or all that the model has]",
)
@options.plot("all parameters as one bar and one layer's matrices to scale")
@options.output
def anatomy(model: str, context: int | None, plot: Path | None, form: str) -> None:
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
    from ..models.parameters import anatomy as dissect

    found = dissect(model, context=context)
    if plot is not None:  # the whole above, one layer below
        from matplotlib.figure import Figure

        from ..plots.weights import HEIGHTS, SIZE

        figure = Figure(figsize=SIZE, layout="constrained")
        fm.plots.anatomy(found, figure.subplots(2, 1, height_ratios=HEIGHTS))
        write_figure(figure, plot)
    emit(found, form)


# `ffnmem geometry`: how crowded the keys and values of each layer are.


@click.command(cls=Command, short_help="How keys and values share their space: overlap, rank, capacity, duplicates.")
@option("--layer", type=options.LAYER, multiple=True, metavar="LAYER", help="Only this layer; may be given again.")
@option("--duplicates", is_flag=True, help="Also seek neurons, within and across layers, that nearly coincide.")
@option(
    "--threshold",
    type=float,
    default=DUPLICATE_COSINE,
    metavar="COSINE",
    help="With --duplicates: above this cosine two keys, values or gates nearly coincide.",
)
@option(
    "--limit",
    type=COUNT,
    default=20,
    metavar="N",
    help="With --duplicates: how many pairs to list by keys, by values, (by gates,) and by both.",
)
@option("--neurons", is_flag=True, help="With --json or --csv: one row a neuron as well, or instead.")
@options.seed("Of the random vectors.")
@options.plot("overlap, capacity, input-output cosine, read-write classes and effective rank by layer")
@options.model
@options.output
@click.pass_context
def geometry(
    context: click.Context,
    /,
    layer: tuple[int, ...],
    duplicates: bool,
    threshold: float,
    limit: int,
    neurons: bool,
    seed: int,
    plot: Path | None,
    choice: ModelChoice,
    form: str,
) -> None:
    """Measure, from the weights alone, how the keys and the values of each layer share their space.

    Cosines of pairs of neurons are compared with those of random vectors that are as anisotropic as the layer's own;
    effective rank and capacity (the share of a dimension that a neuron has to itself) with those of random vectors of
    the same lengths; the cosine of a neuron's key and value with keys and values of different neurons. A gated model
    has gates besides, and their cosines with value and key; by all three a neuron belongs to one of eleven read-write
    classes, such as conditional strengthening, which are counted by layer.

    \b
    Examples
      ffnmem geometry
      ffnmem geometry --layer 1 --layer 2 --plot geometry.png
      ffnmem geometry --duplicates --threshold 0.6
      ffnmem geometry --layer 0 --neurons --csv

    --csv has one row a layer; with --neurons, a neuron (layer, neuron, io_cosine, read_write, and norm, capacity and
    interference of key and value); with --duplicates, a pair (by, rank, layer, neuron, other_layer, other_neuron,
    key_cosine, value_cosine). Gated models have columns of the gate too. --json has these, the classes and all else.
    The manual of the library's geometry names the columns by layer.
    """
    for name, flag in given(context).items():
        if not duplicates and name in ("threshold", "limit"):
            raise InputError(f"{flag} goes with --duplicates: give that, or leave it out")
    if neurons and form == "table":
        raise InputError("--neurons lists every neuron: give --csv or --json with it")
    if neurons and duplicates and form == "csv":
        raise InputError("--csv prints one table: give --neurons or --duplicates, or --json for both")
    model = choice.load()
    with Progress() as progress:
        found = fm.neurons.geometry(
            model,
            layers=layer or None,
            threshold=threshold if duplicates else None,
            limit=limit,
            seed=seed,
            progress=progress.report,
        )
    pairs = found.duplicates
    emit(
        found,
        form,
        sheet=lambda: found.sheet(limit),
        data=lambda: found.to_dict(neurons=neurons),
        frame=lambda: pairs if pairs is not None else found.neurons if neurons else found.layers,
    )
    if plot is not None:
        from ..plots.weights import DRAWS

        save_axes([partial(fm.plots.geometry, found, what) for what in DRAWS], plot)
