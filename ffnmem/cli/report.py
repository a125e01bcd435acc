"""``ffnmem cards``: neurons of a store as a page or a table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

import ffnmem as fm

from ..core.errors import InputError
from ..core.types import LOGIT
from ..show.records import write
from .guard import note
from .neuron import open_with_model
from .options import (
    Count,
    Layer,
    LensName,
    Neurons,
    ScannedChoice,
    StoreFolder,
    note_model,
)
from .progress import show_progress
from .replacing import PAGE, TABLE, check_replaceable

MARKS = {
    ".html": PAGE,
    ".parquet": TABLE,
    ".md": rb"\*\*Bold\*\* marks the token at which the neuron fires",
    ".csv": rb"^layer,neuron,kind,rank,coefficient,sequence,position,token,",
}
"""What a report of neurons that we wrote has in it, by its suffix."""
Open = Annotated[bool, Parameter(name="--open", help="Open the page, or the site, in the browser.")]


def cards(
    *,
    store: StoreFolder,
    neurons: Neurons | None = None,
    layer: Layer | None = None,
    top_by: Annotated[
        tuple[Literal["firing_rate", "kurtosis", "max"], Count] | None, Parameter(metavar="MEASURE N")
    ] = None,
    out: Annotated[str, Parameter(alias="-o", metavar="FILE")] = "neurons.html",
    shade: Annotated[bool | None, Parameter(negative="--no-shade")] = None,
    lens: LensName = LOGIT,
    show: Open = False,
) -> None:
    """Neurons of a store as a page or a table.

    Writes their cards as a page or as Markdown (at most 500 neurons), or all their examples with their texts as CSV or
    Parquet (any number), and prints the file's path.

    Examples
      ffnmem cards --store runs/atlas --neurons 0.18,3.17 -o neurons.html
      ffnmem cards --store runs/atlas --top-by kurtosis 5 -o peaked.md

    Args:
        layer: This layer's; -1 is the last.
        top_by: The N neurons, of all layers or of --layer, with the highest firing_rate, kurtosis or max.
        out: The file to write, in a folder that exists; an older one is replaced. It is what its suffix says: .html,
            .md, .csv or .parquet.
        shade: Shade every token of a page's examples by the neuron's coefficient there, which the model computes.
            [default: of at most 20 neurons]
    """
    if (neurons is None) == (layer is None and top_by is None):
        raise InputError("which neurons: give --neurons LIST, or --layer LAYER and --top-by MEASURE N, or one of these")
    suffix = Path(out).suffix.lower()
    check_replaceable(out, MARKS.get(suffix))
    opened = open_with_model(store, ScannedChoice(), lens != LOGIT or (shade is not False and suffix == ".html"))
    chosen: Any = neurons
    if neurons is None:
        chosen = opened.stats(layer)
        if top_by is not None:
            measure, count = top_by
            chosen = chosen.dropna(subset=measure).sort_values(measure, ascending=False, kind="stable").head(count)
    with show_progress() as progress:
        path = fm.pages.neurons(opened, chosen, out, shade=shade, lens=lens, progress=progress)
    finish(path, opened.model, opened.fingerprint, show)


def finish(path: Path, model: str, fingerprint: str, show: bool) -> None:
    """Print a page's path, say which model it is of, and open it where that is wanted and a browser is there."""
    import webbrowser

    write(f"{path}\n")
    note_model(model, fingerprint)
    if show and not webbrowser.open(path.resolve().as_uri()):
        note(f"no browser could be opened here: open {path} in one")
