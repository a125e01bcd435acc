"""``ffnmem project``: what memories stand for, in tokens."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

import ffnmem as fm

from ..errors import InputError, quoted
from ..show.records import print_csv, print_json
from ..show.terminal import console, decimals, number, plain_table, provenance_line, token
from .guard import Command
from .options import BASES, SIDES, ModelChoice, model_options, output_options, text, top_option
from .project_modes import chosen_mode, print_hits, print_promoters, write_all

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table

    from ..models import Model

Neuron = tuple[int, int]


@click.command(cls=Command, short_help="What memories write, and what excites them, in tokens.")
@click.argument("neurons", type=text, nargs=-1, metavar="[LAYER.NEURON...]")
@click.option("--all", "whole", is_flag=True, help="All neurons, of all layers or of --layer, into the file --out.")
@click.option("--out", type=text, metavar="FILE", help="The Parquet file that --all writes.")
@click.option("--layer", type=int, metavar="LAYER", help="Only this layer, with --all or --token.")
@click.option(
    "--token",
    "tokens",
    type=text,
    multiple=True,
    metavar="TOKEN",
    help='The neurons that most promote and suppress this token, with its leading space: " Paris". Given again: on '
    "average over the tokens.",
)
@click.option("--first-token", is_flag=True, help="Take the first token of a --token of several instead of refusing.")
@click.option("--search", type=text, metavar="TEXT", help="Find tokens with this text in a file that --all wrote.")
@click.option("--in", "source", type=text, metavar="FILE", help="The file that --search looks into.")
@click.option("--exact", is_flag=True, help="With --search: the whole token, in this case, with its leading space.")
@click.option(
    "--side",
    type=click.Choice(SIDES),
    help="The value (what the neuron writes), the key (what excites it), the gate (what lets it fire, if gated), or "
    "both: all that it has.  [default: both; value with --token]",
)
@click.option(
    "--basis",
    type=click.Choice(BASES),
    help="folded: with the gain of the norm between; raw: the bare product with the (un)embedding.  [default: folded]",
)
@top_option("How many tokens on each side of zero; with --token, neurons; with --search, rows.", 10)
@model_options
@output_options
@click.pass_context
def project(
    context: click.Context,
    neurons: tuple[str, ...],
    whole: bool,
    out: str | None,
    layer: int | None,
    tokens: tuple[str, ...],
    first_token: bool,
    search: str | None,
    source: str | None,
    exact: bool,
    side: str | None,
    basis: str | None,
    top: int,
    choice: ModelChoice,
    form: str,
) -> None:
    """Name the tokens that a neuron's value promotes and suppresses, and those that excite and inhibit its key.

    Each neuron is LAYER.NEURON, as the other commands print it; put spaces or commas between several. A value's score
    is what a coefficient of 1 adds to the token's logit, before the final norm's scale. A key's score is how the
    token's own embedding moves the pre-activation, which says nothing about context. Instead of neurons, --all writes
    those of a whole model to a file, --search finds words in it, and --token asks which neurons stand for a token.

    \b
    Examples
      ffnmem project 5.349
      ffnmem project 5.349,5.171 1.786 --side value --top 5
      ffnmem project 0.7 --basis raw --json
      ffnmem project --all --out values.parquet --side value --top 20
      ffnmem project --search paris --in values.parquet
      ffnmem project --token " Paris" --token " London"

    --json and --csv have layer, neuron, side, sign, rank, token, token_id, score, basis; with --token, the token's
    columns are last; with --all, file, neurons, rows, bytes.
    """
    mode = chosen_mode(context)
    if mode == "--search":
        assert search is not None
        asked = None if side in (None, "both") else side
        print_hits(fm.search_projection(source or "", search, side=asked, exact=exact, limit=top), form)
        return
    sides = None if side == "both" or (side is None and mode != "--token") else (side or "value",)
    folding = basis or "folded"
    if mode == "--all":
        write_all(choice.load(), str(out), layer, sides, folding, top, form)
    elif mode == "--token":
        found = fm.promoters(
            choice.load(), tokens, k=top, layer=layer, basis=folding, side=sides, first_token=first_token
        )
        print_promoters(found, form)
    else:
        named = read_neurons(neurons)
        print_projection(project_all(choice.load(), named, sides, folding, top), form)


def print_projection(frame: pd.DataFrame, form: str) -> None:
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
            raise InputError(f"{quoted(part)} names no neuron: write LAYER.NEURON, two whole numbers such as 3.17")
        neuron = int(match[1]), int(match[2])
        if neuron not in found:
            found.append(neuron)
    return found


def project_all(
    model: Model, neurons: Sequence[Neuron], sides: Sequence[str] | None, basis: str, top: int
) -> pd.DataFrame:
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


MEANINGS = {
    "value": "what it writes towards and against",
    "key": "what excites and inhibits it",
    "gate": "what opens and shuts its gate",
}


def print_tables(frame: pd.DataFrame) -> None:
    out = console()
    for _, rows in frame.groupby(["layer", "neuron", "side"], sort=False):
        out.print(token_table(rows))
        out.print()
    out.print(provenance_line(frame.attrs["provenance"], out.width))


def token_table(rows: pd.DataFrame) -> Table:
    """One side of one neuron: the two ends of its ranking beside each other."""
    first = rows.iloc[0]
    meaning = MEANINGS[str(first["side"])]
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
