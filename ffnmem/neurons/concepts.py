"""``meanings``: which concepts fire a neuron."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, SupportsIndex

import numpy as np
import pandas as pd
from jaxtyping import Float32, Int64

from ..core.defaults import MEANING_DRAWS
from ..core.errors import InputError
from ..core.neuron_names import LayerName, NeuronName
from ..core.number_text import format_number
from ..core.progress import Progress
from ..core.sheets import Column, Span, Table, line, rows, tokens
from ..core.token_text import visible
from ..core.types import COEFFICIENT_SIGNS, CoefficientSign, Count, Draws, Seed, Whole, checked
from ..models.model import Model
from ..scanning.contexts import Example, Passage, Window, example_list
from ..scanning.neuron import context_column
from ..scanning.state import position_of, sequence_of
from ..scanning.store import Store
from ..show.result import Result
from .clustering import compare
from .inputs import Inputs, firing, read_background
from .measures import measures_of
from .measuring import fires, read_one, rule_key, settings_key
from .verdicts import RULE, Estimate, Rule, verdicts

# `meanings`: what one neuron fires at, meaning by meaning: examples, share, trigger tokens.

MEASURES = tuple(measures_of("examples"))
PARTS = ("value", "low", "high", "null", "p")
CONTEXT = 8
TOKENS = 6  # trigger tokens of a meaning, joined in a table
TRIGGERS = 8  # of each meaning that is listed
LISTED = 5  # meanings of a neuron, unless all are asked for
SAID = {
    "monosemantic": "has one meaning",
    "polysemantic": "has several meanings",
    "unclear": "has one meaning or several, its examples do not say which",
    "inactive": "never fires",
}


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
        layer, neuron, sign: which, and whether of its positive or negative coefficients.
        label, why: the verdict and its reason, as :func:`ffnmem.polysemanticity` has them.
        estimates: the measures behind the verdict (meanings, ms) with their 95% intervals, and what chance gives: one
            row a measure, measure, value, low, high, null, p.
        table: one row a meaning: meaning (0 is the largest), share (of the examples' activation), examples (how many),
            strongest (the coefficient furthest from 0), tokens (trigger tokens, most activation first, for eyes).
        examples: meaning, rank (1 is the strongest of its meaning), coefficient, sequence, position,
            token, context.
        windows: the tokens around each row of ``examples``.
        triggers: by meaning, all its trigger tokens, most activation first.
        places: of all examples, by meaning and then by strength, see :func:`ffnmem.scanning.state.sequence_of`.
        settings: of what was measured. provenance: plain values.
        store: where it comes from; None of what was loaded without it.
    """

    heading = "name sign"
    tables: ClassVar = {"listing": "", "estimates": "measure value low high null p"}
    main, uncut, only_shown, only_data = "examples", "estimates", "listing", "label why meanings"

    layer: int
    neuron: int
    sign: str
    label: str
    why: str
    estimates: pd.DataFrame
    table: pd.DataFrame
    examples: pd.DataFrame
    windows: tuple[Window, ...]
    triggers: tuple[tuple[str, ...], ...]
    places: Int64[np.ndarray, " n"]
    settings: dict[str, Any]
    provenance: dict[str, Any]
    store: Store | None = None

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

    def shown_examples(self, top: Count | None = None) -> pd.DataFrame:
        """``examples``, with layer, neuron and sign before."""
        found, about = self.examples.head(top), ("layer", "neuron", "sign")
        return pd.DataFrame({name: getattr(self, name) for name in about}, found.index).join(found)

    @property
    def verdict(self) -> str:
        """Whether it has one meaning or several."""
        about = self.why or self.number_in_words
        return f"{self.name} {SAID[self.label]}{self.where}{f' ({about})' if about else ''}."

    @cached_property
    def similarity(self) -> Float32[np.ndarray, "n n"]:
        """``[n, n]`` cosines of the whitened inputs of all examples, by meaning and then by strength. The model reads
        them again. Raises ModelError: it cannot be loaded by its name. InputError: loaded without its store."""
        if self.store is None:
            raise InputError(f"the examples of {self.name} are read again for this: load it with its store")
        with Inputs(self.store, self.store.read_model(), {self.layer: self.places}) as inputs:
            units = read_background(self.store, self.layer).unit(inputs.at(self.layer, self.places))
        return np.asarray(units @ units.T)

    @property
    def where(self) -> str:
        """Which coefficients it is of, where that has to be said."""
        both = self.negative or (self.store is not None and self.store.gated)
        return f" where its coefficient is {self.sign}" if both else ""

    @property
    def negative(self) -> bool:
        return self.sign == "negative"

    @property
    def n_examples(self) -> int:
        return int(self.table["examples"].sum())

    @property
    def rule(self) -> dict[str, Any]:
        """The settings of the verdict's rule."""
        found: dict[str, Any] = self.settings["rule"]
        return found

    @property
    def lacks_examples(self) -> bool:
        """Whether it is unclear, and more examples might tell."""
        return self.label == "unclear" and self.n_examples < self.rule["enough"]

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
        if self.label == "monosemantic" and high > self.rule["above"]:
            return f"{alike}; so few of one meaning leave {high:.2f} possible, which the verdict allows"
        return f"{self.why}; {alike}" if self.why else alike

    def first(
        self,
        listed: int | None = None,
        passages: Mapping[int, Passage] | None = None,
        largest: float | None = None,
        each: int | None = None,
    ) -> tuple[Meaning, ...]:
        """The ``listed`` first meanings, all for None, with their trigger tokens and the examples that are there
        (``each``: of each, at most); none whose text is that of another.

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
                examples=tuple(shown[i] for i in self.of(row.meaning) if i in shown)[:each],
            )
            for row in table.itertuples()
        )

    def listing(
        self,
        top: int | None = None,
        passages: Mapping[int, Passage] | None = None,
        largest: float | None = None,
        each: int | None = None,
    ) -> Table:
        """The verdict, and below it the ``top`` first meanings with their shares, trigger tokens and examples."""
        first = self.first(top, passages, largest, each)
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
        told = f": {self.number_in_words}" if self.number_in_words else ""
        return shown.table(f"{self.label.capitalize()}{self.where}{told}", self.note, ruled=False)

    def shown_listing(self, top: Count | None = None) -> Table:
        """The first meanings, and about ``top`` of their examples in all."""
        return self.listing() if top is None else self.listing(LISTED, each=-(-top // LISTED))


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
    draws: Draws | None = None,
    rule: Rule | None = None,
    progress: Progress | None = None,
) -> Meanings:
    """What one neuron fires at, meaning by meaning.

    If the store's folder keeps a table of "polysemanticity", this reads it there. Else the model reads the neuron's
    examples again, all of them.

    Args:
        store: the folder of a scan.
        layer: which neuron, ``"3.17"``; or its layer, with ``neuron``.
        neuron: its number in the layer.
        model: the one scanned, which the store then holds; default: what it was opened with, or what is loaded by its
            name if needed.
        sign: of its positive or negative coefficients. [default: those of its stronger side]
        k: examples to show of each meaning; default all (40 together at most).
        context: tokens of context on each side.
        seed: as :func:`ffnmem.polysemanticity` takes it; default that of what is kept, as of draws and rule. A table of
            other settings is not used.
        draws: as :func:`ffnmem.polysemanticity` takes them.
        rule: as :func:`ffnmem.polysemanticity` takes it.
        progress: called as ("read", done, total) in tokens.

    Returns:
        :class:`Meanings`; of an inactive neuron, an empty one.

    Raises:
        OutOfRangeError: no such neuron. InputError: another model's store, an unknown sign, numbers out of range.
        ModelError: the model is needed and cannot be loaded by its name.

    Example:
        $ ffnmem meanings 1.5 --store runs/atlas
    """
    index = store.index(layer, neuron)
    if model is not None:
        store.hold(model)
    sign = sign or store.signs(*index)[0]
    wanted = asked_settings(seed, draws, rule)
    found = kept(store, index, sign, wanted)
    if found is None:
        settings = (rule or RULE, wanted.get("seed", 0), wanted.get("draws", MEANING_DRAWS))
        found = measured_anew(store, index, sign, *settings, progress)
    return shown(store, index, sign, found, k, context)


def asked_settings(seed: int | None, draws: int | None, rule: Rule | None) -> dict[str, Any]:
    """Those of :func:`ffnmem.neurons.measuring.settings_key` that are given."""
    wanted = {"seed": seed, "draws": draws, "rule": None if rule is None else rule_key(rule)}
    return {name: value for name, value in wanted.items() if value is not None}


def saved_meanings(store: Store, layer: int, neuron: int, *, k: int, context: int) -> tuple[Meanings, ...]:
    """What is kept of a neuron, for each sign that is; layer and neuron are indices. No model is needed."""
    rows = {sign: kept(store, (layer, neuron), sign, {}) for sign in COEFFICIENT_SIGNS}
    return tuple(
        shown(store, (layer, neuron), sign, found, k, context) for sign, found in rows.items() if found is not None
    )


def kept(store: Store, index: tuple[int, int], sign: str, wanted: dict[str, Any]) -> SortedExamples | None:
    """From the table beside the store, if there is one of the settings wanted."""
    layer, neuron = index
    row = read_one(store, layer, neuron, sign, wanted)
    if row is None:
        return None
    places = np.array(row["places"], np.int64)
    labels = np.array(row["meaning"], np.int64)
    provenance = row["provenance"]
    named = [name for measure in MEASURES for name in columns(measure)]
    numbers = {name: np.nan if row[name] is None else float(row[name]) for name in named}
    strengths = np.array(row["strengths"], np.float32)
    return SortedExamples(places, strengths, labels, numbers, row["verdict"], row["why"], provenance)


def measured_anew(
    store: Store, index: tuple[int, int], sign: str, rule: Rule, seed: int, draws: int, progress: Progress | None
) -> SortedExamples:  # fmt: skip
    """From the text, which the model reads again at the neuron's examples; an inactive neuron needs no model."""
    layer, neuron = index
    found = firing(store, layer, np.array([neuron]), sign)
    n = int(found.counts[0])
    places, labels, gated = found.places[0, :n], np.empty(0, np.int64), True  # the size of no examples is 0
    estimates = dict.fromkeys(MEASURES, Estimate(*[np.full(1, np.nan)] * 5))
    if n:
        model, background = store.read_model(), read_background(store, layer)
        gated = model.gated
        with Inputs(store, model, {layer: places}, progress) as inputs:
            examples = compare(found, inputs, background, seed, draws)
            estimates, labels = examples.estimates, examples.labels[0, :n]
    verdict, why = verdicts(fires(store, found, sign, gated), found.counts, estimates["meanings"], rule)
    parts = [estimates[name].columns(name) for name in MEASURES]
    numbers = {name: float(value[0]) for part in parts for name, value in part.items()}
    key = settings_key(store, seed=seed, draws=draws, budget=None, rule=rule, sign=sign)
    provenance = {**store.provenance, "polysemanticity": key}
    strengths = found.strengths[0, :n].astype(np.float32)
    return SortedExamples(places, strengths, labels, numbers, str(verdict[0]), str(why[0]), provenance)


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
        store=store, layer=index[0], neuron=index[1], sign=sign, label=found.verdict, why=found.why,
        estimates=pd.DataFrame(rows, columns=["measure", *PARTS]), table=table, examples=examples,
        windows=tuple(windows), triggers=triggers, places=places,
        settings=found.provenance["polysemanticity"], provenance=settled(found.provenance),
    )  # fmt: skip


def by_activation(tokens: list[str], weights: np.ndarray) -> tuple[str, ...]:
    """The different tokens with weight, the one with most first; ties by the first example."""
    total: dict[str, float] = {}
    for token, weight in zip(tokens, weights.tolist(), strict=True):
        if weight > 0:
            total[token] = total.get(token, 0.0) + weight
    return tuple(sorted(total, key=lambda token: -total[token]))
