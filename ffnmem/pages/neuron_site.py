"""Every neuron of a store as a static site: a page each, a page a layer, and a search that needs no server."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from .._version import __version__
from ..core.checked_files import digest_of
from ..core.errors import FfnmemError
from ..core.files import appearing, write_whole
from ..core.folders import locked
from ..core.progress import Progress
from ..core.run_folders import run_folder
from ..core.types import CASES, COEFFICIENT_SIGNS, Whole, checked
from ..models.turns import in_turn
from ..neurons.measuring import opened
from ..scanning.blocks import blocks
from ..scanning.neuron import Known, kinds_shown
from ..scanning.store import Store
from ..show import notebook
from ..vocabulary.projections import WHY
from .links import INDEX, SITE
from .neuron_cards import card
from .rendering import ROOM, TABLES, script_of

TOP, CASE, BAND = 8, 3, 1
"""Examples of a card: of the largest coefficients, of each sign case, and of each band of quantiles."""
FOUND = 5  # tokens of a neuron that the search knows, of each end of what it writes and reads, and of what it fires at


@dataclass(frozen=True)
class Listed:
    """A neuron in the table of its layer, and what the search knows of it. ``ends``: its tokens by side and sign, as
    ``WHY`` has them."""

    neuron: int
    dead: bool
    rate: float
    mean: float
    max: float
    kurtosis: float
    ends: tuple[tuple[str, ...], ...]
    triggers: tuple[str, ...]
    verdict: str


@checked
@in_turn
def site(store: Store, out: str | Path, *, context: Whole = 12, progress: Progress | None = None) -> Path:
    """Write a page of every neuron of a store, and a search over all of them, into one folder.

    The pages open from disk and need no network: ``index.html`` searches what neurons write, read and fire at most,
    and leads to a page a layer. Cards are brief: 8 of the largest coefficients (3 of each sign case of gated neurons)
    and one example a quantile band. One layer's table is in memory at a time.

    A layer appears whole or not at all, and the same call goes on where it was stopped; a folder without ``index.html``
    is not finished.

    Args:
        store: from :func:`ffnmem.scan` or :func:`ffnmem.open_store`.
        out: the folder; made if missing, new, empty or of the same site.
        context: tokens of context on each side.
        progress: called as ("pages", done, all) in neurons; before that as ("project", done, all), where the store has
            no table yet of what its neurons write.

    Returns: The path of ``index.html``.

    Raises: FileError: a damaged store; a folder that cannot be written, or holds something else or another site.
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
            for name, content in files_of_all().items():
                write_whole(folder / name, content)
            done, total = 0, sum(made_by["d_mlp"])
            for layer in range(store.n_layers):
                if not (folder / str(layer)).exists():
                    with appearing(folder / str(layer)) as room:
                        write_layer(store, layer, room, context, (done, total), progress)
                done += store.d_mlp(layer)
                told(progress, done, total)
            write_whole(folder / INDEX, index_html(store))
    return folder / INDEX


def files_of_all() -> dict[str, str]:
    """Styles and scripts of all pages."""
    return {
        "style.css": notebook.render("site.css", room=ROOM),
        TABLES: script_of(TABLES, notebook.HERE),
        "site.js": script_of("site.js"),
    }


def write_layer(
    store: Store, layer: int, room: Path, context: int, place: tuple[int, int], progress: Progress | None
) -> None:
    """A page of each neuron of a layer, the layer's own, and what the search reads."""
    listed: list[Listed] = []
    most = {kind: TOP if kind == "top" else CASE if kind in CASES else BAND for kind in kinds_shown(store)}
    template = notebook.environment(ROOM).get_template("site_card.html")
    shared = {"root": "../", "model": store.model, "version": __version__}
    ways = ways_of(store, layer)
    measured = any(opened(store, sign, {}) is not None for sign in COEFFICIENT_SIGNS)
    for neuron in blocks(store, layer, most, context, measured=measured):
        shown = card(neuron, brief=True)
        before, after = next(ways)
        html = template.render(card=shown, before=before, after=after, **shared)
        (room / f"{neuron.neuron}.html").write_text(html, "utf-8")
        listed.append(listed_of(neuron, shown.verdict))
        if len(listed) % 64 == 0:
            told(progress, place[0] + len(listed), place[1])
    rest = {"layer": layer, "n_layers": store.n_layers, "verdicts": any(one.verdict for one in listed)}
    (room / INDEX).write_text(notebook.render("site_layer.html", room=ROOM, rows=listed, **shared, **rest), "utf-8")
    (room / "search.js").write_text(search_script(layer, listed), "utf-8")


def told(progress: Progress | None, done: int, total: int) -> None:
    if progress is not None:
        progress("pages", done, total)


Way = tuple[str, str] | None
"""A neighbour's name and address."""


def ways_of(store: Store, layer: int) -> Iterator[tuple[Way, Way]]:
    """To the neuron before each of a layer, and to the one after it."""
    names: list[Way] = [(f"{layer}.{neuron}", f"{neuron}.html") for neuron in range(store.d_mlp(layer))]
    before = None if layer == 0 else store.d_mlp(layer - 1) - 1
    ends: tuple[Way, Way] = (
        None if before is None else (f"{layer - 1}.{before}", f"../{layer - 1}/{before}.html"),
        None if layer + 1 == store.n_layers else (f"{layer + 1}.0", f"../{layer + 1}/0.html"),
    )
    around = [ends[0], *names, ends[1]]
    for (before_it, _), (_, after_it) in pairwise(pairwise(around)):
        yield before_it, after_it


def listed_of(neuron: Known, verdict: str) -> Listed:
    """A neuron in short."""
    stats, examples = neuron.stats, neuron.examples
    tokens = (text for text, kind in zip(examples["token"], examples["kind"], strict=True)
              if kind != "quantile")  # fmt: skip
    return Listed(
        neuron=neuron.neuron,
        dead=bool(stats["dead"]),
        rate=float(stats["firing_rate"]),
        mean=float(stats["mean"]),
        max=float(stats["max"]),
        kurtosis=float(stats["kurtosis"]),
        ends=tuple(tuple(text for text, _ in neuron.scores(sign, side)[:FOUND]) for side, sign in WHY),
        triggers=tuple(dict.fromkeys(tokens))[:FOUND],
        verdict=verdict,
    )


def search_script(layer: int, listed: Sequence[Listed]) -> str:
    """What the search reads of a layer, as a script, since a page from disk may load no data."""
    rows: list[Any] = [[one.ends, one.triggers, 0.0 if one.rate != one.rate else round(one.rate, 4)] for one in listed]
    return f"ffnmemNeurons({layer},{json.dumps(rows, separators=(',', ':'))});\n"


def index_html(store: Store) -> str:
    """The page with the search and the layers."""
    return notebook.render(
        "site_index.html",
        room=ROOM,
        root="",
        model=store.model,
        why=[*WHY.values(), "fires at"],
        corpus=store.manifest["corpus"],
        tokens=store.n_tokens,
        total=sum(store.manifest["d_mlp"]),
        layers=list(store.to_frame().itertuples()),
        provenance={**store.provenance, "basis": store.manifest["basis"]},
    )
