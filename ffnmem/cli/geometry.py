"""``ffnmem geometry``: how crowded the keys and values of each layer are."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

import ffnmem as fm

from ..errors import InputError
from ..show.records import print_csv, print_json
from ..show.terminal import captioned, console, number, percent, plain_table, provenance_line
from .figure import check_figure, save_axes
from .guard import Command
from .options import COUNT, ModelChoice, given, model_options, output_options, plot_option, seed_option
from .progress import Progress

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table

    from ..semantics.geometry import Geometry


@click.command(cls=Command, short_help="How keys and values share their space: overlap, rank, capacity, duplicates.")
@click.option("--layer", type=int, multiple=True, metavar="LAYER", help="Only this layer; may be given again.")
@click.option("--duplicates", is_flag=True, help="Also seek neurons, within and across layers, that nearly coincide.")
@click.option(
    "--threshold",
    type=float,
    default=0.9,
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
    if form == "csv":
        frame = found.duplicates if found.duplicates is not None else found.neurons if neurons else found.layers
        print_csv(list(frame.columns), frame.to_dict("records"))
    elif form == "json":
        print_json(described(found, neurons))
    else:
        print_geometry(found)
    if figure is not None:
        from ..geometry_plots import DRAWS

        save_axes([partial(fm.plot_geometry, found, what) for what in DRAWS], figure)


def described(found: Geometry, neurons: bool) -> dict[str, Any]:
    """The geometry as plain values."""
    tables: dict[str, pd.DataFrame | None] = {
        "layers": found.layers,
        "neurons": found.neurons if neurons else None,
        "duplicates": found.duplicates,
        "duplicate_counts": found.duplicate_counts,
    }
    rows = {name: frame.to_dict("records") for name, frame in tables.items() if frame is not None}
    return {**rows, "provenance": found.provenance.as_dict()}


def print_geometry(found: Geometry) -> None:
    out = console()
    parts: list[Table | Text] = [overlap_table(found), space_table(found)]
    parts += [io_table(found, name) for name in found.alignments]
    if found.duplicates is not None:
        parts.append(duplicate_table(found, found.duplicates))
    for part in parts:
        out.print(part)
        out.print()
    provenance = found.provenance.as_dict()
    shown = {name: value for name, value in provenance.items() if name not in ("strengthening", "weakening", "limit")}
    out.print(provenance_line({k: v for k, v in shown.items() if v is not None}, out.width))


def overlap_table(found: Geometry) -> Table:
    """The cosines of pairs of keys, of values and of gates, beside those of random rows that are as anisotropic."""
    from ..reports.geometry import side_rows

    names = ("rms", "99.9%", "by chance", "max", "by chance", "neurons")
    table = plain_table("layer", "", *names, left=[""], title="cosines of pairs of neurons")
    for row in side_rows(found):
        table.add_row(
            str(row.layer) if row.side == "keys" else "",
            row.side,
            *(number(value, 3) for value in (row.rms, row.high, row.chance)),
            number(row.largest, 3, sign=True),
            number(row.chance_largest, 3),
            row.pair,
        )
    return captioned(
        table,
        "99.9%: the quantile of their size; max: the largest, and whose it is; by chance: random rows as anisotropic "
        f"as the layer's. The rms of random directions is {found.dimensions**-0.5:.3f}.",
    )


def space_table(found: Geometry) -> Table:
    """Effective rank and capacity, beside those of random rows."""
    from ..reports.geometry import side_rows

    names = ("entropy rank", "random", "capacity", "random", "features a dimension")
    table = plain_table("layer", "", *names, left=[""], title="effective rank and capacity")
    for row in side_rows(found):
        table.add_row(
            str(row.layer) if row.side == "keys" else "",
            row.side,
            *(number(value, 1) for value in (row.rank, row.random_rank)),
            *(percent(value) for value in (row.capacity, row.random_capacity)),
            number(row.features_per_dimension, 2),
        )
    return captioned(
        table,
        f"rank: of {found.dimensions} dimensions; capacity: the share of one that a neuron has to itself, median "
        "over neurons; random: rows of the same lengths; features: an estimate, each neuron counts as one at most.",
    )


def io_table(found: Geometry, name: str) -> Table:
    """One of the cosines within a neuron, beside those of different neurons."""
    from ..reports.geometry import ALIGNED, cosine_rows

    roles = name == "io"
    ends = ("strengthening", "weakening") if roles else (f"above {found.strengthening:g}", f"below {found.weakening:g}")
    names = ("median", "5%", "95%", "mismatched 95%", "beyond", *ends)
    table = plain_table("layer", *names, title=f"cosine of a neuron's {ALIGNED[name]}")
    for row in cosine_rows(found, name):
        table.add_row(
            str(row.layer),
            *(number(value, 3, sign=True) for value in (row.median, row.low, row.high)),
            " to ".join(number(value, 2, sign=True) for value in (row.chance_low, row.chance_high)),
            *(percent(value) for value in (row.beyond, row.above, row.below)),
        )
    meaning = (
        f"strengthening: above {found.strengthening:g}; weakening: below {found.weakening:g}."
        if roles
        else "its sign changes if key and value are turned round together, which changes nothing the neuron does."
    )
    return captioned(table, f"beyond: neurons outside of 95% of mismatched pairs, 5% by chance; {meaning}")


def duplicate_table(found: Geometry, duplicates: pd.DataFrame) -> Table | Text:
    if not len(duplicates):
        gates = "gate" in found.sides
        what = "keys, values or gates" if gates else "keys, or values,"
        return Text(f"near-duplicates: no two neurons have {what} with a cosine above {found.threshold:g}")
    totals = ", ".join(f"{found.duplicate_total(by):,} by {by}" for by in found.kinds)
    title = f"near-duplicates above {found.threshold:g}: {totals}"
    names = [f"{side} cosine" for side in found.sides]
    table = plain_table("by", "rank", "neuron", "other", *names, left=["by"], title=title)
    previous = None
    for row in duplicates.to_dict("records"):
        if previous not in (None, row["by"]):
            table.add_section()
        previous = row["by"]
        table.add_row(
            row["by"],
            str(row["rank"]),
            f"{row['layer']}.{row['neuron']}",
            f"{row['other_layer']}.{row['other_neuron']}",
            *(number(row[f"{side}_cosine"], 4, sign=True) for side in found.sides),
        )
    return table
