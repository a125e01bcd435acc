"""``Store``: a finished scan on disk, asked neuron by neuron."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np
import pandas as pd

from ..core.arguments import public
from ..core.checked_files import digest_of, reading
from ..core.choices import CASE_SHOWN, CASES, EXAMPLE_KINDS, EXAMPLES_SHOWN, SEARCHED
from ..core.errors import FileError, InputError, check_choice, check_count, check_index, quoted
from ..core.files import user_folder
from ..core.neuron_names import LayerName, NeuronName, is_place, layer_of, place_of
from ..core.provenance import Live
from ..core.sheets import (
    Block,
    Column,
    Content,
    Facts,
    Fitting,
    Origin,
    Sheet,
    Span,
    Table,
    Words,
    decimals,
    line,
    of_chance,
    of_number,
    of_share,
    rows,
    token,
)
from ..core.token_text import printable
from ..corpus.batches import Sequences
from ..corpus.packed import Packed, open_packed
from ..corpus.readers import problem_table
from ..models.model import Model
from ..models.turns import in_turn
from ..show.result import Result
from ..vocabulary.projections import search_projection
from ..vocabulary.vectors import SIGNS
from .contexts import Bin, Contexts, Example, Window, clipped, example_list, log_share, merged
from .manifest import check_agreement, check_file, read_manifest
from .settings import ScanSettings
from .state import COLUMNS, PARTS
from .state_file import StateFile
from .statistics import GATE_STATS, histogram_frame
from .statistics import STATS as STATISTICS
from .tables import (
    BANDS,
    CORPUS,
    EXAMPLES,
    GATED_KINDS,
    ROWS,
    STATE,
    STATS,
    TOKENIZER,
    VALUES,
    LayerView,
    NeuronTable,
    example_frame,
)

# Neurons by text: what their values write, or what fires them.


def search_store(store: Store, text: str, where: str, limit: int) -> pd.DataFrame:
    """Rows of projections (values) or of examples whose token contains ``text``; see :meth:`Store.search`."""
    check_choice("where", where, SEARCHED)
    if not text.strip():
        raise InputError("the text to search for is empty: give a part of a token, such as 'Paris'")
    if where == "values":
        return search_projection(store.checked(VALUES), text, side="value", limit=limit)
    wanted = matching_ids(store, text)
    table = store.opened(EXAMPLES)
    found = []
    for group in range(table.file.num_row_groups):
        with reading(table.path):
            rows = table.file.read_row_group(group).to_pandas()
        found.append(rows[np.isin(rows["token_id"], wanted)].rename(columns={"activation": "coefficient"}))
    # One row a neuron and kind: how many of its examples are at such a token, and the best of them.
    hits = pd.concat(found, ignore_index=True)
    grouped = hits.groupby(["layer", "neuron", "kind"], observed=True, sort=False)
    best = grouped.first().reset_index()
    best.insert(3, "hits", grouped.size().to_numpy())
    best["token"] = store.contexts.strings(best["token_id"])
    order = best.assign(strength=best["coefficient"].abs()).sort_values(
        ["hits", "rank", "strength"], ascending=[False, True, False], kind="stable", ignore_index=True
    )
    return order.drop(columns="strength").head(limit)


def matching_ids(store: Store, text: str) -> np.ndarray:
    """Ids of tokens that contain the text, whatever its case."""
    strings = store.contexts.strings(range(store.corpus.vocab))
    return np.array([i for i, token in enumerate(strings) if text.casefold() in token.casefold()], np.int64)


@dataclass(frozen=True, eq=False, repr=False)
class Found(Result):
    """What :meth:`Store.search` found, with what was asked."""

    store: Store
    text: str
    where: str
    rows: pd.DataFrame

    def summary(self) -> str:
        return f"{len(self.rows)} rows for {self.text!r} in {self.where}"

    def sheet(self) -> Sheet:
        """Neurons and the token that matched; or that there is none, and where else to look."""
        found: Block = none_found(self.text, self.where)
        if len(self.rows):
            found = value_table(self.rows) if self.where == "values" else example_table(self.rows)
        return Sheet.of(found, Origin(self.store.provenance))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {"neurons": self.rows.to_dict("records"), "provenance": self.store.provenance}

    def to_frame(self) -> pd.DataFrame:
        """``rows``."""
        return self.rows


def value_table(found: pd.DataFrame) -> Table:
    """Neurons whose values write a token."""
    shown = rows(
        Column("neuron", "neuron"), "sign", Column("rank", "count"), Column("token", "token"),
        Column("score", "number", sign=True),
    )  # fmt: skip
    for row in found.itertuples():
        shown.add((row.layer, row.neuron), row.sign, row.rank, row.token, row.score)
    return shown.table()


def example_table(found: pd.DataFrame) -> Table:
    """Neurons that fire at a token."""
    shown = rows(
        Column("neuron", "neuron"), "kind", Column("examples", "count"), Column("best rank", "count"),
        Column("token", "token"), Column("coefficient", "number", sign=True),
    )  # fmt: skip
    for row in found.itertuples():
        place = (row.layer, row.neuron)
        shown.add(place, str(row.kind), row.hits, row.rank, row.token, row.coefficient)
    return shown.table()


def none_found(text: str, where: str) -> Words:
    """That a search found nothing, and where else to look."""
    looked, other = ("values", "examples") if where == "values" else ("examples", "values")
    said = "is promoted or suppressed by" if where == "values" else "fires"
    return Words.of(f"no token with {text!r} {said} any neuron of the store (looked in {looked}; try --where {other})")


# `Neuron`: all that a store knows of one neuron, ready to be shown.

CONTEXTS = 3  # examples of each meaning
MEANINGS = 5  # with their examples; of the others, the share
BINS = 16  # rows of the histogram
FREQUENT = 8  # tokens
RARE = 0.0005  # the least share that is told in percent

KINDS = ("top", "quantile")  # shown unless others are asked for
GATED_KINDS_SHOWN = (
    *CASES,
    "quantile",
)  # of gated neurons: the largest coefficients mix cases that mean different things

TITLES = {
    "top": "Largest coefficients",
    "bottom": "Smallest coefficients",
    "max": "Random sequences by their largest coefficient",
    "min": "Random sequences by their smallest coefficient",
    "random": "Random positions",
    **{case: case for case in CASES},
}
NOTES = {
    "top": "the sequences in which it fires most strongly",
    "bottom": "the sequences with its lowest coefficient",
    "max": "what is typical of the whole corpus, strongest first: the largest alone mislead",
    "min": "what is typical of the whole corpus, lowest first",
    "random": "in the order of the text",
    "gate+ linear+": "gate above 0, linear part above 0; strongest first",
    "gate+ linear-": "gate above 0, linear part not; strongest first",
    "gate- linear+": "gate not above 0, linear part above 0; strongest first",
    "gate- linear-": "neither above 0; strongest first",
}
KEYS = {
    ("gate", "promoted"): "gate +",
    ("gate", "suppressed"): "gate −",
    ("key", "promoted"): "key +",
    ("key", "suppressed"): "key −",
}
"""What the two keys of a gated neuron read, in the words of its cases."""


@dataclass(frozen=True)
class Band:
    """Examples of one quantile band, or all of another kind (then without a label)."""

    label: str
    examples: tuple[Example, ...]


@dataclass(frozen=True)
class Group:
    """Examples of one kind, quantiles of one extreme. ``folded``: worth showing only on request."""

    name: str
    bands: tuple[Band, ...]
    folded: bool = False

    @property
    def title(self) -> str:
        return TITLES[self.name]

    @property
    def note(self) -> str:
        return NOTES[self.name]

    @property
    def gated(self) -> bool:
        """Whether its examples have gates and linear parts."""
        return any(example.parts for band in self.bands for example in band.examples)

    def table(self) -> Table:
        """Examples one a row, the firing tokens below each other."""
        labels = any(band.label for band in self.bands)
        shown = rows(
            *([Column("sequences", soft=True)] if labels else []),
            Column("coefficient", "number"),
            *(Column(name, "number", places=2, sign=True, soft=True) for name in PARTS if self.gated),
            Column("context", "context"),
        )
        if self.gated:
            shown.add(*([None] if labels else []), None, *(line(name) for name in PARTS))
        for band in self.bands:
            for index, example in enumerate(band.examples):
                label = [band.label if index == 0 else None] if labels else []
                shown.add(*label, example.coefficient, *example.parts, example)
        return shown.table(self.title, self.note, ruled=False, folded=self.folded)


@dataclass(frozen=True, eq=False, repr=False)
class Neuron(Result):
    """One neuron of a store.

    Attributes:
        store: where it comes from.
        layer, neuron: which.
        stats: its row of :meth:`Store.stats`.
        examples: as :meth:`Store.examples` gives them, of the kinds asked for.
        windows: the tokens around each row of ``examples``.
        histogram, by_token, by_position, values: as the store's methods of these names.
        context: tokens on each side in ``windows``.
    """

    store: Store
    layer: int
    neuron: int
    stats: dict[str, Any]
    examples: pd.DataFrame
    windows: tuple[Window, ...]
    histogram: pd.DataFrame
    by_token: pd.DataFrame
    by_position: pd.DataFrame
    values: pd.DataFrame
    context: int = 12

    @property
    def name(self) -> str:
        return f"{self.layer}.{self.neuron}"

    @property
    def gated(self) -> bool:
        """Whether it has a gate beside its key."""
        return self.store.gated

    @property
    def cases(self) -> tuple[dict[str, Any], ...]:
        """Of a gated neuron, for each sign case: case, share (of positions), mean (coefficient; NaN for none)."""
        if not self.gated:
            return ()
        return tuple(
            {"case": case, "share": self.stats[f"share_{column}"], "mean": self.stats[f"mean_{column}"]}
            for case, column in zip(CASES, COLUMNS, strict=True)
        )

    @cached_property
    def meanings(self) -> tuple[Any, ...]:
        """What :func:`ffnmem.polysemanticity` keeps of it beside the store, its :class:`ffnmem.neurons.Meanings` for
        each
        sign; empty if nothing is."""
        # The one thing of a card that is from a room above, which reads stores: looked up when it is asked for.
        read = import_module("ffnmem.neurons.concepts").saved_meanings
        return read(self.store, self.layer, self.neuron, k=CONTEXTS, context=self.context)

    def tokens(self, sign: str, side: str = "value") -> list[str]:
        """The tokens that its value promotes, or suppresses, most; best first. Of a gated neuron also those that raise,
        or lower, its ``side`` "gate" or "key" most."""
        return [text for text, _ in self.scores(sign, side)]

    def scores(self, sign: str, side: str = "value") -> list[tuple[str, float]]:
        """:meth:`tokens` with their scores."""
        found = self.values[(self.values["side"] == side) & (self.values["sign"] == sign)].sort_values("rank")
        return list(zip(found["token"].astype(str), found["score"], strict=True))

    def bins(self, most: int = BINS) -> tuple[Bin, ...]:
        """The histogram in at most ``most`` bins; its ends are the least and the largest coefficient."""
        return merged(clipped(self.histogram, self.stats["min"], self.stats["max"]), most)

    def groups(self, listed: int | None = None) -> tuple[Group, ...]:
        """The examples by kind, in the order in which it holds them: of a kind at most ``listed`` (default 10, of a
        case 5), of a band all."""
        found: dict[str, dict[str, list[Example]]] = {}
        largest = max(abs(float(self.stats["max"])), abs(float(self.stats["min"])))
        columns = (self.examples[name].tolist() for name in ("kind", "extreme", "band_low", "band_high"))
        shown = example_list(self.examples, self.windows, largest)
        for kind, extreme, low, high, example in zip(*columns, shown, strict=True):
            name, label = (extreme, band_label(low, high)) if kind == "quantile" else (kind, "")
            band = found.setdefault(name, {}).setdefault(label, [])
            if kind == "quantile" or len(band) < shown_of(kind, listed):
                band.append(example)
        return tuple(
            Group(
                name,
                tuple(Band(label, tuple(band)) for label, band in bands.items()),
                folded=name == "min" and not self.two_sided,
            )
            for name, bands in found.items()
        )

    @property
    def two_sided(self) -> bool:
        """Whether negative coefficients matter beside the positive ones. Where the activation is GELU they hardly
        do."""
        return -float(self.stats["min"]) >= 0.25 * float(self.stats["max"])

    @property
    def frequent(self) -> pd.DataFrame:
        """Of ``by_token``, the tokens that occurred at which its mean coefficient is highest."""
        return self.by_token[self.by_token["count"] > 0].head(FREQUENT)

    def to_dict(self, listed: int | None = None, *, full: bool = True) -> dict[str, Any]:
        """Plain values, ready for JSON; without ``full`` of the examples, bins and tokens only what ``sheet(listed)``
        shows."""
        examples, bins, by_token = self.examples, self.histogram, self.by_token
        if not full:
            most = examples["kind"].map(lambda kind: shown_of(kind, listed))
            folded = (examples["extreme"] == "min") & (not self.two_sided)
            examples = examples[((examples["kind"] == "quantile") | (examples["rank"] <= most)) & ~folded]
            bins, by_token = pd.DataFrame([asdict(b) for b in self.bins()]), self.frequent
        tables = {"examples": examples, "histogram": bins, "by_token": by_token, "by_position": self.by_position}
        return {
            "layer": self.layer,
            "neuron": self.neuron,
            "stats": self.stats,
            "promoted": self.tokens("promoted"),
            "suppressed": self.tokens("suppressed"),
            **self.keys_and_cases(),
            **{name: table.to_dict("records") for name, table in tables.items()},
            "meanings": [found.to_dict() for found in self.meanings],
            "provenance": self.store.provenance,
        }

    def keys_and_cases(self) -> dict[str, Any]:
        """What :meth:`to_dict` has of a gated neuron besides."""
        if not self.gated:
            return {}
        sides = {side: {sign: self.tokens(sign, side) for sign in SIGNS} for side in ("gate", "key")}
        return {**sides, "cases": list(self.cases)}

    def to_frame(self) -> pd.DataFrame:
        """``examples``."""
        return self.examples

    def summary(self) -> str:
        rate = f"fires at {self.stats['firing_rate']:.1%} of tokens"
        promoted = ", ".join(self.tokens("promoted")[:5])
        return printable(f"{self.name} of {self.store.model}: {rate}, promotes {promoted}")

    def sheet(self, listed: int | None = None, *, origin: bool = True) -> Sheet:
        """Its card: numbers, tokens, histogram, meanings and examples, as many of a kind as ``groups`` has.

        ``origin``: with where the numbers come from."""
        groups = self.groups(listed)
        folded = any(group.folded for group in groups)
        least = f"its smallest coefficients stay near 0 ({self.stats['min']:.3f} at least); --kind bottom lists them"
        command = f"ffnmem polysemanticity {shlex.quote(str(self.store.folder))}"
        return Sheet.of(
            Facts(self.heading()),
            self.case_table() if self.cases else None,
            self.histogram_table(),
            *(found.listing(MEANINGS) for found in self.meanings),
            *(group.table() for group in groups),
            Words.of(least, "soft") if folded else None,
            None if self.meanings else Words.of(f"one meaning or several: not measured yet; {command}", "soft"),
            Origin(self.store.provenance) if origin else None,
            title=f"Neuron {self.name} of {self.store.model}",
        )

    def heading(self) -> dict[str, Content]:
        """The numbers, the tokens of the value, and the means by token and by position."""
        stats = self.stats
        places = decimals([stats["max"], stats["min"], stats["mean"]])
        found: dict[str, Content] = {
            "fires": self.fires(),
            "coefficient": ", ".join(f"{x} {of_number(stats[x], places)}" for x in ("mean", "std", "min", "max")),
            "shape": f"skewness {stats['skewness']:.2f}, excess kurtosis {stats['kurtosis']:.2f}",
            "promotes": self.scored("promoted"),
            "suppresses": self.scored("suppressed"),
        }
        if self.gated:
            found |= {name: self.scored(sign, side) for (side, sign), name in KEYS.items()}
        frequent = [
            (token(str(text), limit=24, note=f"{count:,} times"), Span(f" {mean:+.{places}f}", "soft"))
            for text, _, count, mean in self.frequent.itertuples(index=False)
        ]
        if frequent:
            found["excited by"] = Fitting(tuple(frequent))
        where = [
            (Span(str(name), note=f"{count:,} times"), Span(f" {mean:+.{places}f}", "soft"))
            for name, count, mean in self.by_position.itertuples(index=False)
        ]
        if where:
            found["at position"] = Fitting(tuple(where), whole=True)
        return found

    def fires(self) -> str:
        """How often the pre-activation was above zero."""
        stats = self.stats
        if stats["dead"]:
            return f"never in {stats['count']:,} tokens: dead"
        rate = of_share(stats["firing_rate"]) if stats["firing_rate"] >= RARE else f"{stats['firing_rate']:.1e}"
        zeros = f", exactly 0 at {of_share(stats['zero_share'])}" if stats["zero_share"] >= RARE else ""
        return f"at {rate} of {stats['count']:,} tokens{zeros}"

    def scored(self, sign: str, side: str = "value") -> Fitting:
        """:meth:`tokens`, each with its score for a pointer."""
        return Fitting(tuple((token(text, note=f"score {score:+.3f}"),) for text, score in self.scores(sign, side)))

    def case_table(self) -> Table:
        """The sign cases of a gated neuron: how often each occurs, and the mean coefficient there."""
        shown = rows("case", Column("positions", "percent"), Column("mean coefficient", "number", sign=True, bars=True))
        for case in self.cases:
            shown.add(case["case"], case["share"], case["mean"] if case["share"] > 0 else float("nan"))
        return shown.table()

    def histogram_table(self) -> Table:
        """The histogram in rows, its bars logarithmic in the count."""
        found = self.bins()
        places = decimals([edge for b in found for edge in (b.low, b.high)], 3)
        total, largest = sum(b.count for b in found), max((b.count for b in found), default=0)
        shown = rows(
            Column("coefficient", left=False),
            Column("tokens", "count"),
            Column("share", left=False),
            Column("tokens, log scale", "bar", spare=46),
        )
        for b in found:
            span = f"{b.low:.{places}f} to {b.high:.{places}f}"
            share = of_chance(b.count / total) if b.count else None
            shown.add(span, b.count, share, log_share(b.count, largest))
        return shown.table()


def shown_of(kind: str, listed: int | None) -> int:
    """How many examples of a kind a card shows."""
    return (CASE_SHOWN if kind in CASES else EXAMPLES_SHOWN) if listed is None else listed


def band_label(low: float, high: float) -> str:
    """A band of quantiles in words; the highest are the strongest."""
    if high == 1:
        return f"top {100 * (1 - low):.3g}%"
    return f"lowest {100 * high:.3g}%" if low == 0 else f"{100 * low:.3g}–{100 * high:.3g}%"


def kinds_shown(store: Store) -> tuple[str, ...]:
    """The kinds of examples that a card shows unless others are asked for."""
    return GATED_KINDS_SHOWN if store.gated else KINDS


def read_neuron(
    store: Store, layer: int, neuron: int, *, kind: str | Sequence[str] | None, k: int | None, context: int
) -> Neuron:
    """Everything about one neuron; layer and neuron are indices, the rest as :meth:`Store.examples` takes it."""
    rows = store.example_rows(layer, neuron, kind=kind, k=k)
    windows = store.windows(rows, context)
    stats = store.opened(STATS).one(layer, neuron)
    return Neuron(
        store=store,
        layer=layer,
        neuron=neuron,
        stats=stats,
        examples=store.with_contexts(rows, windows),
        windows=tuple(windows),
        histogram=store.histogram(layer, neuron),
        by_token=store.by_token(layer, neuron),
        by_position=store.by_position(layer, neuron),
        values=store.values(layer, neuron),
        context=context,
    )


LAYERS_KEPT = 8  # some 13 MB each for GPT-2 small
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
RATES = tuple(f"firing_rate_{100 * quantile:.0f}" for quantile in QUANTILES)


@public
@dataclass(frozen=True, eq=False, repr=False)
class Store(Result, Live):
    """What one scan found. Made by :func:`ffnmem.scan`, :func:`ffnmem.merge`, :func:`ffnmem.open_store`.

    Attributes:
        folder: where it lies.
        manifest: its settings, provenance and counts, as they were written.
    """

    folder: Path
    manifest: Mapping[str, Any]
    _layers: dict[int, LayerView] = field(default_factory=dict, repr=False)
    _tables: dict[tuple[Any, ...], NeuronTable] = field(default_factory=dict, repr=False)
    _checked: set[tuple[Any, ...]] = field(default_factory=set, repr=False)

    no_file = "it is its folder; fm.open_store opens that"

    # -- what it is ----------------------------------------------------------------------------------------------

    def identified(self) -> tuple[str, str]:
        """Its folder and a hash of its manifest, by which results that hold it are saved and loaded."""
        return str(self.folder), digest_of(self.manifest)[:12]

    @property
    def model(self) -> str:
        """The name of the model that was scanned."""
        return str(self.manifest["model"])

    @property
    def fingerprint(self) -> str:
        return str(self.manifest["fingerprint"])

    @property
    def n_layers(self) -> int:
        return int(self.manifest["layers"])

    @property
    def n_tokens(self) -> int:
        """Content tokens seen: no BOS, no special tokens."""
        return int(self.manifest["tokens"])

    @property
    def gated(self) -> bool:
        """Whether its neurons have gates."""
        return bool(self.manifest.get("gated", False))

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of examples that it has: of gated neurons the sign cases too."""
        return GATED_KINDS if self.gated else EXAMPLE_KINDS

    @property
    def complete(self) -> bool:
        """Whether the whole corpus was scanned; a shard is not complete."""
        return bool(self.manifest["units"]["done"] == self.manifest["units"]["total"])

    @property
    def provenance(self) -> dict[str, Any]:
        return dict(self.manifest["provenance"])

    @cached_property
    def settings(self) -> ScanSettings:
        return ScanSettings.from_dict(self.manifest["settings"])

    def d_mlp(self, layer: int) -> int:
        return int(self.manifest["d_mlp"][self.layer(layer)])

    def layer(self, layer: LayerName) -> int:
        """``layer`` as an index, negatives from the end, or named by a place in it (``"blocks.3.mlp.hook_post"``).

        Raises: OutOfRangeError: no such layer. InputError: a text that names none.
        """
        return check_index("layer", layer_of(layer, self.n_layers), self.n_layers, f"the store of {self.model}")

    def index(self, layer: SupportsIndex | NeuronName, neuron: SupportsIndex | None = None) -> tuple[int, int]:
        """Layer and neuron as indices, as all methods take them: two numbers, or one name such as ``"3.17"``.

        Raises: InputError: what names no neuron. OutOfRangeError: one that is not there.
        """
        layer, neuron = place_of(layer, neuron)
        row = self.layer(layer)
        return row, check_index("neuron", neuron, self.d_mlp(row), f"layer {row} of the store of {self.model}")

    def check_model(self, model: Model) -> None:
        """Raise InputError if the store is of another model, or of other weights."""
        if model.fingerprint != self.fingerprint:
            raise InputError(
                f"{self.folder} is a store of {self.model} {self.fingerprint}, not of {model.name} {model.fingerprint}"
            )

    def summary(self) -> str:
        neurons = sum(self.manifest["d_mlp"])
        part = "" if self.complete else ", a part of its corpus"
        return f"{str(self.folder)!r}: {neurons} neurons of {printable(self.model)} on {self.n_tokens} tokens{part}"

    def sheet(self, *, checked: bool = False) -> Sheet:
        """What was scanned, and how; dead neurons and firing rates by layer; what was wrong with the corpus.

        ``checked``: whether :meth:`verify` has read everything."""
        layers = self.to_frame()
        files = "all read and checked" if checked else "sizes and tables checked; --check reads everything"
        problems = self.corpus.problems
        found: dict[str, Content] = {
            "store": str(self.folder),
            **self.facts(),
            "dead": f"{layers['dead'].sum():,} of {layers['neurons'].sum():,} neurons never fired",
            "files": files,
        }
        if self.gated:
            found["cases"] = ", ".join(f"{case} {of_share(share)}" for case, share in self.case_shares().items())
        if not problems:
            found["problems"] = "none in the corpus"
        return Sheet.of(
            Facts(found), layer_table(layers), problem_table(problems) if problems else None, Origin(self.provenance)
        )

    def outcome(self) -> Sheet:
        """What a scan left, and what to ask of it, in a few lines."""
        stats, units = self.stats(), self.manifest["units"]
        found: dict[str, Content] = {
            "store": str(self.folder),
            "neurons": f"{len(stats):,} in {self.n_layers} layers, {stats['dead'].sum():,} of them dead",
            "corpus": f"{self.n_tokens:,} tokens in {self.manifest['sequences']:,} sequences",
        }
        if not self.complete:
            found["part"] = f"{units['done']} of {units['total']} units; ffnmem merge joins the shards"
        if self.corpus.problems:
            count = sum(problem.count for problem in self.corpus.problems)
            found["problems"] = f"{count:,} places of the text; ffnmem store lists them"
        peaked = stats.sort_values("kurtosis", ascending=False).iloc[0]
        found["next"] = f"ffnmem neuron {self.folder} {int(peaked['layer'])}.{int(peaked['neuron'])}"
        return Sheet.of(Facts(found), Origin(self.provenance))

    def facts(self) -> dict[str, str]:
        """What was scanned, and how, in words."""
        manifest, settings, corpus = self.manifest, self.settings, self.manifest["corpus"]
        units = manifest["units"]
        part = "" if self.complete else f", a part: {units['done']:,} of {units['total']:,} units"
        rescored = f", examples in {manifest['rescored_in']}" if manifest["rescored_in"] else ""
        return {
            "model": f"{self.model} {self.fingerprint}, {self.n_layers} layers, {sum(manifest['d_mlp']):,} neurons",
            "corpus": f"{corpus['source']}, {corpus['documents']:,} documents, hash {corpus['hash']}",
            "scanned": f"{self.n_tokens:,} tokens in {manifest['sequences']:,} sequences"
            f" of at most {settings.context}{part}",
            "settings": f"{settings.dtype}{rescored}, {'with BOS' if settings.prepend_bos else 'no BOS'},"
            f" seed {settings.seed}",
            "kept": f"{settings.k} top and bottom sequences a neuron, {settings.sample} random sequences,"
            f" {settings.draws} random positions, {len(settings.frequent)} frequent tokens",
        }

    def to_frame(self) -> pd.DataFrame:
        """One row a layer: layer, neurons, dead (how many never fired), and the 5%, 25%, 50%, 75% and 95% quantiles of
        its neurons' firing rates (shares of tokens) as firing_rate_5 to firing_rate_95."""
        by_layer = self.stats().groupby("layer")
        rates = by_layer["firing_rate"].quantile(list(QUANTILES)).unstack()
        rates.columns = list(RATES)
        counts = pd.DataFrame({"neurons": by_layer.size(), "dead": by_layer["dead"].sum()})
        return counts.join(rates).reset_index()

    def case_shares(self) -> dict[str, float]:
        """The share of positions of each sign case, the mean over all gated neurons."""
        stats = self.stats()
        return {case: float(stats[f"share_{column}"].mean()) for case, column in zip(CASES, COLUMNS, strict=True)}

    def to_dict(self, *, checked: bool = False) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "folder": str(self.folder),
            "model": self.model,
            "fingerprint": self.fingerprint,
            "complete": self.complete,
            "checked": checked,
            "tokens": self.n_tokens,
            "sequences": self.manifest["sequences"],
            "corpus": self.manifest["corpus"],
            "problems": [problem.to_dict() for problem in self.corpus.problems],
            "settings": self.settings.to_dict(),
            "layers": self.to_frame().to_dict("records"),
            **({"cases": self.case_shares()} if self.gated else {}),
            "provenance": self.provenance,
        }

    # -- the files behind it -------------------------------------------------------------------------------------

    @cached_property
    def corpus(self) -> Packed:
        packed = open_packed(self.folder / CORPUS, str(self.manifest["tokenizer_hash"]))
        scanned = self.manifest["corpus"]
        if packed.hash != scanned["hash"]:
            raise FileError(
                f"{packed.folder} holds another corpus ({packed.hash}) than the one scanned "
                f"({scanned['hash']}): scan again"
            )
        for name, found in (("digest", packed.digest), ("documents", packed.n_documents)):
            if scanned.get(name, found) != found:
                raise FileError(f"{packed.folder} is not as it was scanned (its {name} is another): scan again")
        return packed

    @cached_property
    def sequences(self) -> Sequences:
        return Sequences(self.corpus, self.settings.context, self.manifest["bos"])

    @cached_property
    def contexts(self) -> Contexts:
        """Token texts and contexts, cut from the corpus."""
        return Contexts.read(self.checked(TOKENIZER), self.sequences)

    @cached_property
    def header(self) -> StateFile:
        """The state, of which the header was checked, and found to tell the same as the manifest."""
        state = StateFile(self.folder / STATE)
        check_agreement(self.folder, self.manifest, state)
        return state

    @cached_property
    def state(self) -> StateFile:
        """The scan's arrays, each checked by the header when it is read; where the manifest knows no header, as in
        stores of older versions, the whole file is checked first."""
        if "state_header" not in self.manifest:
            self.checked(STATE)
        return self.header

    def checked(self, name: str) -> Path:
        """The path of one of the store's files: checked to be what the manifest says when it is asked for first, and
        again where another has taken its place. Raises FileError."""
        path = self.folder / name
        key = (name, *identity_of(path))
        if key not in self._checked:
            check_file(path, self.manifest["files"][name], content=True)
            self._checked.add(key)
        return path

    def view(self, layer: int) -> LayerView:
        """One layer's arrays, read when first asked for; a few layers are kept."""
        if layer not in self._layers:
            while len(self._layers) >= LAYERS_KEPT:
                self._layers.pop(next(iter(self._layers)))
            self._layers[layer] = LayerView(self.state, layer)
        return self._layers[layer]

    def table(self, name: str, layer: int | None = None, neuron: int | None = None) -> pd.DataFrame:
        """Rows of one of the store's Parquet files: all, a layer's or a neuron's."""
        return self.opened(name).rows(layer, neuron)

    def opened(self, name: str) -> NeuronTable:
        """One of the store's Parquet files, opened once; and again where another has taken its place."""
        path = self.checked(name) if name in self.manifest["files"] else self.folder / name
        key = (name, *identity_of(path))
        if key not in self._tables:
            table = NeuronTable(path)
            if name == STATS:
                table.check_rows(self.manifest["d_mlp"])
                table.check_columns((*STATISTICS, *(GATE_STATS if self.gated else ())))
            if name == EXAMPLES:
                table.check_columns((*ROWS, *(PARTS if self.gated else ())))
            self._tables[key] = table
        return self._tables[key]

    # -- questions -----------------------------------------------------------------------------------------------

    def stats(
        self, layer: SupportsIndex | NeuronName | None = None, neuron: SupportsIndex | None = None
    ) -> pd.DataFrame:
        """One row a neuron: layer, neuron, count, mean, std, skewness, kurtosis (excess), min, max of the coefficient,
        firing_rate (share of pre-activations above 0), zero_share, dead (never above 0), and ``pre_`` the same
        moments of the pre-activation. Of all neurons, a layer, or one neuron. Raises OutOfRangeError.

        The pre-activation of a gated neuron is its gate's: it fires where its gate is open, and a dead one, whose gate
        never opened, may still write a little (SiLU and GELU are not 0 below 0), with either sign. Gated neurons have
        besides ``linear_`` the same moments of the linear part, and of each sign case its share of positions and its
        mean coefficient: ``share_`` and ``mean_`` before gate_pos_linear_pos, gate_pos_linear_neg, gate_neg_linear_pos
        and gate_neg_linear_neg, where pos is above 0 and neg is not. The shares sum to 1; a case that never occurs
        has no mean (NaN)."""
        if layer is None:
            if neuron is not None:
                raise InputError("a neuron needs its layer: stats(layer, neuron)")
            return self.table(STATS)
        if neuron is None and (not isinstance(layer, str | Sequence) or is_place(layer)):
            return self.table(STATS, self.layer(layer))
        return self.table(STATS, *self.index(layer, neuron))

    def examples(
        self,
        layer: SupportsIndex | NeuronName,
        neuron: SupportsIndex | None = None,
        *,
        kind: str | Sequence[str] | None = None,
        k: int | None = None,
        bands: Sequence[float] = BANDS,
        context: int = 12,
    ) -> pd.DataFrame:
        """Where a neuron fires.

        Args:
            layer, neuron: which; or the neuron's name alone, such as ``"3.17"``.
            kind: any of "top" and "bottom" (the sequences of its largest and smallest coefficient), "quantile" (random
                sequences from each band of the distribution of sequences' largest, and of their smallest,
                coefficient) and "random" (random positions); of gated neurons also "gate+ linear+", "gate+ linear-",
                "gate- linear+" and "gate- linear-": the sequences of the largest magnitude of the coefficient where
                the gate's pre-activation and the linear part have these signs (+ above 0, - not). Default: all.
            k: rows a kind, and a band; default: all kept of top, bottom and each case, 3 a band, 10 random ones.
            bands: ascending quantiles from 0 to 1 between which bands lie.
            context: tokens of context on each side.

        Returns:
            Columns layer, neuron, kind, rank, coefficient, sequence, position, token, context, and for
            quantiles extreme ("max"/"min"), band_low and band_high. Of gated neurons also gate (its pre-activation),
            linear (the linear part) and case. Numbers are exact in float32 whatever dtype the scan ran in; which
            sequences of a half-precision scan are candidates is its own judgement.

        Raises: OutOfRangeError, InputError, FileError.

        Source: Gerstner and Schütze 2025 for the sign cases.
        """
        frame = self.example_rows(*self.index(layer, neuron), kind=kind, k=k, bands=bands)
        return self.with_contexts(frame, self.windows(frame, check_count("context", context, least=0)))

    def example_rows(
        self,
        layer: int,
        neuron: int,
        *,
        kind: str | Sequence[str] | None = None,
        k: int | None = None,
        bands: Sequence[float] = BANDS,
    ) -> pd.DataFrame:
        """:meth:`examples` of indices, without texts."""
        kinds = self.check_kinds(kind)
        if k is not None:
            check_count("k", k)
        extremes = self.opened(EXAMPLES).table(layer, neuron).to_pydict()
        return example_frame(self.view(layer), self.settings, (layer, neuron), extremes, kinds, k, bands)

    def check_kinds(self, kind: str | Sequence[str] | None) -> list[str]:
        """Kinds of examples that the store has, all for None; raises InputError."""
        kinds = list(self.kinds) if kind is None else [kind] if isinstance(kind, str) else list(kind)
        for name in kinds:
            if name in CASES and not self.gated:
                raise InputError(
                    f"kind {quoted(name)} is of gated neurons, which {self.model} does not have: {self.folder}"
                )
            check_choice("kind", name, self.kinds)
        return kinds

    def with_contexts(self, frame: pd.DataFrame, windows: Sequence[Window]) -> pd.DataFrame:
        """Examples with the columns token and context."""
        frame.insert(7, "token", [window.tokens[window.at] for window in windows])
        frame.insert(8, "context", [window.text for window in windows])
        frame.attrs = {"provenance": self.provenance}
        return frame

    def windows(self, examples: pd.DataFrame, width: int) -> list[Window]:
        """The tokens around each row of examples, ``width`` on each side."""
        places = zip(examples["sequence"].tolist(), examples["position"].tolist(), strict=True)
        return self.contexts.windows(places, width)

    def histogram(self, layer: SupportsIndex | NeuronName, neuron: SupportsIndex | None = None) -> pd.DataFrame:
        """How often each range of the coefficient occurred: low, high, count. Bins are four to a doubling of the
        magnitude, the same for all neurons."""
        row, column = self.index(layer, neuron)
        return histogram_frame(self.view(row).histogram[column])

    def by_token(self, layer: SupportsIndex | NeuronName, neuron: SupportsIndex | None = None) -> pd.DataFrame:
        """Mean coefficient at each of the corpus's most frequent tokens: token, token_id, count, mean; largest
        first."""
        row, column = self.index(layer, neuron)
        view = self.view(row)
        frame = pd.DataFrame(
            {
                "token": self.contexts.strings(self.settings.frequent),
                "token_id": list(self.settings.frequent),
                "count": view.token_counts,
                "mean": view.token_means(column),
            }
        )
        return frame.sort_values("mean", ascending=False, kind="stable", ignore_index=True)

    def by_position(self, layer: SupportsIndex | NeuronName, neuron: SupportsIndex | None = None) -> pd.DataFrame:
        """Mean coefficient by position in the sequence: positions, count, mean."""
        row, column = self.index(layer, neuron)
        return self.view(row).by_position(column, self.settings.context)

    def values(self, layer: SupportsIndex | NeuronName, neuron: SupportsIndex | None = None) -> pd.DataFrame:
        """What the neuron writes, in tokens: the columns of :func:`ffnmem.project`, ten promoted and ten suppressed.
        Of a gated neuron also what excites its two keys: the sides "key" (of the linear part) and "gate"."""
        return self.table(VALUES, *self.index(layer, neuron))

    def neuron(
        self,
        layer: SupportsIndex | NeuronName,
        neuron: SupportsIndex | None = None,
        *,
        kind: str | Sequence[str] | None = None,
        k: int | None = None,
        context: int = 12,
    ) -> Neuron:
        """Everything about one neuron, with a display for notebooks; its examples as :meth:`examples` takes them.

        Raises: OutOfRangeError, InputError, FileError.
        """

        width = check_count("context", context, least=0)
        return read_neuron(self, *self.index(layer, neuron), kind=kind, k=k, context=width)

    def search(self, text: str, *, where: str = "values", limit: int = 50) -> pd.DataFrame:
        """Neurons by text: ``where="values"`` looks in the tokens that they promote or suppress,
        ``where="examples"`` in
        the tokens at which they fire most (top) or least (bottom), and in gated neurons most strongly of each sign
        case. Upper and lower case are alike; best ranks first."""

        return search_store(self, text, where, check_count("limit", limit))

    def verify(self) -> None:
        """Read every file whole and check it; raises FileError naming what is damaged."""
        for name, record in self.manifest["files"].items():
            check_file(self.folder / name, record, content=True)
        self.corpus.verify()


@public
@in_turn
def open_store(folder: str | Path, model: Model | None = None) -> Store:
    """Open what a scan wrote.

    The manifest is checked now: by itself, by the sizes of all files and by what the state and the corpus tell of
    themselves. Tables, histograms and text are checked when they are first read, each by its checksum.

    Args:
        folder: the ``out`` of a scan.
        model: refuse a store of another model.

    Raises:
        FileError: no store, an unfinished or damaged one, or one of a newer version. InputError: another model's.
    """
    path = user_folder(folder)
    manifest = read_manifest(path)
    for name, record in manifest["files"].items():
        check_file(path / name, record, content=False)
    store = Store(path, manifest)
    if model is not None:
        store.check_model(model)
    _ = store.header, store.corpus  # their descriptions, and the sizes of the corpus's files
    return store


def layer_table(layers: pd.DataFrame) -> Table:
    """Dead neurons and quantiles of the firing rates by layer."""
    names = ("median" if quantile == 0.5 else f"{quantile:.0%}" for quantile in QUANTILES)
    shown = rows(*(Column(name, "count") for name in layers.columns[:3]), *(Column(name, "percent") for name in names))
    for row in layers.itertuples(index=False):
        shown.add(*row)
    return shown.table("firing rate: quantiles over a layer's neurons")


def identity_of(path: Path) -> tuple[int, int]:
    """What tells a file from another that takes its place."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return 0, 0
    return found.st_ino, found.st_mtime_ns
