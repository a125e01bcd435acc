"""``study``: scan a corpus if need be, run a paper's protocol on it, and write everything into one folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .._version import __version__
from ..arguments import public
from ..checked_files import is_whole
from ..core.choices import STUDY_EXAMPLES
from ..errors import FileError, InputError, quoted
from ..folders import claimed
from ..models import Model
from ..models.turns import in_turn
from ..progress import Progress
from ..scanning import Store, scan
from .study import ABOUT, Study, check_settings, study_module
from .writing import FOLDER, STORE, write_study


@public
@in_turn
def study(
    name: str,
    model: Model,
    corpus: Any,
    out: str | Path,
    *,
    seed: int = 0,
    scan_options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
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
        settings: of that study; its function in ``ffnmem.studies`` documents them.

    Returns:
        A :class:`Study`: ``.tables``, ``.figures``, ``.table(name)``, ``.plot(name)``, ``.settings``, ``.published``.

    Raises:
        InputError: an unknown study or setting, another model's store, or options for a scan that is not needed.
        FileError: a folder that cannot be written or holds something else, or as :func:`ffnmem.scan`.
    """
    module = study_module(name)
    check_settings(name, settings)
    if isinstance(corpus, Store):
        if scan_options:
            raise InputError(f"{corpus.folder} is scanned already: leave out scan_options {sorted(scan_options)}")
        corpus.check_model(model)
    with claimed(out, FOLDER, {"study": name, "ffnmem": __version__}, beside=(STORE,)) as folder:
        held = FOLDER.said(folder) or {}
        if not is_whole(held):
            raise FileError(f"{folder / ABOUT} is damaged: its checksum does not match: name another folder")
        if held.get("study") != name:
            raise FileError(f"{out} holds the study {quoted(held.get('study'))}: name another folder for {name!r}")
        if isinstance(corpus, Store):
            store = corpus
        else:
            options = {"k": STUDY_EXAMPLES, "seed": seed, **(scan_options or {})}
            store = scan(model, corpus, folder / STORE, progress=progress, **options)
        found = module.study(model, store, progress=progress, seed=seed, **settings)
        assert isinstance(found, Study)
        write_study(found, folder)
    return found
