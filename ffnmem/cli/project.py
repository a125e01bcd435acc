"""``ffnmem project``: what memories stand for, in tokens."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

import ffnmem as fm

from ..errors import InputError
from .guard import Command
from .options import BASES, SIDES, ModelChoice, model_options, output_options, text, top_option
from .output import print_csv, print_json
from .tables import console, decimals, number, plain_table, provenance_line, token

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table

    from ..models import Model

Neuron = tuple[int, int]


@click.command(cls=Command, short_help="What memories write, and what excites them, in tokens.")
@click.argument("neurons", type=text, nargs=-1, required=True, metavar="LAYER.NEURON...")
@click.option(
    "--side",
    type=click.Choice(SIDES),
    default="both",
    show_default=True,
    help="The value (what the neuron writes), the key (what excites it), or both.",
)
@click.option(
    "--basis",
    type=click.Choice(BASES),
    default="folded",
    show_default=True,
    help="folded: with the gain of the norm between; raw: the bare product with the (un)embedding.",
)
@top_option("How many tokens to list on each side of zero.", 10)
@model_options
@output_options
def project(neurons: tuple[str, ...], side: str, basis: str, top: int, choice: ModelChoice, form: str) -> None:
    """Name the tokens that a neuron's value promotes and suppresses, and those that excite and inhibit its key.

    Each neuron is LAYER.NEURON, as the other commands print it; put spaces or commas between several. A value's score
    is what a coefficient of 1 adds to the token's logit, before the final norm's scale. A key's score is how the
    token's own embedding moves the pre-activation, which says nothing about context.

    \b
    Examples
      ffnmem project 5.349
      ffnmem project 5.349,5.171 1.786 --side value --top 5
      ffnmem project 0.7 --basis raw --json

    --json and --csv have layer, neuron, side, sign, rank, token, token_id, score, basis.
    """
    asked = read_neurons(neurons)
    model = choice.load()
    frame = project_all(model, asked, ("value", "key") if side == "both" else (side,), basis, top)
    if form == "csv":
        print_csv(list(frame.columns), frame.to_dict("records"))
    elif form == "json":
        print_json({"tokens": frame.to_dict("records"), "provenance": frame.attrs["provenance"]})
    else:
        print_tables(frame)


def read_neurons(texts: Sequence[str]) -> list[Neuron]:
    """(layer, neuron) of ``3.17`` or ``3.17,3.18``, each once; raises InputError naming what is neither."""
    found: list[Neuron] = []
    for part in (part.strip() for part in ",".join(texts).split(",")):
        match = re.fullmatch(r"(\d{1,18})\.(\d{1,18})", part, re.ASCII)
        if match is None:
            raise InputError(f"{part!r} names no neuron: write LAYER.NEURON, two whole numbers such as 3.17")
        neuron = int(match[1]), int(match[2])
        if neuron not in found:
            found.append(neuron)
    return found


def project_all(model: Model, neurons: Sequence[Neuron], sides: Sequence[str], basis: str, top: int) -> pd.DataFrame:
    """``fm.project`` of neurons of several layers, in the order asked."""
    import pandas as pd

    for layer, neuron in neurons:
        model.neuron(layer, neuron)  # refuse all before computing any
    frames = {
        layer: fm.project(model, layer, [n for other, n in neurons if other == layer], k=top, basis=basis, side=sides)
        for layer in dict.fromkeys(layer for layer, _ in neurons)
    }
    ordered = [frames[layer][frames[layer]["neuron"] == neuron] for layer, neuron in neurons]
    result = pd.concat(ordered, ignore_index=True)
    result.attrs = next(iter(frames.values())).attrs
    return result


def print_tables(frame: pd.DataFrame) -> None:
    out = console()
    for _, rows in frame.groupby(["layer", "neuron", "side"], sort=False):
        out.print(token_table(rows))
        out.print()
    out.print(provenance_line(frame.attrs["provenance"], out.width))


def token_table(rows: pd.DataFrame) -> Table:
    """One side of one neuron: the two ends of its ranking beside each other."""
    first = rows.iloc[0]
    meaning = "what it writes towards and against" if first["side"] == "value" else "what excites and inhibits it"
    title = f"{first['layer']}.{first['neuron']} {first['side']}: {meaning}"
    table = plain_table(
        "rank", "promoted", "score", "suppressed", "score", left=["promoted", "suppressed"], title=title
    )
    for column in (1, 3):
        table.columns[column].min_width = 20
    places = decimals(rows["score"])
    ends = [rows[rows["sign"] == sign] for sign in ("promoted", "suppressed")]
    for high, low in zip(ends[0].itertuples(), ends[1].itertuples(), strict=True):
        table.add_row(
            str(high.rank),
            token(high.token, limit=24),
            number(high.score, places, sign=True),
            token(low.token, limit=24),
            number(low.score, places, sign=True),
        )
    return table
