"""``ffnmem study``: a paper's protocol on a model, as tables and figures in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

import ffnmem as fm

from ..core.defaults import STUDY_EXAMPLES
from ..core.errors import InputError
from ..core.types import STUDIES
from ..show.records import emit
from . import click_options as options
from .click_guard import Command
from .click_options import COUNT, ModelChoice, argument, option
from .progress import Progress


@click.command(cls=Command, short_help="Run a paper's protocol: tables and figures by layer.")
@argument("study_name", type=click.Choice(STUDIES), metavar="NAME")
@argument("store", required=False)
@option("--corpus", metavar="CORPUS", help="Without STORE, what to scan, as ffnmem scan takes it; into DIR/store.")
@option("--out", required=True, metavar="DIR", help="The folder to write; made if it is not there.")
@options.site("the page's neurons lead")
@option("--sequences", type=COUNT, metavar="N", help="How many random sequences of the text to look at.")
@options.settings(
    "Any other setting of the study, such as keys=100; study.json lists them. Can be given several times."
)
@option("--k", type=COUNT, metavar="N", help="Of the scan: examples at each end of a neuron.  [default: 25]")
@options.seed("Of every random choice.", metavar=None)
@options.full
@options.output
@options.bos
@options.model_in_float32
def study(
    study_name: str,
    store: str | None,
    corpus: str | None,
    out: str,
    site: str | None,
    sequences: int | None,
    assigned: tuple[tuple[str, Any], ...],
    k: int | None,
    seed: int,
    full: bool,
    form: str,
    choice: ModelChoice,
) -> None:
    """Run the protocol of the paper NAME on STORE, a scan of the model, and write it into DIR: every table
    (CSV), every figure (PNG), the settings beside the paper's own (study.json), and a page with all of it (index.html).

    \b
    geva2021    what keys look at, whether values predict what follows, how
                layers compose their memories, how few neurons matter
    voita2023   dead neurons, token detectors, positional neurons
    gurnee2024  prediction, suppression, partition and other roles

    \b
    Examples
      ffnmem study geva2021 --corpus atlas --out studies/geva --sequences 300
      ffnmem study voita2023 runs/atlas --out studies/voita
      ffnmem study geva2021 runs/atlas --out studies/geva --set keys=8

    --csv prints the first table, by layer; --json that (with --full all) and the settings.
    """
    from ..studies.running import described  # needs torch

    settings = chosen_settings(study_name, assigned, sequences)
    if (corpus is None) == (store is None):
        raise InputError("what to read: give --corpus CORPUS to scan it, or the STORE of a finished scan, and not both")
    scan = None if store is not None else {"k": k or STUDY_EXAMPLES, "prepend_bos": choice.prepend_bos}
    if scan is None:
        if k is not None or choice.prepend_bos is not None:
            raise InputError("--k and --prepend-bos are of a scan: leave them out with a STORE, which is one")
        # A finished scan has its own beginning of sequence; models without one load too.
        choice = ModelChoice(choice.model, choice.device, choice.dtype, False)
    source = corpus if store is None else fm.open_store(store)
    model = choice.load()
    with Progress() as progress:
        found = fm.studies.run(
            study_name, model, source, out, seed=seed, scan_options=scan, progress=progress.report, site=site,
            **settings,
        )  # fmt: skip
    tables = found.tables if full else found.tables[:1]
    emit(
        found,
        form,
        sheet=lambda: found.sheet(Path(out)),
        data=lambda: {
            **described(found),
            "out": str(Path(out)),
            **{table.name: table.frame.to_dict("records") for table in tables},
        },
    )


def chosen_settings(study_name: str, assigned: tuple[tuple[str, Any], ...], sequences: int | None) -> dict[str, Any]:
    """The study's settings; raises InputError for one that it does not take, or that is given twice."""
    from ..studies.study import check_settings

    every = [*assigned, *([] if sequences is None else [("n_sequences", sequences)])]
    settings = dict(every)
    if len(settings) < len(every):
        names = [name for name, _ in every]
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"{twice} is given twice: give it once{', as --sequences' * (twice == 'n_sequences')}")
    check_settings(study_name, settings)
    return settings
