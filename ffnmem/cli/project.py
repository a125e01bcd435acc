"""``ffnmem project``: what memories stand for, in tokens, for one, for all, and the other way round."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

import ffnmem as fm

from ..core.errors import InputError
from ..core.neuron_names import read_neuron
from ..core.sheets import Origin, Sheet, Words
from ..show.records import emit
from .guard import Command
from .options import BASES, SIDES, ModelChoice, given, model_options, output_options, text, top_option
from .progress import late_bar

if TYPE_CHECKING:
    from ..models.model import Model


# What else `ffnmem project` does: a whole model into a file, words in such a file, the neurons behind a token.

NEURONS = "LAYER.NEURON"
LOADED = {"name", "device", "dtype"}
PRINTED = {"side", "top", "as_json", "as_csv"}
MODES = {  # what asks for each, and what goes with it
    NEURONS: ("neurons", {"basis"} | LOADED | PRINTED),
    "--all": ("whole", {"out", "layer", "basis"} | LOADED | PRINTED),
    "--token": ("tokens", {"first_token", "layer", "basis"} | LOADED | PRINTED),
    "--search": ("search", {"source", "exact"} | PRINTED),
}
NEEDS = {
    "--all": ("out", "--out FILE, the file to write"),
    "--search": ("source", "--in FILE, a file that --all wrote"),
}
WAIT = 2.0  # seconds before a bar is worth showing


def chosen_mode(context: click.Context) -> str:
    """The one thing that was asked for; raises InputError for none, and for an option that would do nothing with it."""
    asked = given(context)
    if not context.params["neurons"]:
        asked.pop("neurons", None)
    mode = next((mode for mode, (key, _) in MODES.items() if key in asked), None)
    if mode is None:
        raise InputError(
            f"nothing to project: name neurons as {NEURONS}, such as 3.17, or give --all, --token or --search"
        )
    key, partners = MODES[mode]
    for name, parameter in asked.items():
        if name not in partners | {key, "help"}:
            raise InputError(f"{label(parameter)} does not go with {mode}: leave one of them out")
    needed, meaning = NEEDS.get(mode, ("", ""))
    if needed and needed not in asked:
        raise InputError(f"{mode} needs {meaning}")
    return mode


def label(parameter: click.Parameter) -> str:
    return parameter.opts[0] if isinstance(parameter, click.Option) else NEURONS


def write_all(
    model: Model, out: str, layer: int | None, sides: Sequence[str] | None, basis: str, top: int, form: str
) -> None:
    """``fm.project`` into a file, with a bar on standard error, and what is in it."""
    import pandas as pd

    from ..vocabulary.vectors import check_sides

    began = time.monotonic()
    with late_bar() as report:
        path = fm.project(model, layer, k=top, basis=basis, side=sides, out=out, progress=report)
    seconds = time.monotonic() - began
    counted = model.n_layers * model.d_mlp if layer is None else model.ffn[model.layer(layer)].d_mlp
    names = check_sides(sides, model)
    rows = counted * len(names) * 2 * min(top, model.d_vocab)
    summary = {"file": str(path), "neurons": counted, "rows": rows, "bytes": path.stat().st_size}
    size = f"{rows:,} rows, {path.stat().st_size / 1e6:,.1f} MB, {seconds:.1f} s"
    words = f"{counted:,} neurons, {' and '.join(names)}, {top} + {top} tokens: {size}"
    provenance = model.provenance(basis=basis).to_dict()
    emit(
        None,
        form,
        sheet=lambda: Sheet.of(Words.of(str(path), to_copy=True), Words.of(words), Origin(provenance)),
        data=lambda: {**summary, "provenance": provenance},
        frame=lambda: pd.DataFrame([summary]),
    )


# `ffnmem project`: what memories stand for, in tokens.

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
    from ..vocabulary import projections  # needs torch

    mode = chosen_mode(context)
    sides = None if side == "both" or (side is None and mode != "--token") else (side or "value",)
    folding = basis or "folded"
    if mode == "--all":
        write_all(choice.load(), str(out), layer, sides, folding, top, form)
        return
    if mode == "--search":
        assert search is not None
        asked = None if side in (None, "both") else side
        found = fm.vocabulary.search_projection(source or "", search, side=asked, exact=exact, limit=top)
        name, sheet = "tokens", projections.hits_sheet
    elif mode == "--token":
        found = fm.vocabulary.promoters(
            choice.load(), tokens, k=top, layer=layer, basis=folding, side=sides, first_token=first_token
        )
        name, sheet = "neurons", projections.promoters_sheet
    else:
        named = read_neurons(neurons)
        found = fm.project(choice.load(), named, k=top, basis=folding, side=sides)
        name, sheet = "tokens", projections.projection_sheet
    emit(
        None,
        form,
        sheet=lambda: sheet(found),
        data=lambda: {name: found.to_dict("records"), "provenance": found.attrs["provenance"]},
        frame=lambda: found,
    )


def read_neurons(texts: Sequence[str]) -> list[Neuron]:
    """(layer, neuron) of ``3.17`` or ``3.17,3.18``, each once; raises InputError naming what is neither."""
    found: list[Neuron] = []
    for part in (part.strip() for part in ",".join(texts).split(",")):
        neuron = read_neuron(part)
        if neuron not in found:
            found.append(neuron)
    return found
