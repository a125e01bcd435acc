"""``run``: a paper's protocol on a model and a corpus, and everything written into one folder."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from .._version import __version__
from ..core.checked_files import with_checksum
from ..core.defaults import STUDY_EXAMPLES
from ..core.errors import FileError, InputError, quoted
from ..core.files import user_path, write_whole
from ..core.folders import Kind, claimed
from ..core.progress import Progress
from ..core.run_folders import read_run
from ..core.types import Seed, checked
from ..models.model import Model
from ..models.turns import in_turn
from ..pages.links import Links, nowhere, to_site
from ..pages.rendering import page_html, split_sheet, without_origin
from ..scanning.scanning import scan
from ..scanning.store import Store
from ..show.records import csv_text
from .figures import describe_figure, png
from .study import ABOUT, PAGE, Study, check_settings, study_module

# A study as files and as a page: CSV, PNG, JSON and HTML, each whole or not at all.

STORE = "store"  # of the corpus, where the study scanned it
FOLDER = Kind(ABOUT, "ffnmem study", 1, "the study")


def write_study(study: Study, folder: Path, links: Links = nowhere) -> None:
    """Write a study's files into a folder that exists; ``links``: where its page's neurons lead. Raises FileError.

    Everything is drawn before anything is replaced. While files are replaced there is no page: a folder without
    ``index.html`` is not whole. A figure that cannot be drawn leaves the tables of a new study.
    """
    tables = {f"{table.name}.csv": csv_text(table.frame) for table in study.tables}
    try:
        drawings = [png(study, figure) for figure in study.figures]
        dark = [png(study, figure, dark=True) for figure in study.figures]
    except Exception:
        if not (folder / PAGE).exists():
            write_all(folder, tables)
        raise
    shown_page = page(study, drawings, dark, links)
    content = {"kind": FOLDER.kind, "schema": FOLDER.schema, "ffnmem": __version__, **study.described()}
    about = json.dumps(with_checksum(content), ensure_ascii=False, allow_nan=False, indent=1) + "\n"
    try:
        (folder / PAGE).unlink(missing_ok=True)
    except OSError as error:
        raise FileError(f"cannot replace {folder / PAGE}: {error.strerror or error}") from None
    pictures = {f"{figure.name}.png": drawing for figure, drawing in zip(study.figures, drawings, strict=True)}
    write_all(folder, {ABOUT: about, **tables, **pictures, PAGE: shown_page})


def write_all(folder: Path, files: Mapping[str, str | bytes]) -> None:
    """Write files into a folder, each whole, in their order."""
    for name, content in files.items():
        write_whole(folder / name, content)


def page(study: Study, drawings: Sequence[bytes], dark: Sequence[bytes] = (), links: Links = nowhere) -> str:
    """The page: the study's sheet, with every figure and its caption behind the first table.

    ``dark``: the figures for dark screens, if they were drawn. ``links``: where neurons lead.
    """
    pictures = [
        (figure, embedded(drawing), embedded(other) if other else "", describe_figure(study, figure))
        for figure, drawing, other in zip_longest(study.figures, drawings, dark)
    ]
    return page_html(
        f"{study.name} on {study.provenance['model']}",
        [section for section in split_sheet(without_origin(study.whole_sheet())) if section.title],
        study.provenance,
        template="study.html",
        links=links,
        study=study,
        pictures=pictures,
    )


def embedded(drawing: bytes) -> str:
    """A picture as the address of itself."""
    return "data:image/png;base64," + base64.b64encode(drawing).decode("ascii")


# `study`: scan a corpus if need be, run a paper's protocol on it, and write everything into one folder.


@checked
@in_turn
def run(
    name: str,
    model: Model,
    corpus: Any,
    out: str | Path,
    *,
    seed: Seed = 0,
    scan_options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    site: str | Path | None = None,
    **settings: Any,
) -> Study:
    """Run the protocol of a paper on a model, and write its tables, figures and settings.

    Args:
        name: ``"geva2021"`` (keys as patterns, values as predictions, how layers compose them), ``"voita2023"`` (dead,
            token-detecting and positional neurons), ``"gurnee2024"`` (roles of neurons).
        model: from :func:`ffnmem.load`.
        corpus: whatever :func:`ffnmem.scan` reads, scanned into ``out/store`` (a scan that was stopped goes on there, a
            finished one is used as it is); or a store of this model.
        out: the folder for ``index.html``, ``study.json``, one CSV a table and one PNG a figure; made if missing. An
            earlier run of the same study there is replaced, and anything else refused. A folder without ``index.html``
            is of a run that was stopped: the same call finishes it.
        seed: of every random choice, the scan's too.
        scan_options: of :func:`ffnmem.scan`, such as ``{"k": 50, "context": 64}``; by default k is 25.
        progress: called as (phase, done, total) by scan and study.
        site: the folder of a site of the model's neurons (:func:`ffnmem.pages.site`), to which the page's neurons lead.
        settings: of that study; its function in ``ffnmem.studies`` documents them.

    Returns:
        A :class:`Study`: ``.tables``, ``.figures``, ``.table(name)``, ``.plot(name)``, ``.beside_paper()``.

    Raises:
        InputError: an unknown study or setting, another model's store or site, or options for a scan that is not
            needed.
        FileError: no site, a folder that cannot be written or holds something else, or as :func:`ffnmem.scan`.
    """
    module = study_module(name)
    check_settings(name, settings)
    links = to_site(site, user_path(out) / PAGE, model.fingerprint)
    if isinstance(corpus, Store):
        if scan_options:
            raise InputError(f"{corpus.folder} is scanned already: leave out scan_options {sorted(scan_options)}")
        corpus.check_model(model)
    with claimed(out, FOLDER, {"study": name, "ffnmem": __version__}, beside=(STORE,)) as folder:
        held = read_run(folder, FOLDER)
        if held.get("study") != name:
            raise FileError(f"{out} holds the study {quoted(held.get('study'))}: name another folder for {name!r}")
        if isinstance(corpus, Store):
            store = corpus
        else:
            options = {"k": STUDY_EXAMPLES, "seed": seed, **(scan_options or {})}
            store = scan(model, corpus, folder / STORE, progress=progress, **options)
        found = module.study(model, store, progress=progress, seed=seed, **settings)
        assert isinstance(found, Study)
        write_study(found, folder, links)
    return found
