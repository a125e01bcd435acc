"""What else ``ffnmem project`` does: a whole model into a file, words in such a file, the neurons behind a token."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

import ffnmem as fm

from ..core.sheets import Origin, Sheet, Words
from ..errors import InputError
from ..show.records import emit
from .late_bar import late_bar
from .options import given

if TYPE_CHECKING:
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
    import pandas as pd

    from ..vocabulary.vectors import check_sides

    began = time.monotonic()
    with late_bar("project") as report:
        path = fm.project(model, layer, k=top, basis=basis, side=sides, out=out, progress=report)
    seconds = time.monotonic() - began
    counted = model.n_layers * model.d_mlp if layer is None else model.ffn[model.layer(layer)].d_mlp
    names = check_sides(sides, model)
    rows = counted * len(names) * 2 * min(top, model.d_vocab)
    summary = {"file": str(path), "neurons": counted, "rows": rows, "bytes": path.stat().st_size}
    size = f"{rows:,} rows, {path.stat().st_size / 1e6:,.1f} MB, {seconds:.1f} s"
    words = f"{counted:,} neurons, {' and '.join(names)}, {top} + {top} tokens: {size}"
    provenance = model.provenance(basis=basis).as_dict()
    emit(
        None,
        form,
        sheet=lambda: Sheet.of(Words.of(f"{path}\n{words}"), Origin(provenance)),
        data=lambda: {**summary, "provenance": provenance},
        frame=lambda: pd.DataFrame([summary]),
    )
