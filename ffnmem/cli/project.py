"""``ffnmem project``: what memories stand for, in tokens, for one, for all, and the other way round."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

import ffnmem as fm

from ..core.errors import InputError
from ..core.sheets import Origin, Sheet, Words
from ..show.records import emit
from . import click_options as options
from .click_guard import Command
from .click_options import BASES, SIDES, ModelChoice, argument, file_to_write, given, option, read_neurons
from .options import TABLE
from .progress import late_bar

if TYPE_CHECKING:
    from ..models.model import Model


NEURONS = "LAYER.NEURON"
LOADED = {"name", "device", "dtype"}
READ = {"basis", "lens"}
PRINTED = {"side", "top", "as_json", "as_csv"}
MODES = {  # what asks for each, and what goes with it
    NEURONS: ("neurons", READ | LOADED | PRINTED),
    "--all": ("whole", {"out", "layer"} | READ | LOADED | PRINTED),
    "--token": ("tokens", {"first_token", "layer"} | READ | LOADED | PRINTED),
    "--search": ("search", {"source", "exact"} | PRINTED),
}
NEEDS = {
    "--all": ("out", "--out FILE, the file to write"),
    "--search": ("source", "--in FILE, a file that --all wrote"),
}


@click.command(cls=Command, short_help="What memories write, and what excites them, in tokens.")
@argument("neurons", nargs=-1, metavar="[LAYER.NEURON...]")
@option("--all", "whole", is_flag=True, help="All neurons, of all layers or of --layer, into the file --out.")
@option("--out", callback=file_to_write(TABLE), metavar="FILE", help="The Parquet file that --all writes.")
@option("--layer", type=options.LAYER, metavar="LAYER", help="Only this layer, with --all or --token.")
@option(
    "--token",
    "tokens",
    multiple=True,
    metavar="TOKEN",
    help='The neurons that most promote and suppress this token, with its leading space: " Paris". Given again: on '
    "average over the tokens.",
)
@option("--first-token", is_flag=True, help="Take the first token of a --token of several instead of refusing.")
@option("--search", metavar="TEXT", help="Find tokens with this text in a file that --all wrote.")
@option("--in", "source", metavar="FILE", help="The file that --search looks into.")
@option("--exact", is_flag=True, help="With --search: the whole token, in this case, with its leading space.")
@option(
    "--side",
    type=click.Choice(SIDES),
    help="The value (what the neuron writes), the key (what excites it), the gate (what lets it fire, if gated), or "
    "both: all that it has.  [default: both; value with --token]",
)
@option(
    "--basis",
    type=click.Choice(BASES),
    help="folded: with the gain of the norm between; raw: the bare product with the (un)embedding.  [default: folded]",
)
@options.lens
@options.top("How many tokens on each side of zero; with --token, neurons; with --search, rows.", 10)
@options.model
@options.output
@click.pass_context
def project(
    context: click.Context,
    /,
    neurons: tuple[str, ...],
    out: str | None,
    layer: int | None,
    tokens: tuple[str, ...],
    first_token: bool,
    search: str | None,
    source: str | None,
    exact: bool,
    side: str | None,
    basis: str | None,
    lens: str,
    top: int,
    choice: ModelChoice,
    form: str,
    **_asked: Any,
) -> None:
    """Name the tokens that a neuron's value promotes and suppresses, and those that excite and inhibit its key.

    Each neuron is LAYER.NEURON, as the other commands print it; put spaces or commas between several. A value's score
    is what a coefficient of 1 adds to the token's logit, before the final norm's scale. A key's score is how the
    token's own embedding moves the pre-activation, which says nothing about context. Instead of neurons, --all writes
    those of a whole model to a file, --search finds words in it, and --token asks which neurons stand for a token.

    Layers in between change what a value comes to say: --lens jacobian reads it as it arrives, which is what counts
    below mid-depth. That is for values alone.

    \b
    Examples
      ffnmem project 5.349
      ffnmem project 5.349,5.171 1.786 --side value --top 5
      ffnmem project 0.7 --basis raw --json
      ffnmem project 1.786 --lens jacobian
      ffnmem project --all --out values.parquet --side value --top 20
      ffnmem project --search paris --in values.parquet
      ffnmem project --token " Paris" --token " London"

    --json and --csv have layer, neuron, side, sign, rank, token, token_id, score, basis, lens; with --token, the
    token's columns are last; with --all, file, neurons, rows, bytes.
    """
    from ..vocabulary import projections  # needs torch

    mode = chosen_mode(context)
    sides = None if side == "both" or (side is None and mode != "--token") else (side or "value",)
    wanted: dict[str, Any] = {"k": top, "basis": basis or "folded", "lens": lens, "side": sides}
    if mode == "--all":
        assert out is not None
        write_all(choice.load(), layer, out, form, **wanted)
        return
    if mode == "--search":
        assert search is not None
        assert source is not None
        one_side = None if side in (None, "both") else side
        found = fm.vocabulary.search_projection(source, search, side=one_side, exact=exact, limit=top)
        name, sheet = "tokens", projections.hits_sheet
    elif mode == "--token":
        found = fm.vocabulary.promoters(choice.load(), tokens, layer=layer, first_token=first_token, **wanted)
        name, sheet = "neurons", projections.promoters_sheet
    else:
        named = read_neurons(neurons)
        found = fm.project(choice.load(), named, **wanted)
        name, sheet = "tokens", projections.projection_sheet
    emit(
        None,
        form,
        sheet=lambda: sheet(found),
        data=lambda: {name: found.to_dict("records"), "provenance": found.attrs["provenance"]},
        frame=lambda: found,
    )


def chosen_mode(context: click.Context) -> str:
    """The one thing that was asked for; raises InputError for none, and for an option that would do nothing with it."""
    asked = given(context)
    if context.params["neurons"]:
        asked["neurons"] = NEURONS
    else:
        asked.pop("neurons", None)
    mode = next((mode for mode, (key, _) in MODES.items() if key in asked), None)
    if mode is None:
        raise InputError(
            f"nothing to project: name neurons as {NEURONS}, such as 3.17, or give --all, --token or --search"
        )
    key, partners = MODES[mode]
    for name, flag in asked.items():
        if name not in partners | {key, "help"}:
            raise InputError(f"{flag} does not go with {mode}: leave one of them out")
    needed, meaning = NEEDS.get(mode, ("", ""))
    if needed and needed not in asked:
        raise InputError(f"{mode} needs {meaning}")
    return mode


def write_all(
    model: Model, layer: int | None, out: str, form: str, k: int, basis: str, lens: str, side: Sequence[str] | None
) -> None:
    """``fm.project`` into a file, with a bar on standard error, and what is in it."""
    import pandas as pd

    from ..vocabulary.lenses import told
    from ..vocabulary.vectors import check_sides

    began = time.monotonic()
    through = fm.vocabulary.load_lens(model, lens)
    with late_bar() as report:
        path = fm.project(model, layer, k=k, basis=basis, lens=through or lens, side=side, out=out, progress=report)
    seconds = time.monotonic() - began
    counted = model.n_layers * model.d_mlp if layer is None else model.ffn[model.layer(layer)].d_mlp
    names = check_sides(side, model, through)
    rows = counted * len(names) * 2 * min(k, model.d_vocab)
    summary = {"file": str(path), "neurons": counted, "rows": rows, "bytes": path.stat().st_size}
    size = f"{rows:,} rows, {path.stat().st_size / 1e6:,.1f} MB, {seconds:.1f} s"
    words = f"{counted:,} neurons, {' and '.join(names)}, {k} + {k} tokens: {size}"
    provenance = model.provenance(basis=basis, lens=told(through)).to_dict()
    emit(
        None,
        form,
        sheet=lambda: Sheet.of(Words.of(str(path), to_copy=True), Words.of(words), Origin(provenance)),
        data=lambda: {**summary, "provenance": provenance},
        frame=lambda: pd.DataFrame([summary]),
    )
