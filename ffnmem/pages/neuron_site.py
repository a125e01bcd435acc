"""Every neuron of a store as a static site: a page each, a page a layer, and a search that needs no server."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from .._version import __version__
from ..core.checked_files import digest_of
from ..core.errors import FfnmemError, counted
from ..core.files import appearing, write_whole
from ..core.folders import locked
from ..core.progress import Progress
from ..core.run_folders import run_folder
from ..core.sheets import Column, Sheet, Span, Table, line, rows
from ..core.types import CASES, COEFFICIENT_SIGNS, OutFolder, Whole, checked
from ..neurons.cards import NeuronList, in_brief
from ..neurons.measuring import opened
from ..neurons.readable import find_readable
from ..scanning.blocks import blocks
from ..scanning.neuron import Known, kinds_shown
from ..scanning.store import Store
from ..show import notebook
from ..show.result import Result
from ..vocabulary.projections import WHY
from .links import INDEX, SITE
from .rendering import PACKAGE, TABLES, Section, page_html, script_of, without_origin

TOP, CASE, BAND = 8, 3, 1
"""Examples of a card: of the largest coefficients, of each sign case, and of each band of quantiles."""
FOUND = 5  # tokens of a neuron that the search knows, of each end of what it writes and reads, and of what it fires at
WORTH = (
    "Those whose strongest examples on one side are followed by what the neuron then promotes, more often than by "
    "chance: their values help to say what comes next. None is polysemantic; those of one meaning come first."
)


@checked
def site(store: Store, out: OutFolder = "site", *, context: Whole = 12, progress: Progress | None = None) -> Path:
    """Every neuron of a scan, as a site with a search.

    Writes a page of every neuron and of every layer, and a search over all, and gives the path of the first page.

    The pages open from disk and need no network: ``index.html`` searches what neurons write, read and fire at most,
    and leads to a page a layer. Cards are brief: 8 of the largest coefficients (3 of each sign case of gated neurons)
    and one example a quantile band. One layer's table is in memory at a time.

    A layer appears whole or not at all, and the same call goes on where it was stopped; a folder without ``index.html``
    is not finished.

    Args:
        store: from :func:`ffnmem.scan` or :func:`ffnmem.open_store`.
        out: The folder to write; made if missing, new, empty or of the same site.
        context: tokens of context on each side.
        progress: called as ("pages", done, all) in neurons; before that as ("project", done, all), where the store has
            no table yet of what its neurons write.

    Returns: The path of ``index.html``.

    Raises: FileError: a damaged store; a folder that cannot be written, or holds something else or another site.

    Example:
        $ ffnmem site --store runs/atlas --out site
    """
    if not store.projected:
        with suppress(FfnmemError):  # no model, or a store that cannot be written to: cards say what they lack
            store.keep_values(progress)
    made_by: dict[str, Any] = {
        "model": store.model,
        "fingerprint": store.fingerprint,
        "d_mlp": list(store.manifest["d_mlp"]),
        "store": digest_of(store.manifest)[:12],
        "tables": sorted(path.name for path in store.folder.glob("*.parquet")),
        "context": context,
        "ffnmem": __version__,
    }
    with run_folder(out, SITE, made_by) as found:
        folder = found.path
        assert folder is not None
        with locked(folder, "the site"):
            for name, content in shared_files().items():
                write_whole(folder / name, content)
            done, total = 0, sum(made_by["d_mlp"])
            for layer in range(store.n_layers):
                if not (folder / str(layer)).exists():
                    with appearing(folder / str(layer)) as made:
                        write_layer(store, layer, made, context, (done, total), progress)
                done += store.d_mlp(layer)
                report_pages(progress, done, total)
            write_whole(folder / INDEX, index_html(store, folder))
    return folder / INDEX


def shared_files() -> dict[str, str]:
    """Styles and scripts of all pages."""
    return {
        "style.css": notebook.render("site.css", package=PACKAGE),
        TABLES: script_of(TABLES, notebook.HERE),
        "site.js": script_of("site.js"),
    }


def write_layer(
    store: Store, layer: int, folder: Path, context: int, place: tuple[int, int], progress: Progress | None
) -> None:
    """A page of each neuron of a layer, the layer's own, what the search reads, and its neurons worth opening."""
    most = {kind: TOP if kind == "top" else CASE if kind in CASES else BAND for kind in kinds_shown(store)}
    shared: dict[str, Any] = {"root": "../", "model": store.model, "version": __version__, "template": "site_page.html"}
    home = (store.model, "../index.html", "")
    around = neighbours(store, layer)
    measured = any(opened(store, sign, {}) is not None for sign in COEFFICIENT_SIGNS)
    records: list[dict[str, Any]] = []
    for neuron in blocks(store, layer, most, context, measured=measured):
        ways = [home, (f"layer {layer}", "index.html", ""), *next(around)]
        html = page_html(neuron.title, [Section("", without_origin(neuron.sheet(None)))], {}, ways=ways, **shared)
        (folder / f"{neuron.neuron}.html").write_text(html, "utf-8")
        records.append(record_of(neuron))
        if len(records) % 64 == 0:
            report_pages(progress, place[0] + len(records), place[1])
    beside = [
        (words.format(other), f"../{other}/index.html", rel)
        for words, other, rel in (("← layer {}", layer - 1, "prev"), ("layer {} →", layer + 1, "next"))
        if 0 <= other < store.n_layers
    ]
    layer_page = page_html(
        f"Layer {layer} of {store.model}",
        [Section("", tables_of(NeuronList(pd.DataFrame(records), {})))],
        {},
        links=lambda _, neuron: f"{neuron}.html",
        ways=[home, *beside],
        **shared,
    )
    (folder / INDEX).write_text(layer_page, "utf-8")
    (folder / "search.js").write_text(search_script(layer, records), "utf-8")


def report_pages(progress: Progress | None, done: int, total: int) -> None:
    if progress is not None:
        progress("pages", done, total)


def neighbours(store: Store, layer: int) -> Iterator[list[tuple[str, str, str]]]:
    """Ways from each neuron of a layer to the one before it and to the one after it."""
    width = store.d_mlp(layer)
    for neuron in range(width):
        before, after = (layer, neuron - 1), (layer, neuron + 1)
        if neuron == 0:
            before = (layer - 1, store.d_mlp(layer - 1) - 1 if layer else 0)
        if neuron == width - 1:
            after = (layer + 1, 0)
        yield [
            (words.format(f"{at}.{n}"), f"../{at}/{n}.html", rel)
            for words, (at, n), rel in (("← {}", before, "prev"), ("{} →", after, "next"))
            if 0 <= at < store.n_layers
        ]


def record_of(neuron: Known) -> dict[str, Any]:
    """A neuron in short, for tables and the search; ``ends``: its tokens by side and sign, as ``WHY`` has them."""
    fires_at = (text for side in neuron.sides for text, _ in side.fires_at)
    return {
        **in_brief(neuron),
        "ends": [[text for text, _ in neuron.scores(sign, side)[:FOUND]] for side, sign in WHY],
        "triggers": list(dict.fromkeys(fires_at))[:FOUND],
    }


def search_script(layer: int, records: Sequence[Mapping[str, Any]]) -> str:
    """What the search reads of a layer, as a script, since a page from disk may load no data."""
    rates = (one["firing_rate"] for one in records)
    rows = [
        [one["ends"], one["triggers"], 0.0 if rate != rate else round(rate, 4)]
        for one, rate in zip(records, rates, strict=True)
    ]
    return f"ffnmemNeurons({layer},{json.dumps(rows, separators=(',', ':'))});\n"


def tables_of(result: Result) -> Sheet:
    """The tables of a result, all rows of them, under the title that their section has."""
    blocks = result.sheet(None).blocks
    return Sheet(tuple(replace(block, title="") for block in blocks if isinstance(block, Table)))


def index_html(store: Store, folder: Path) -> str:
    """The page with the search, the neurons worth opening, and the layers."""
    best = tables_of(find_readable(store)) if store.projected else Sheet(())
    rates = ("firing_rate_50", "firing_rate_5", "firing_rate_95")
    counts, shares = (Column(name, "count") for name in ("neurons", "never fire")), ("median firing rate", "5%", "95%")
    layers = rows("layer", *counts, *(Column(name, "percent") for name in shares))
    for row in store.to_frame().to_dict("records"):
        name = line(Span(f"layer {row['layer']:.0f}", leads=("address", f"{row['layer']:.0f}/{INDEX}")))
        layers.add(name, row["neurons"], row["never_fired"], *(row[rate] for rate in rates))
    corpus = store.manifest["corpus"]
    return page_html(
        f"The neurons of {store.model}",
        [
            *([Section("Neurons worth opening", best, WORTH)] if best.blocks else []),
            Section("Layers", Sheet.of(layers.table())),
        ],
        {**store.provenance, "basis": store.manifest["basis"]},
        template="site_page.html",
        links=lambda layer, neuron: f"{layer}/{neuron}.html",
        lead=f"What a scan of {corpus['source']} ({counted(corpus['documents'], 'document')}, "
        f"{counted(store.n_tokens, 'token')}) found of {counted(sum(store.manifest['d_mlp']), 'neuron')}. A neuron "
        "writes its coefficient times its value; it fires where its pre-activation is above 0.",
        root="",
        ways=[],
        why=[*WHY.values(), "fires at"],
        layers=range(store.n_layers),
    )
