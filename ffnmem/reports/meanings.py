"""The meanings of a neuron as cards, pages and notebooks show them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..semantics.meanings import Meanings
from ..show.rendering import plain, provenance_line
from .examples import Example, example_list
from .tables import Chip
from .templating import display

TOKENS = 8
LISTED = 5  # meanings with their examples; of the others, the share


@dataclass(frozen=True)
class Meaning:
    """One meaning. ``more``: examples that are not shown."""

    number: int
    share: float
    count: int
    tokens: tuple[Chip, ...]
    examples: tuple[Example, ...]

    @property
    def more(self) -> int:
        return self.count - len(self.examples)


@dataclass(frozen=True)
class MeaningsCard:
    """A verdict with the meanings behind it. ``rest``: the share of those that are not listed, ``hidden`` of them."""

    found: Meanings
    listed: tuple[Meaning, ...]
    hidden: int
    rest: float

    @property
    def negative(self) -> bool:
        return self.found.sign == "negative"

    @property
    def number(self) -> str:
        """The effective number with its interval in words; nothing where there is none."""
        value, low, high = self.found.number
        return f"{plain(value)} meanings, 95% {plain(low)} to {plain(high)}" if math.isfinite(value) else ""

    @property
    def examples(self) -> int:
        return int(self.found.table["examples"].sum())


def meanings_card(found: Meanings, listed: int = LISTED) -> MeaningsCard:
    """The first meanings, and how much the others come to."""
    largest = float(found.table["strongest"].abs().max()) if len(found.table) else 1.0
    examples = example_list(found.examples, found.windows, largest)
    rows = [
        Meaning(
            number=row.meaning + 1,
            share=row.share,
            count=row.examples,
            tokens=tuple(Chip(token) for token in found.triggers[row.meaning][:TOKENS]),
            examples=tuple(examples[i] for i in found.of(row.meaning)),
        )
        for row in found.table.head(listed).itertuples()
    ]
    hidden = len(found.table) - len(rows)
    return MeaningsCard(found, tuple(rows), hidden, float(found.table["share"].iloc[len(rows) :].sum()))


def meanings_html(found: Meanings) -> str:
    """What notebooks show: the verdict, each meaning with its examples, the measures."""
    return display(
        "meanings.html",
        "card",
        meanings=meanings_card(found, len(found.table)),
        estimates=found.estimates.to_dict("records"),
        provenance=provenance_line(settled(found.provenance)),
    )


def settled(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """The provenance of a polysemanticity on one level: the store's, and the settings that are not its."""
    own = provenance["polysemanticity"]
    store = {name: value for name, value in provenance.items() if name not in ("polysemanticity", "seed", "ffnmem")}
    budget = "no limit" if own["budget"] is None else own["budget"]
    settings = {"seed": own["seed"], "draws": own["draws"], "budget": budget, "above": own["rule"]["above"]}
    return {**store, "sign": own["sign"], **settings, "ffnmem": provenance["ffnmem"]}
