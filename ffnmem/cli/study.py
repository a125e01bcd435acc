"""``ffnmem study``: a paper's protocol on a model, as tables and figures in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

import ffnmem as fm

from ..core.defaults import STUDY_EXAMPLES
from ..core.errors import InputError
from ..core.types import StudyName
from ..show.records import emit
from .options import (
    BOS,
    Count,
    Directory,
    Full,
    OutFolder,
    Output,
    ScannedChoice,
    Seed,
    Settings,
    TextChoice,
    option_group,
)
from .progress import show_progress


@option_group
class StudiedChoice(ScannedChoice):
    """The model that is studied.

    Attributes:
        model: As ffnmem scan takes it. [default: that of --store by its record, else atlas]
        prepend_bos: Put the beginning-of-sequence token before the text, or not. [default: the model's own convention]
    """

    model: Annotated[str | None, Parameter(metavar="MODEL")] = None
    prepend_bos: Annotated[bool | None, BOS] = None


def study(
    name: StudyName,
    /,
    *,
    out: OutFolder,
    store: Directory | None = None,
    corpus: str | None = None,
    k: Count | None = None,
    settings: Settings | None = None,
    seed: Seed = 0,
    site: Directory | None = None,
    full: Full = False,
    model: StudiedChoice = StudiedChoice(),
    output: Output = Output(),
) -> None:
    """Run a paper's protocol: tables and figures by layer.

    Runs the protocol of the paper NAME on a scan of the model, and writes it into a folder: every table (CSV), every
    figure (PNG), the settings beside the paper's own (study.json), and a page with all of it (index.html).

      geva2021    what keys look at, whether values predict what follows, how
                  layers compose their memories, how few neurons matter
      voita2023   dead neurons, token detectors, positional neurons
      gurnee2024  prediction, suppression, partition and other roles

    Examples
      ffnmem study geva2021 --corpus atlas --out geva --set n_sequences=300
      ffnmem study voita2023 --store runs/atlas --out studies/voita
      ffnmem study geva2021 --store runs/atlas --out studies/geva --set keys=8

    --csv prints the first table, by layer; --json that (with --full all) and the settings.

    Args:
        name: Of the paper.
        out: The folder to write; made if it is not there.
        store: A finished scan of the model.
        corpus: In its place, what to scan, as ffnmem scan takes it; into store/ in the folder.
        k: Of that scan: examples at each end of a neuron. [default: 25]
        settings: A setting of the study, such as keys=100 or n_sequences=300; study.json lists them (repeatable).
        site: A site of the model's neurons (ffnmem report site), to which the page's neurons lead.
    """
    from ..studies.study import check_settings  # needs torch

    chosen = dict(settings or ())
    check_settings(name, chosen)
    if (corpus is None) == (store is None):
        raise InputError("what to read: give --corpus CORPUS to scan it, or --store DIR of a finished scan")
    if store is not None and (k is not None or model.prepend_bos is not None):
        raise InputError("--k and --prepend-bos are of a scan: leave them out with --store, which is one")
    scan = None if corpus is None else {"k": k or STUDY_EXAMPLES, "prepend_bos": model.prepend_bos}
    source = corpus if store is None else fm.open_store(store)
    if isinstance(source, fm.scanning.Store):
        loaded = model.load(source)
    else:
        loaded = TextChoice(model=model.model or "atlas", device=model.device, prepend_bos=model.prepend_bos).load()
    with show_progress() as report:
        result = fm.studies.run(
            name, loaded, source, out, seed=seed, scan_options=scan, progress=report, site=site, **chosen
        )
    emit(
        result,
        output.form,
        sheet=lambda: result.sheet(Path(out)),
        data=lambda: {**(result.to_dict() if full else result.brief()), "out": str(Path(out))},
    )
