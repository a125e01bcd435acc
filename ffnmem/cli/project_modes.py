"""What else ``ffnmem project`` does: a whole model into a file, words in such a file, the neurons behind a token."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

import ffnmem as fm

from ..errors import InputError
from ..show.records import print_csv, print_json
from ..show.terminal import console, decimals, number, plain_table, provenance_line, token, user_text
from .late_bar import late_bar
from .options import given

if TYPE_CHECKING:
    import pandas as pd

    from ..models import Model

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
    from ..vocabulary.vectors import check_sides

    began = time.monotonic()
    with late_bar("project") as report:
        path = fm.project(model, layer, k=top, basis=basis, side=sides, out=out, progress=report)
    seconds = time.monotonic() - began
    counted = model.n_layers * model.d_mlp if layer is None else model.ffn[model.layer(layer)].d_mlp
    names = check_sides(sides, model)
    rows = counted * len(names) * 2 * min(top, model.d_vocab)
    summary = {"file": str(path), "neurons": counted, "rows": rows, "bytes": path.stat().st_size}
    provenance = model.provenance(basis=basis).as_dict()
    if form == "csv":
        print_csv(list(summary), [summary])
    elif form == "json":
        print_json({**summary, "provenance": provenance})
    else:
        screen = console()
        screen.print(user_text(str(path)), soft_wrap=True)
        size = f"{rows:,} rows, {path.stat().st_size / 1e6:,.1f} MB, {seconds:.1f} s"
        screen.print(f"{counted:,} neurons, {' and '.join(names)}, {top} + {top} tokens: {size}")
        screen.print(provenance_line(provenance, screen.width))


MEANINGS = {
    "value": "neurons that write towards and against",
    "key": "neurons that are excited and inhibited by",
    "gate": "neurons whose gates are opened and shut by",
}


def print_promoters(frame: pd.DataFrame, form: str) -> None:
    """The neurons behind a token: both ends beside each other, one table a side."""
    if form == "csv":
        print_csv(list(frame.columns), frame.to_dict("records"))
        return
    if form == "json":
        print_json({"neurons": frame.to_dict("records"), "provenance": frame.attrs["provenance"]})
        return
    screen = console()
    first = frame.iloc[0]
    texts = [first["token"]] if "token" in frame.columns else first["tokens"]
    places = decimals(frame["score"])
    for side, rows in frame.groupby("side", sort=False):
        meaning = MEANINGS[str(side)]
        title = f"{side}: {meaning} {', '.join(repr(text) for text in texts)}"
        screen.print(user_text(title, "bold"))  # not the table's: it would wrap at its width
        table = plain_table("rank", "promoted", "score", "suppressed", "score")
        ends = [rows[rows["sign"] == sign] for sign in ("promoted", "suppressed")]
        for high, low in zip(ends[0].itertuples(), ends[1].itertuples(), strict=True):
            cells = [f"{high.layer}.{high.neuron}", number(high.score, places, sign=True)]
            cells += [f"{low.layer}.{low.neuron}", number(low.score, places, sign=True)]
            table.add_row(str(high.rank), *cells)
        screen.print(table)
        screen.print()
    screen.print(provenance_line(frame.attrs["provenance"], screen.width))


def print_hits(frame: pd.DataFrame, form: str) -> None:
    """Rows of a stored projection whose token was searched for."""
    if form == "csv":
        print_csv(list(frame.columns), frame.to_dict("records"))
        return
    if form == "json":
        print_json({"tokens": frame.to_dict("records"), "provenance": frame.attrs["provenance"]})
        return
    screen = console()
    if frame.empty:
        screen.print("no token in this file matches")
    else:
        table = plain_table("neuron", "side", "sign", "rank", "token", "score", left=["side", "sign", "token"])
        places = decimals(frame["score"])
        for row in frame.itertuples():
            cells = [f"{row.layer}.{row.neuron}", row.side, row.sign, str(row.rank), token(row.token, limit=24)]
            table.add_row(*cells, number(row.score, places, sign=True))
        screen.print(table)
        screen.print()
    screen.print(provenance_line(frame.attrs["provenance"], screen.width))
