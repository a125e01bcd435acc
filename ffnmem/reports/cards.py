"""A neuron's card: what the terminal, the page and the notebook show of it, as plain rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from ..scanning.cases import CASES
from ..scanning.neuron import Neuron
from ..scanning.store import Store
from ..show.bars import Axis, Bar, bar
from .examples import Example, example_list
from .histogram import LISTED as BINS
from .histogram import Bin, Drawing, bins, drawing
from .meanings import MeaningsCard, meanings_card
from .tables import Chip

KINDS = ("top", "quantile")  # shown unless others are asked for
GATED_KINDS = (*CASES, "quantile")  # of gated neurons: the largest coefficients mix cases that mean different things
LISTED = 10  # rows of top, bottom and random; of a band, all that were read
LISTED_CASE = 5
FREQUENT = 8

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


@dataclass(frozen=True)
class Mean:
    """A mean coefficient at a token or a range of positions."""

    chip: Chip
    mean: float
    count: int
    bar: Bar


@dataclass(frozen=True)
class Case:
    """One sign case of a gated neuron. ``mean``: of its coefficient there; NaN, without a bar, if it never occurs."""

    name: str
    share: float
    mean: float
    bar: Bar | None


@dataclass(frozen=True)
class Card:
    """``meanings``: by sign; none where no polysemanticity is kept beside the store. ``keys``, ``cases``: of a gated
    neuron, the tokens that its gate and its linear part read, by their name, and its sign cases."""

    neuron: Neuron
    meanings: tuple[MeaningsCard, ...]
    groups: tuple[Group, ...]
    promoted: tuple[Chip, ...]
    suppressed: tuple[Chip, ...]
    frequent: tuple[Mean, ...]
    positions: tuple[Mean, ...]
    histogram: Drawing | None
    bins: tuple[Bin, ...]
    keys: tuple[tuple[str, tuple[Chip, ...]], ...] = ()
    cases: tuple[Case, ...] = ()

    @property
    def name(self) -> str:
        return self.neuron.name

    @property
    def verdict(self) -> str:
        """On its positive coefficients; empty where none is kept."""
        return next((m.found.verdict for m in self.meanings if not m.negative), "")

    @property
    def anchor(self) -> str:
        return f"n{self.name}"


def kinds_shown(store: Store) -> tuple[str, ...]:
    """The kinds of examples that a card shows unless others are asked for."""
    return GATED_KINDS if store.gated else KINDS


def card(neuron: Neuron, listed: int | None = None) -> Card:
    """A neuron's card with at most ``listed`` examples of top, bottom and random (default 10) and a case (5)."""
    return Card(
        neuron=neuron,
        meanings=tuple(meanings_card(found) for found in neuron.meanings),
        groups=groups(neuron, listed),
        promoted=chips(neuron, "promoted"),
        suppressed=chips(neuron, "suppressed"),
        frequent=frequent(neuron),
        positions=positions(neuron),
        histogram=drawing(neuron),
        bins=bins(neuron, BINS),
        keys=tuple((name, chips(neuron, sign, side)) for (side, sign), name in KEYS.items()) if neuron.gated else (),
        cases=cases(neuron),
    )


def cases(neuron: Neuron) -> tuple[Case, ...]:
    """The sign cases of a gated neuron, in their fixed order."""
    axis = Axis.over([case["mean"] for case in neuron.cases])
    return tuple(
        Case(case["case"], case["share"], case["mean"], bar(axis, case["mean"]) if case["share"] > 0 else None)
        for case in neuron.cases
    )


def groups(neuron: Neuron, listed: int | None = None) -> tuple[Group, ...]:
    """The neuron's examples by kind, in the order in which it holds them."""
    found: dict[str, dict[str, list[Example]]] = {}
    columns = (neuron.examples[name].tolist() for name in ("kind", "extreme", "band_low", "band_high"))
    for kind, extreme, low, high, example in zip(*columns, examples(neuron), strict=True):
        name, label = (extreme, band_label(low, high)) if kind == "quantile" else (kind, "")
        band = found.setdefault(name, {}).setdefault(label, [])
        most = (LISTED_CASE if kind in CASES else LISTED) if listed is None else listed
        if kind == "quantile" or len(band) < most:
            band.append(example)
    return tuple(
        Group(
            name,
            tuple(Band(label, tuple(band)) for label, band in bands.items()),
            folded=name == "min" and not two_sided(neuron),
        )
        for name, bands in found.items()
    )


def two_sided(neuron: Neuron) -> bool:
    """Whether negative coefficients matter beside the positive ones. Where the activation is GELU they hardly do."""
    return -float(neuron.stats["min"]) >= 0.25 * float(neuron.stats["max"])


def band_label(low: float, high: float) -> str:
    """A band of quantiles in words; the highest are the strongest."""
    if high == 1:
        return f"top {100 * (1 - low):.3g}%"
    return f"lowest {100 * high:.3g}%" if low == 0 else f"{100 * low:.3g}–{100 * high:.3g}%"


def examples(neuron: Neuron) -> list[Example]:
    """The neuron's examples with their texts, row by row."""
    largest = max(abs(float(neuron.stats["max"])), abs(float(neuron.stats["min"])))
    return example_list(neuron.examples, neuron.windows, largest)


def chips(neuron: Neuron, sign: str, side: str = "value") -> tuple[Chip, ...]:
    """The tokens that its value promotes or suppresses, or that raise or lower a key, best first."""
    rows = neuron.values[(neuron.values["side"] == side) & (neuron.values["sign"] == sign)].sort_values("rank")
    return tuple(Chip(str(row.token), sign, f"score {row.score:+.3f}") for row in rows.itertuples())


def frequent(neuron: Neuron) -> tuple[Mean, ...]:
    """The frequent tokens with the highest mean coefficient."""
    rows = neuron.by_token[neuron.by_token["count"] > 0].head(FREQUENT)
    return means([Chip(str(token)) for token in rows["token"]], rows)


def positions(neuron: Neuron) -> tuple[Mean, ...]:
    """The mean coefficient by position."""
    return means([Chip(str(name)) for name in neuron.by_position["positions"]], neuron.by_position)


def means(names: Sequence[Chip], rows: pd.DataFrame) -> tuple[Mean, ...]:
    axis = Axis.over([float(mean) for mean in rows["mean"]])
    return tuple(
        Mean(chip, float(mean), int(count), bar(axis, float(mean)))
        for chip, mean, count in zip(names, rows["mean"], rows["count"], strict=True)
    )
