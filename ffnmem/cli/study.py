"""``ffnmem study``: a paper's protocol on a model, as tables and figures in a folder."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

import ffnmem as fm

from ..errors import InputError
from ..show.records import print_csv, print_json
from ..show.terminal import console, labelled, plain_table, provenance_line, user_text
from .guard import Command
from .options import (
    COUNT,
    ModelChoice,
    bos_option,
    device_option,
    name_option,
    output_options,
    seed_option,
    setting,
    text,
)
from .progress import Progress

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table

    from ..scanning import Store
    from ..studies import Study

NAMES = ("geva2021", "gurnee2024", "voita2023")  # as in ffnmem.studies, which is too slow to import for a manual
K = 25
GAP = 2  # between columns


@click.command(cls=Command, short_help="Run a paper's protocol: tables and figures by layer.")
@click.argument("study_name", type=click.Choice(NAMES), metavar="NAME")
@click.option("--corpus", type=text, metavar="CORPUS", help="What to scan, as ffnmem scan takes it; into DIR/store.")
@click.option("--store", type=text, metavar="STORE", help="Instead of --corpus, a store that a scan wrote.")
@click.option("--out", type=text, required=True, metavar="DIR", help="The folder to write; made if it is not there.")
@click.option("--sequences", type=COUNT, metavar="N", help="How many random sequences of the text to look at.")
@click.option(
    "--set",
    "chosen",
    type=setting,
    multiple=True,
    metavar="NAME=VALUE",
    help="Any other setting of the study, such as keys=100; study.json lists them. Can be given several times.",
)
@click.option("--k", type=COUNT, metavar="N", help="Of the scan: examples at each end of a neuron.  [default: 25]")
@seed_option("Of every random choice.", metavar=None)
@output_options
@bos_option
@name_option
@device_option
def study(
    study_name: str,
    corpus: str | None,
    store: str | None,
    out: str,
    sequences: int | None,
    chosen: tuple[tuple[str, Any], ...],
    k: int | None,
    seed: int,
    form: str,
    prepend_bos: bool | None,
    name: str,
    device: str | None,
) -> None:
    """Run the protocol of the paper NAME on a model and write it into DIR: every table (CSV), every figure (PNG), the
    settings beside the paper's own (study.json), and a page with all of it (index.html).

    \b
    geva2021    what keys look at, whether values predict what follows, how
                layers compose their memories, how few sub-updates matter
    voita2023   dead neurons, token detectors, positional neurons
    gurnee2024  prediction, suppression, partition and other roles

    \b
    Examples
      ffnmem study geva2021 --corpus atlas --out studies/geva --sequences 300
      ffnmem study voita2023 --store runs/atlas --out studies/voita
      ffnmem study geva2021 --store runs/atlas --out studies/geva --set keys=8

    --csv prints the first table, by layer; --json that and all settings.
    """
    settings = chosen_settings(study_name, chosen, sequences)
    if (corpus is None) == (store is None):
        raise InputError(
            "what to read: give --corpus CORPUS to scan it, or --store DIR of a finished scan, and not both"
        )
    if store is not None and (k is not None or prepend_bos is not None):
        raise InputError("--k and --prepend-bos are of a scan: leave them out with --store, which is one")
    # A finished scan has its own beginning of sequence; models without one load too.
    choice = ModelChoice(name, device, "float32", False if store is not None else prepend_bos)
    source = corpus if store is None else opened(store)
    model = choice.load()
    with Progress() as progress:
        found = fm.study(
            study_name,
            model,
            source,
            out,
            seed=seed,
            scan_options=None if store is not None else scan_options(k, choice.prepend_bos),
            progress=progress.report,
            **settings,
        )
    show(found, Path(out), form)


def chosen_settings(study_name: str, chosen: tuple[tuple[str, Any], ...], sequences: int | None) -> dict[str, Any]:
    """The study's settings; raises InputError for one that it does not take, or that is given twice."""
    from ..studies.study import check_settings

    every = [*chosen, *([] if sequences is None else [("n_sequences", sequences)])]
    settings = dict(every)
    if len(settings) < len(every):
        names = [name for name, _ in every]
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"{twice} is given twice: give it once{', as --sequences' * (twice == 'n_sequences')}")
    check_settings(study_name, settings)
    return settings


def opened(folder: str) -> Store:
    from ..scanning import open_store

    return open_store(folder)


def scan_options(k: int | None, prepend_bos: bool | None) -> dict[str, Any]:
    return {"k": K if k is None else k, "prepend_bos": prepend_bos}


def show(found: Study, out: Path, form: str) -> None:
    """The first table, and where everything lies."""
    frame = found.to_frame()
    if form == "csv":
        print_csv(list(frame.columns), frame.to_dict("records"))
        return
    if form == "json":
        from ..studies.writing import described

        print_json({**described(found), "out": str(out), found.tables[0].name: frame.to_dict("records")})
        return
    screen = console()
    screen.print(Text(found.tables[0].title, "bold"))
    for part in fitting(frame, screen.width):
        screen.print()
        screen.print(part)
    screen.print()
    rows = {
        "page": user_text(str(out / "index.html")),
        "tables": Text(", ".join(f"{table.name}.csv" for table in found.tables)),
        "figures": Text(", ".join(f"{figure.name}.png" for figure in found.figures)),
        "settings": user_text(str(out / "study.json")),
    }
    screen.print(labelled(rows))
    screen.print()
    screen.print(provenance_line(found.provenance, screen.width))


def fitting(frame: pd.DataFrame, width: int) -> Iterator[Table]:
    """A wide table as several, each with the first column and as many others as fit."""
    names = [str(name) for name in frame.columns]
    cells = {name: [brief(value) for value in frame[name]] for name in names}
    wide = {name: max(map(len, [name, *cells[name]])) + 2 for name in names}
    first, *rest = names
    while rest:
        room, taken = width + GAP - wide[first], 0
        for name in rest:
            if wide[name] > room and taken:
                break
            room -= wide[name]
            taken += 1
        yield part(cells, [first, *rest[:taken]])
        rest = rest[taken:]


def part(cells: dict[str, list[str]], names: Sequence[str]) -> Table:
    table = plain_table(*names)
    for row in zip(*(cells[name] for name in names), strict=True):
        table.add_row(*(user_text(value) for value in row))
    return table


def brief(value: Any) -> str:
    """A number with four significant digits; whole numbers whole."""
    if isinstance(value, str | bool):
        return str(value)
    if isinstance(value, float):
        return f"{value:.4g}" if math.isfinite(value) else "–"
    return f"{value:,}" if isinstance(value, int) else str(value)
