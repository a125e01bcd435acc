"""``ffnmem geometry``: how crowded the keys and values of each layer are."""

from __future__ import annotations

from functools import partial

import click

import ffnmem as fm

from ..core.choices import DUPLICATE_COSINE
from ..errors import InputError
from ..show.records import emit
from .figure import check_figure, save_axes
from .guard import Command
from .options import COUNT, ModelChoice, given, model_options, output_options, plot_option, seed_option
from .progress import Progress


@click.command(cls=Command, short_help="How keys and values share their space: overlap, rank, capacity, duplicates.")
@click.option("--layer", type=int, multiple=True, metavar="LAYER", help="Only this layer; may be given again.")
@click.option("--duplicates", is_flag=True, help="Also seek neurons, within and across layers, that nearly coincide.")
@click.option(
    "--threshold",
    type=float,
    default=DUPLICATE_COSINE,
    show_default=True,
    metavar="COSINE",
    help="With --duplicates: above this cosine two keys, values or gates nearly coincide.",
)
@click.option(
    "--limit",
    type=COUNT,
    default=20,
    show_default=True,
    metavar="N",
    help="With --duplicates: how many pairs to list by keys, by values, (by gates,) and by both.",
)
@click.option("--neurons", is_flag=True, help="With --json or --csv: one row a neuron as well, or instead.")
@seed_option("Of the random vectors.")
@plot_option("overlap, capacity, input-output cosine and effective rank by layer")
@model_options
@output_options
@click.pass_context
def geometry(
    setting: click.Context,
    /,
    layer: tuple[int, ...],
    duplicates: bool,
    threshold: float,
    limit: int,
    neurons: bool,
    seed: int,
    plot: str | None,
    choice: ModelChoice,
    form: str,
) -> None:
    """Measure, from the weights alone, how the keys and the values of each layer share their space.

    Cosines of pairs of neurons are compared with those of random vectors that are as anisotropic as the layer's own;
    effective rank and capacity (the share of a dimension that a neuron has to itself) with those of random vectors of
    the same lengths; the cosine of a neuron's key and value with keys and values of different neurons. A gated model
    has gates besides, and their cosines with value and key.

    \b
    Examples
      ffnmem geometry
      ffnmem geometry --layer 1 --layer 2 --plot geometry.png
      ffnmem geometry --duplicates --threshold 0.6
      ffnmem geometry --layer 0 --neurons --csv

    --csv has one row a layer; with --neurons, a neuron (layer, neuron, io_cosine, and norm, capacity and interference
    of key and value); with --duplicates, a pair (by, rank, layer, neuron, other_layer, other_neuron, key_cosine,
    value_cosine). Gated models have columns of the gate too. --json has these and all else. The manual of the library's
    geometry names the columns by layer.
    """
    for name in ("threshold", "limit"):
        if not duplicates and name in given(setting):
            raise InputError(f"--{name} goes with --duplicates: give that, or leave it out")
    if neurons and form == "table":
        raise InputError("--neurons lists every neuron: give --csv or --json with it")
    if neurons and duplicates and form == "csv":
        raise InputError("--csv prints one table: give --neurons or --duplicates, or --json for both")
    figure = None if plot is None else check_figure(plot)
    model = choice.load()
    with Progress() as progress:
        found = fm.geometry(
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
    if figure is not None:
        from ..geometry_plots import DRAWS

        save_axes([partial(fm.plot_geometry, found, what) for what in DRAWS], figure)
