"""Neurons of a store as a page, as Markdown, or as a table of examples."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from ..core.errors import InputError, ModelError, counted, warn
from ..core.files import check_destination, replacing, write_whole
from ..core.neuron_names import NeuronNames
from ..core.progress import Progress
from ..core.sheets import Column, Sheet, Table, line
from ..core.types import LOGIT, Count, Whole, checked
from ..describing.describing import Descriptions
from ..scanning.neuron import Known, Neuron, kinds_shown
from ..scanning.neuron_sides import scored
from ..scanning.store import SHADES, Store
from ..show.markdown import escaped, markdown
from ..show.notebook import provenance_line
from ..show.records import write_csv
from ..vocabulary.lenses import Lens
from .links import anchor, to_cards
from .rendering import Section
from .rendering import page_html as page_html_of

FORMATS = (".html", ".md", ".csv", ".parquet")
TABLES = (".csv", ".parquet")
MOST = 500
"""Neurons of one page or Markdown file: a card takes about 30 kB, and browsers are slow above 20 MB."""
MOST_SHADED = 80
"""Of one page, where every token of their examples is shaded: a card then takes up to 250 kB."""
LARGEST = 20_000_000
"""Characters of a page with shaded tokens."""
SHADED = 20
"""Up to which they are shaded unasked: of SmolLM2 that takes minutes."""

SCHEMA = pa.schema(
    {
        **dict.fromkeys(("layer", "neuron"), pa.int64()),
        "kind": pa.string(),
        "rank": pa.int64(),
        "coefficient": pa.float64(),
        **dict.fromkeys(("sequence", "position"), pa.int64()),
        **dict.fromkeys(("token", "context", "extreme"), pa.string()),
        **dict.fromkeys(("band_low", "band_high"), pa.float64()),
    }
)
"""Of the table that :meth:`Store.examples` gives."""

GATED = (*(pa.field(name, pa.float64()) for name in ("gate", "linear")), pa.field("case", pa.string()))
"""What it has besides of gated neurons."""

EXPLAINED = (
    "A neuron writes its coefficient times its value; it fires where its pre-activation is above 0. Promoted and "
    "suppressed are the tokens whose logits that raises and lowers most."
)
GATED_EXPLAINED = (
    " A gated neuron's coefficient is act(gate) times a linear part; the tokens beside gate and key are those whose "
    "embeddings raise (+) and lower (−) the gate and the linear part most, and its pre-activation is its gate's. Its "
    "coefficient may be large with either sign: each is a side of its own, and on the negative side the value's sign "
    "turns, so that it promotes what it suppresses on the other."
)
TYPICAL = " The largest coefficients show the extremes; the random sequences show what is typical."
MEANT = " Meanings are groups of examples at which the FFN was given alike inputs; shares are of the activation."
FEW = 5  # tokens of a neuron in a table
INDEX_COLUMNS: tuple[str | Column, ...] = (
    "neuron",
    Column("fires", "probability"),
    *(Column(name, "number", places=places) for name, places in (("mean", 3), ("largest", 3), ("kurtosis", 2))),
    Column("promotes", wraps=True),
)
Place = tuple[int, int]
Item = TypeVar("Item")


@checked
def neurons(
    store: Store,
    neurons: pd.DataFrame | NeuronNames,
    out: str | Path = "neurons.html",
    *,
    kind: str | Sequence[str] | None = None,
    k: Count | None = None,
    context: Whole = 12,
    shade: bool | None = None,
    lens: Lens = LOGIT,
    descriptions: Descriptions | None = None,
    progress: Progress | None = None,
) -> Path:
    """Write what a store knows of some neurons into one file.

    Args:
        store: from :func:`ffnmem.scan` or :func:`ffnmem.open_store`.
        neurons: ``"3.17"`` or (layer, neuron) of each, or a table with these columns, as :meth:`Store.stats` gives.
        out: the file, in a folder that exists; replaced only once the new one is complete. Its suffix decides:
            ``.html`` (cards on one page that needs nothing but a browser) and ``.md`` take at most 500 neurons;
            ``.csv`` and ``.parquet`` hold the rows of :meth:`Store.examples` of any number.
        kind: which examples; default "top" (of gated neurons the four sign cases) and "quantile" on cards, and all
            kinds in tables.
        k: examples a kind, and a band; default 10 (3 a band, 5 a case) on cards, and all that the store keeps in
            tables.
        context: tokens of context on each side.
        shade: on a page, shade every token of the examples by the neuron's coefficient there, with the whole sequence
            where it is asked for; the store's model reads them again, see :meth:`Store.shaded`. Default: for at most 20
            neurons, up to 20 MB, and where the model can be had, else the page says why not, and so does a warning if
            it has no model; True takes at most 80, and no more than 20 MB.
        lens: what the tokens of values are read through on cards, as :func:`ffnmem.project` takes it; any but "logit"
            needs the store's model.
        descriptions: from :func:`ffnmem.describe`, of this store's model: its words on the cards of the neurons that it
            has; in the page's provenance, who found them.
        progress: called as ("read", done, all) after each neuron, then as ("shade", done, all) in tokens.

    Returns:
        The path written.

    Raises:
        FileError: a damaged store, or a file that cannot be written. InputError: an unknown suffix or kind, no neurons,
        or too many; ``shade=True`` for what is no page; descriptions of another model, or for what has no cards.
        OutOfRangeError: a neuron that the store does not have.
        ModelError: ``shade=True`` without the model; one that gives other coefficients than the store has.
    """
    suffix = check_suffix(out)
    path = check_destination(out)
    places = check_places(store, neurons, suffix)
    kinds = check_kinds(store, kind, store.kinds if suffix in TABLES else kinds_shown(store))
    check_shade(shade, suffix, len(places))
    check_descriptions(descriptions, store, suffix)
    if suffix in TABLES:
        frames = (store.examples(*place, kind=kinds, k=k, context=context) for place in places)
        schema = pa.schema([*SCHEMA, *GATED]) if store.gated else SCHEMA
        write_table(path, suffix, reporting(frames, len(places), progress), store.provenance, schema)
        return path
    neurons_read = (store.neuron(*place, kind=kinds, k=k, context=context, lens=lens) for place in places)
    found = list(reporting(neurons_read, len(places), progress))
    if descriptions is not None:
        found = described(descriptions, found)
    if suffix == ".html":
        found, unshaded = shaded(store, found, k, shade, progress)
        html = page_html(store, found, k, unshaded, descriptions)
        if len(html) > LARGEST and any(one.passages for one in found):
            size = f"shaded tokens would make this page {len(html) / 1e6:.0f} MB, more than browsers show quickly"
            if shade:
                raise InputError(f"{size} ({LARGEST / 1e6:.0f}): choose fewer neurons, a smaller k, or shade=False")
            plain = [replace(one, passages={}) for one in found]
            html = page_html(store, plain, k, f"Tokens are not shaded: {size}.", descriptions)
        write_whole(path, html)
    else:
        write_whole(path, neurons_markdown(store, found, k, descriptions))
    return path


def check_suffix(out: str | Path) -> str:
    """The suffix that chooses the format; raises InputError."""
    suffix = Path(out).suffix.lower()
    if suffix not in FORMATS:
        raise InputError(f"{out}: a report's name ends in {', '.join(FORMATS[:-1])} or {FORMATS[-1]}")
    return suffix


def check_places(store: Store, neurons: pd.DataFrame | NeuronNames, suffix: str) -> list[Place]:
    """Each neuron once, as indices; raises InputError or OutOfRangeError."""
    if isinstance(neurons, pd.DataFrame):
        missing = {"layer", "neuron"} - set(neurons.columns)
        if missing:
            raise InputError(f"a table of neurons needs the columns layer and neuron; {sorted(missing)[0]} is missing")
        neurons = neurons[["layer", "neuron"]].itertuples(index=False, name=None)
    found = list(neurons)
    places = list(dict.fromkeys(map(store.index, found)))
    if not places:
        raise InputError("a report needs at least one neuron: none was given")
    if suffix not in TABLES and len(places) > MOST:
        raise InputError(
            f"{len(places):,} neurons are too many for one {suffix} file, which takes {MOST}: "
            "choose fewer, or write .csv or .parquet"
        )
    return places


def check_shade(shade: bool | None, suffix: str, count: int) -> None:
    """Raise InputError where shades are asked for that cannot be."""
    if shade and suffix != ".html":
        raise InputError(f"tokens are shaded on pages only: name a file that ends in .html, not in {suffix}")
    if shade and count > MOST_SHADED:
        raise InputError(f"{count} neurons are too many for a page with shaded tokens, which takes {MOST_SHADED}")


def check_descriptions(descriptions: Descriptions | None, store: Store, suffix: str) -> None:
    """Raise InputError where descriptions are given that no card here can have."""
    if descriptions is None:
        return
    if suffix in TABLES:
        raise InputError(f"descriptions stand on cards: name a file that ends in .html or .md, not in {suffix}")
    fingerprint = descriptions.provenance["fingerprint"]
    if fingerprint != store.fingerprint:
        raise InputError(
            f"the descriptions are of {descriptions.provenance['model']} {fingerprint}, and the store is of "
            f"{store.model} {store.fingerprint}"
        )


def described(descriptions: Descriptions, neurons: Sequence[Neuron]) -> list[Neuron]:
    """The neurons with their descriptions; those that were not described as they are."""
    known = set(zip(descriptions.table["layer"], descriptions.table["neuron"], strict=True))
    return [descriptions.on(one) if (one.layer, one.neuron) in known else one for one in neurons]


def origin(store: Store, descriptions: Descriptions | None) -> dict[str, Any]:
    """Where the numbers of a page come from, and its words."""
    return {**store.provenance, "basis": store.manifest["basis"], **(descriptions.origin if descriptions else {})}


def shaded(
    store: Store, neurons: list[Neuron], listed: int | None, shade: bool | None, progress: Progress | None
) -> tuple[list[Neuron], str]:
    """The neurons with shaded examples, or as they are and why: nothing where that was asked for."""
    if shade is False:
        return neurons, ""
    if shade is None and len(neurons) > SHADED:
        return neurons, f"Their tokens are not shaded: of more than {SHADED} neurons only where it is asked for."
    try:
        store.model_for(SHADES)
    except ModelError as error:
        lack = error
    else:
        try:
            return store.shaded(neurons, listed, progress=progress), ""
        except ModelError as error:  # it is under an intervention, or its weights are no longer those of the scan
            lack = error
    if shade:
        raise lack
    warn(f"tokens are not shaded: {lack}")
    return neurons, f"Tokens are not shaded: {lack}."


def check_kinds(store: Store, kind: str | Sequence[str] | None, default: Sequence[str]) -> Sequence[str]:
    """Kinds of examples that the store has, each once; raises InputError."""
    kinds = list(default) if kind is None else [kind] if isinstance(kind, str) else list(dict.fromkeys(kind))
    if not kinds:
        raise InputError(f"kind is empty: choose of {', '.join(store.kinds)}")
    return store.check_kinds(kinds)


def reporting(items: Iterable[Item], total: int, progress: Progress | None) -> Iterator[Item]:
    """The items one by one, each reported once it is there."""
    for done, item in enumerate(items, start=1):
        if progress is not None:
            progress("read", done, total)
        yield item


def page_html(
    store: Store,
    neurons: Sequence[Known],
    listed: int | None = None,
    unshaded: str = "",
    descriptions: Descriptions | None = None,
) -> str:
    """The page of some neurons. ``unshaded``: why their tokens are not shaded, where they might have been;
    ``descriptions``: those that stand on the cards."""
    one = len(neurons) == 1
    title = f"{f'Neuron {neurons[0].name}' if one else f'{len(neurons):,} neurons'} of {store.model}"
    index = [] if one else [Section("", Sheet.of(index_table(neurons)))]
    corpus = store.manifest["corpus"]
    lead = (
        f"What a scan of {corpus['source']} ({counted(corpus['documents'], 'document')}, "
        f"{counted(store.n_tokens, 'token')}) found. {EXPLAINED}{GATED_EXPLAINED if store.gated else ''}{TYPICAL}"
        f"{MEANT if any(neuron.meanings for neuron in neurons) else ''} {unshaded}"
    )
    return page_html_of(
        title,
        [*index, *(neuron_section(neuron, listed) for neuron in neurons)],
        origin(store, descriptions),
        lead=lead,
        links=to_cards((neuron.layer, neuron.neuron) for neuron in neurons),
    )


def neuron_section(neuron: Known, listed: int | None = None) -> Section:
    """A neuron's card as a section of a page."""
    sheet = neuron.sheet(listed, origin=False)
    return Section(f"Neuron {neuron.name}", Sheet(sheet.blocks), anchor=anchor(neuron.layer, neuron.neuron))


def index_table(neurons: Iterable[Known]) -> Table:
    """Neurons in short, a row each."""
    records = [index_record(neuron) for neuron in neurons]
    extra = [
        Column(name, wraps=True) for name in ("verdict", "described as") if any(record[name] for record in records)
    ]
    return Table.of(records, *INDEX_COLUMNS, *extra)


def index_record(neuron: Known) -> dict[str, Any]:
    """What a table of neurons says of one: verdict and tokens are of its stronger side, whose sign ``largest`` has."""
    stats, side = neuron.stats, neuron.sides[0]
    return {
        "layer": neuron.layer,
        "neuron": neuron.neuron,
        "fires": line("dead") if stats["dead"] else float(stats["firing_rate"]),
        **{name: float(stats[name]) for name in ("mean", "kurtosis")},
        "largest": side.extreme,
        "verdict": side.meanings.label if side.meanings else "",
        "promotes": scored(side.promotes[:FEW], "adds"),
        "described as": neuron.description,
    }


def neurons_markdown(
    store: Store, neurons: Sequence[Neuron], listed: int | None = None, descriptions: Descriptions | None = None
) -> str:
    """The sheets of some neurons as Markdown, for notes, issues and pull requests."""
    name = f"Neuron {neurons[0].name}" if len(neurons) == 1 else f"{len(neurons):,} neurons"
    parts = [
        f"# {name} of {escaped(store.model)}\n\nFrom a scan of {escaped(store.manifest['corpus']['source'])}:"
        f" {counted(store.n_tokens, 'token')}. **Bold** marks the token at which the neuron fires.\n",
        *(markdown(one.sheet(listed, origin=False)) for one in neurons),
        f"*{escaped(provenance_line({**store.provenance, **(descriptions.origin if descriptions else {})}))}*\n",
    ]
    return "\n".join(parts)


def write_table(
    path: Path, suffix: str, frames: Iterable[pd.DataFrame], provenance: Mapping[str, Any], columns: pa.Schema = SCHEMA
) -> None:
    """Examples of many neurons, written as they come, so that they need the memory of one. Parquet has the provenance
    in its metadata, under "ffnmem"."""
    with replacing(path) as temporary:
        if suffix == ".csv":
            with temporary.open("x", encoding="utf-8", newline="") as file:
                for index, frame in enumerate(frames):
                    write_csv(frame, file, header=index == 0)
            return
        schema = columns.with_metadata({"ffnmem": json.dumps({"provenance": dict(provenance)})})
        with pq.ParquetWriter(temporary, schema, compression="zstd") as writer:
            for frame in frames:
                writer.write_table(pa.Table.from_pandas(frame, schema=schema, preserve_index=False))
