"""``meanings``: which concepts fire a neuron."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, SupportsIndex

import numpy as np
import pandas as pd
from jaxtyping import Float32, Int64

from ..core.defaults import MEANING_DRAWS
from ..core.neuron_names import LayerName, NeuronName
from ..core.number_text import format_number
from ..core.progress import Progress
from ..core.sheets import Column, Origin, Sheet, Span, Table, line, rows, tokens
from ..core.token_text import printable, visible
from ..core.types import COEFFICIENT_SIGNS, CoefficientSign, Count, Seed, Whole, at_least, checked
from ..models.model import Model
from ..scanning.contexts import Example, Passage, Window, example_list
from ..scanning.neuron import context_column
from ..scanning.state import position_of, sequence_of
from ..scanning.store import Store
from ..show.result import Result
from .clustering import compare
from .inputs import Background, Inputs, firing, read_background
from .measures import measures_of
from .measuring import fires, read_one, rule_key, settings_key
from .verdicts import RULE, Estimate, Rule, verdicts

# `meanings`: what one neuron fires at, meaning by meaning: examples, share, trigger tokens.

MEASURES = tuple(measures_of("examples"))
PARTS = ("value", "low", "high", "null", "p")
CONTEXT = 8
TOKENS = 6  # trigger tokens of a meaning, joined in a table
TRIGGERS = 8  # of each meaning that is listed


@dataclass(frozen=True)
class Meaning:
    """One meaning to be shown."""

    share: float
    count: int
    tokens: tuple[str, ...]
    examples: tuple[Example, ...]


@checked
@dataclass(frozen=True, eq=False, repr=False)
class Meanings(Result):
    """The meanings of one neuron, the one with the largest share of the activation first.

    Attributes:
        store: where it comes from.
        layer, neuron, sign: which, and whether of its positive or negative coefficients.
        verdict, why: as :func:`ffnmem.polysemanticity` has them.
        estimates: one row a measure (meanings, ms): measure, value, low, high, null, p.
        table: one row a meaning: meaning (0 is the largest), share (of the examples' activation), examples (how many),
            strongest (the coefficient furthest from 0), tokens (trigger tokens, most activation first, for eyes).
        examples: meaning, rank (1 is the strongest of its meaning), coefficient, sequence, position,
            token, context.
        windows: the tokens around each row of ``examples``.
        triggers: by meaning, all its trigger tokens, most activation first.
        similarity: ``[n, n]`` cosines of the whitened inputs of all examples, by meaning and then by strength; None
            where the model was not there to read them.
        provenance: plain values.
    """

    in_json = "layer neuron sign verdict why estimates meanings"

    store: Store
    layer: int
    neuron: int
    sign: str
    verdict: str
    why: str
    estimates: pd.DataFrame
    table: pd.DataFrame
    examples: pd.DataFrame
    windows: tuple[Window, ...]
    triggers: tuple[tuple[str, ...], ...]
    similarity: Float32[np.ndarray, "n n"] | None
    provenance: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{self.layer}.{self.neuron}"

    @property
    def number(self) -> tuple[float, float, float]:
        """The effective number of meanings, and the ends of its 95% interval; NaN below two examples."""
        row = self.estimates.iloc[0]
        return float(row["value"]), float(row["low"]), float(row["high"])

    def of(self, meaning: int) -> list[int]:
        """The rows of ``examples`` that are of a meaning."""
        return [int(row) for row in np.flatnonzero(self.examples["meaning"].to_numpy() == meaning)]

    @property
    def meanings(self) -> list[dict[str, Any]]:
        """``table`` as records, each with its trigger tokens and its examples (``contexts``)."""
        rows = self.examples.drop(columns="meaning").to_dict("records")
        return [
            {**row, "tokens": self.triggers[row["meaning"]], "contexts": [rows[i] for i in self.of(row["meaning"])]}
            for row in self.table.to_dict("records")
        ]

    def to_frame(self) -> pd.DataFrame:
        """``examples``, with layer, neuron and sign before."""
        frame = self.examples.copy()
        for at, name in enumerate(("layer", "neuron", "sign")):
            frame.insert(at, name, getattr(self, name))
        return frame

    def summary(self) -> str:
        value, low, high = self.number
        examples = f" of {self.n_examples} examples"
        number = f", {value:.2f} meanings [{low:.2f}, {high:.2f}]{examples}" if np.isfinite(value) else ""
        shares = [f"{row.share:.0%} {row.tokens}" for row in self.table.head(3).itertuples()]
        return f"{self.name} of {printable(self.store.model)}: {'; '.join([self.verdict + number, *shares])}"

    def sheet(self, listed: int | None = None, *, origin: bool = True) -> Sheet:
        """The verdict with the first meanings (``listed``; default all), and the measures behind it.

        ``origin``: with where the numbers come from."""
        return Sheet.of(
            self.listing(listed),
            self.measure_table() if len(self.table) else None,
            Origin(settled(self.provenance)) if origin else None,
            title=f"Neuron {self.name} of {self.store.model}",
        )

    @property
    def negative(self) -> bool:
        return self.sign == "negative"

    @property
    def n_examples(self) -> int:
        return int(self.table["examples"].sum())

    @property
    def rule(self) -> dict[str, Any]:
        """The settings of the verdict's rule."""
        found: dict[str, Any] = self.provenance["polysemanticity"]["rule"]
        return found

    @property
    def lacks_examples(self) -> bool:
        """Whether it is unclear, and more examples might tell."""
        return self.verdict == "unclear" and self.n_examples < self.rule["enough"]

    @property
    def number_in_words(self) -> str:
        """The effective number of meanings with its interval in words; nothing where there is none."""
        value, low, high = (format_number(part, 2) for part in self.number)
        return f"{value} meanings, 95% {low} to {high}" if np.isfinite(self.number[0]) else ""

    @property
    def note(self) -> str:
        """How many examples the verdict is of, and why it is what it is where that does not show."""
        n, high = self.n_examples, self.number[2]
        by = ", grouped by what the FFN read at the token that it fires at, not by what follows" if n > 1 else ""
        alike = f"{n or 'no'} example{'s' * (n != 1)}{by}"
        if self.verdict == "monosemantic" and high > self.rule["above"]:
            return f"{alike}; so few of one meaning leave {high:.2f} possible, which the verdict allows"
        return f"{self.why}; {alike}" if self.why else alike

    def first(
        self, listed: int | None = None, passages: Mapping[int, Passage] | None = None, largest: float | None = None
    ) -> tuple[Meaning, ...]:
        """The ``listed`` first meanings, all for None, with their trigger tokens and the examples that are there; none
        whose text is that of another.

        ``passages``: of a neuron, by sequence, to shade tokens by; ``largest`` as the strongest (default: here)."""
        if largest is None:
            largest = float(self.table["strongest"].abs().max()) if len(self.table) else 1.0
        once: dict[tuple[str, str, str], tuple[int, Example]] = {}
        for row, example in enumerate(example_list(self.examples, self.windows, largest, passages)):
            once.setdefault(example.text, (row, example))
        shown = dict(once.values())
        table = self.table if listed is None else self.table.head(listed)
        return tuple(
            Meaning(
                share=row.share,
                count=row.examples,
                tokens=self.triggers[row.meaning][:TRIGGERS],
                examples=tuple(shown[i] for i in self.of(row.meaning) if i in shown),
            )
            for row in table.itertuples()
        )

    def listing(
        self, listed: int | None = None, passages: Mapping[int, Passage] | None = None, largest: float | None = None
    ) -> Table:
        """The verdict, and below it the ``listed`` first meanings with their shares, trigger tokens and examples."""
        first = self.first(listed, passages, largest)
        context = context_column([example for one in first for example in one.examples], largest or 1.0)
        shown = rows(Column("share", left=False, least=4), Column("coefficient", "number"), context)
        for one in first:
            share = Span(f"{one.share:.0%}", "strong", note=f"{one.count} example{'s' * (one.count != 1)}")
            shown.add(share, None, tokens(one.tokens))
            for example in one.examples:
                shown.add(None, example.coefficient, example)
        rest = self.table["share"].iloc[len(first) :]
        if len(rest):
            shown.add(None, None, line(Span(f"and {len(rest)} more with {rest.sum():.0%} of the activation", "soft")))
        where = f" where its coefficient is {self.sign}" if self.negative or self.store.gated else ""
        told = f": {self.number_in_words}" if self.number_in_words else ""
        return shown.table(f"{self.verdict.capitalize()}{where}{told}", self.note, ruled=False)

    def measure_table(self) -> Table:
        """The measures behind the verdict, each beside what chance gives."""
        name = Column("measure", of=lambda row: row["measure"].replace("_", " "))
        numbers = (Column(head, "number", places=2, of=head) for head in ("value", "low", "high"))
        chance = Column("by chance", "number", places=2, of=self.estimates.columns[4])
        return Table.of(self.estimates, name, *numbers, chance, Column("p", "number", places=3))


def settled(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """The provenance of a polysemanticity on one level: the store's, and the settings that are not its."""
    own = provenance["polysemanticity"]
    store = {name: value for name, value in provenance.items() if name not in ("polysemanticity", "seed", "ffnmem")}
    budget = "no limit" if own["budget"] is None else own["budget"]
    settings = {"seed": own["seed"], "draws": own["draws"], "budget": budget, "above": own["rule"]["above"]}
    return {**store, "sign": own["sign"], **settings, "ffnmem": provenance["ffnmem"]}


@dataclass(frozen=True, eq=False)
class SortedExamples:
    """One neuron's examples, strongest first, sorted into meanings; ``numbers`` by the names of the table's columns."""

    places: Int64[np.ndarray, " n"]
    strengths: Float32[np.ndarray, " n"]
    labels: Int64[np.ndarray, " n"]
    numbers: dict[str, float]
    verdict: str
    why: str
    provenance: dict[str, Any]
    similarity: Float32[np.ndarray, "n n"] | None = None


@checked
def meanings(
    store: Store,
    layer: LayerName | NeuronName,
    neuron: SupportsIndex | None = None,
    model: Model | None = None,
    *,
    sign: CoefficientSign | None = None,
    k: Count | None = None,
    context: Whole = CONTEXT,
    seed: Seed | None = None,
    draws: Annotated[int, at_least(20)] | None = None,
    rule: Rule | None = None,
    progress: Progress | None = None,
) -> Meanings:
    """What one neuron fires at, meaning by meaning.

    If the store's folder keeps a table of :func:`ffnmem.polysemanticity`, this reads it there. Else the model reads the
    neuron's examples again, all of them.

    Args:
        store: from :func:`ffnmem.scan`. layer, neuron: which; or the neuron's name alone, such as ``"3.17"``.
        model: the one scanned; then ``similarity`` is there in either case. Default: loaded by its name if needed.
        sign: of its "positive" or "negative" coefficients; default: those of its stronger side.
        k: examples to show of each meaning; default all (40 together at most).
        context: tokens of context on each side.
        seed, draws, rule: as :func:`ffnmem.polysemanticity` has them; default: those of what is kept. A table of others
            is not used.
        progress: called as ("read", done, total) in tokens.

    Returns:
        :class:`Meanings`; of an inactive neuron, an empty one.

    Raises:
        OutOfRangeError: no such neuron. InputError: another model's store, an unknown sign, numbers out of range.
        ModelError: the model is needed and cannot be loaded by its name.
    """
    index = store.index(layer, neuron)
    if model is not None:
        store.check_model(model)
    sign = sign or store.signs(*index)[0]
    wanted = asked_settings(seed, draws, rule)
    found = kept(store, index, sign, model, wanted, progress)
    if found is None:
        settings = (rule or RULE, wanted.get("seed", 0), wanted.get("draws", MEANING_DRAWS))
        found = measured_anew(store, index, model, sign, *settings, progress)
    return shown(store, index, sign, found, k, context)


def asked_settings(seed: int | None, draws: int | None, rule: Rule | None) -> dict[str, Any]:
    """Those of :func:`ffnmem.neurons.measuring.settings_key` that are given."""
    wanted = {"seed": seed, "draws": draws, "rule": None if rule is None else rule_key(rule)}
    return {name: value for name, value in wanted.items() if value is not None}


def saved_meanings(store: Store, layer: int, neuron: int, *, k: int, context: int) -> tuple[Meanings, ...]:
    """What is kept of a neuron, for each sign that is; layer and neuron are indices. No model is needed."""
    rows = {sign: kept(store, (layer, neuron), sign, None, {}, None) for sign in COEFFICIENT_SIGNS}
    return tuple(
        shown(store, (layer, neuron), sign, found, k, context) for sign, found in rows.items() if found is not None
    )


def kept(
    store: Store,
    index: tuple[int, int],
    sign: str,
    model: Model | None,
    wanted: dict[str, Any],
    progress: Progress | None,
) -> SortedExamples | None:
    """From the table beside the store, if there is one of the settings wanted."""
    layer, neuron = index
    row = read_one(store, layer, neuron, sign, wanted)
    if row is None:
        return None
    places = np.array(row["places"], np.int64)
    labels = np.array(row["meaning"], np.int64)
    provenance = row["provenance"]
    similarity = None
    if model is not None and len(places):
        background = read_background(store, layer)
        with Inputs(store, model, {layer: places}, progress) as inputs:
            similarity = cosines(background, inputs, layer, places, labels)
    named = [name for measure in MEASURES for name in columns(measure)]
    numbers = {name: np.nan if row[name] is None else float(row[name]) for name in named}
    strengths = np.array(row["strengths"], np.float32)
    return SortedExamples(places, strengths, labels, numbers, row["verdict"], row["why"], provenance, similarity)


def measured_anew(
    store: Store, index: tuple[int, int], model: Model | None, sign: str, rule: Rule, seed: int, draws: int,
    progress: Progress | None,
) -> SortedExamples:  # fmt: skip
    """From the text, which the model reads again at the neuron's examples; an inactive neuron needs no model."""
    layer, neuron = index
    found = firing(store, layer, np.array([neuron]), sign)
    n = int(found.counts[0])
    places, labels, similarity = found.places[0, :n], np.empty(0, np.int64), None
    estimates = dict.fromkeys(MEASURES, Estimate(*[np.full(1, np.nan)] * 5))
    if n:
        model = store.read_model() if model is None else model
        background = read_background(store, layer)
        with Inputs(store, model, {layer: places}, progress) as inputs:
            examples = compare(found, inputs, background, seed, draws)
            estimates, labels = examples.estimates, examples.labels[0, :n]
            similarity = cosines(background, inputs, layer, places, labels)
    gated = model is None or model.gated  # without a model there are no examples, and the size of none is 0
    verdict, why = verdicts(fires(store, found, sign, gated), found.counts, estimates["meanings"], rule)
    parts = [estimates[name].columns(name) for name in MEASURES]
    numbers = {name: float(value[0]) for part in parts for name, value in part.items()}
    key = settings_key(store, seed=seed, draws=draws, budget=None, rule=rule, sign=sign)
    provenance = {**store.provenance, "polysemanticity": key}
    strengths = found.strengths[0, :n].astype(np.float32)
    return SortedExamples(places, strengths, labels, numbers, str(verdict[0]), str(why[0]), provenance, similarity)


def cosines(
    background: Background,
    inputs: Inputs,
    layer: int,
    places: Int64[np.ndarray, " n"],
    labels: Int64[np.ndarray, " n"],
) -> Float32[np.ndarray, "n n"]:
    """Of the whitened inputs at the places, meaning by meaning."""
    units = background.unit(inputs.at(layer, places))[np.argsort(labels, kind="stable")]
    return np.asarray(units @ units.T)


def columns(measure: str) -> list[str]:
    """Of the table that is kept, those of a measure."""
    return [measure if part == "value" else f"{measure}_{part}" for part in PARTS]


def shown(
    store: Store, index: tuple[int, int], sign: str, found: SortedExamples, k: int | None, context: int
) -> Meanings:
    """The tables and texts of what was found."""
    order = np.argsort(found.labels, kind="stable")
    places, labels = found.places[order], found.labels[order]
    strengths = found.strengths[order].astype(np.float64)
    sequences, positions = sequence_of(places), position_of(places)
    tokens = store.contexts.strings(store.sequences.tokens_at(sequences, positions).tolist() if len(places) else [])
    starts = np.searchsorted(labels, labels)
    ranks = np.arange(len(labels)) - starts + 1
    listed = np.flatnonzero(ranks <= (len(ranks) if k is None else k))
    windows = store.contexts.windows(zip(sequences[listed].tolist(), positions[listed].tolist(), strict=True), context)
    coefficients = strengths * (1.0 if sign == "positive" else -1.0)
    examples = pd.DataFrame(
        {
            "meaning": labels[listed],
            "rank": ranks[listed],
            "coefficient": coefficients[listed],
            "sequence": sequences[listed],
            "position": positions[listed].astype(np.int64),
            "token": [window.tokens[window.at] for window in windows],
            "context": [window.text for window in windows],
        }
    )
    n_meanings = int(labels.max()) + 1 if len(labels) else 0
    triggers = tuple(by_activation(tokens, np.where(labels == m, strengths, 0.0)) for m in range(n_meanings))
    first = np.searchsorted(labels, np.arange(n_meanings))
    counts = np.bincount(labels, minlength=n_meanings)
    table = pd.DataFrame(
        {
            "meaning": np.arange(n_meanings),
            "share": np.bincount(labels, weights=strengths, minlength=n_meanings) / max(strengths.sum(), 1e-300),
            "examples": counts,
            "strongest": coefficients[first],
            "tokens": ["  ".join(visible(token, 24) for token in some[:TOKENS]) for some in triggers],
        }
    )
    rows = [[measure, *(found.numbers[name] for name in columns(measure))] for measure in MEASURES]
    return Meanings(
        store=store, layer=index[0], neuron=index[1], sign=sign, verdict=found.verdict, why=found.why,
        estimates=pd.DataFrame(rows, columns=["measure", *PARTS]), table=table, examples=examples,
        windows=tuple(windows), triggers=triggers, similarity=found.similarity, provenance=found.provenance,
    )  # fmt: skip


def by_activation(tokens: list[str], weights: np.ndarray) -> tuple[str, ...]:
    """The different tokens with weight, the one with most first; ties by the first example."""
    total: dict[str, float] = {}
    for token, weight in zip(tokens, weights.tolist(), strict=True):
        if weight > 0:
            total[token] = total.get(token, 0.0) + weight
    return tuple(sorted(total, key=lambda token: -total[token]))
