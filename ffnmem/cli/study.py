"""``ffnmem study``: a paper's protocol on a model, as tables and figures in a folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import ffnmem as fm

from ..core.defaults import STUDY_EXAMPLES
from ..core.errors import InputError
from ..core.types import StudyName
from ..show.records import emit
from .options import Count, Directory, Full, OutFolder, Output, Seed, Settings, TextChoice
from .progress import show_progress


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
    model: TextChoice = TextChoice(),
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
    if store is not None:
        if k is not None or model.prepend_bos is not None:
            raise InputError("--k and --prepend-bos are of a scan: leave them out with --store, which is one")
        # A finished scan has its own beginning of sequence; models without one load too.
        model = replace(model, prepend_bos=False)
    scan = None if corpus is None else {"k": k or STUDY_EXAMPLES, "prepend_bos": model.prepend_bos}
    source = corpus if store is None else fm.open_store(store)
    loaded = model.load()
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
