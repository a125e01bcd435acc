"""``read_cards``: what a scan found of one neuron, or of several; ``list_neurons``: a table of them by a measure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import pandas as pd

from ..core.errors import InputError
from ..core.neuron_names import LayerName, NeuronName, NeuronNames
from ..core.progress import Progress
from ..core.sheets import Block, join_sheets
from ..core.types import COEFFICIENT_SIGNS, LOGIT, AnyExampleKind, Count, Whole, checked
from ..scanning.neuron import Known, Neuron, kinds_shown, listed_of
from ..scanning.neuron_sides import NEGATIVE, POSITIVE
from ..scanning.store import Store
from ..show.result import BRIEF, Result
from ..vocabulary.lenses import Lens
from .measuring import chosen_layers
from .survey import kept_verdicts

MOST = 500
"""Neurons with cards at once: a card takes about 30 kB of a page, and browsers are slow above 20 MB."""
MOST_SHADED = 80
"""Of them with every token shaded: a card then takes up to 250 kB."""
KEY = ["layer", "neuron", "sign"]
FEW = 5  # tokens of a neuron in a table
BRIEFLY = "neuron fires_at firing_rate largest promotes verdict described_as"
"""What a table says of a neuron: what it fires at first."""


@checked
@dataclass(frozen=True, eq=False, repr=False)
class NeuronList(Result):
    """Neurons in short. Made by :func:`list_neurons`.

    Attributes:
        neurons: what a neuron fires at and promotes is of its stronger side. One row a neuron: the columns of
            :meth:`ffnmem.scanning.Store.stats`, largest (the coefficient furthest from 0), sign (of it) and verdict,
            where the store keeps verdicts.
        provenance: of the store.
        store: of which they are.
    """

    tables: ClassVar = {"neurons": f"{BRIEFLY} kurtosis | mean std min max skewness"}

    neurons: pd.DataFrame
    provenance: dict[str, Any]
    store: Store | None = None


@checked
def list_neurons(
    store: Store,
    *,
    by: Literal["kurtosis", "firing_rate", "max"] = "kurtosis",
    layers: LayerName | Iterable[LayerName] | None = None,
    k: Count | None = BRIEF,
) -> NeuronList:
    """The neurons of a scan, by a measure.

    Lists the neurons with the highest kurtosis (those that hardly ever fire, and then strongly), firing rate or largest
    coefficient: what each fires at, how often, and what it promotes.

    Args:
        store: from :func:`ffnmem.scan`.
        by: Which measure.
        layers: Only these layers. [default: all]
        k: how many; None for all.

    Returns: A :class:`NeuronList`.

    Raises: OutOfRangeError: no such layer. FileError.

    Example:
        $ ffnmem neurons --store runs/atlas
        $ ffnmem neurons --store runs/atlas --by firing_rate --layers 0 --top 5
    """
    stats = store.stats()
    chosen = stats[stats["layer"].isin(chosen_layers(store, layers))].dropna(subset=by)
    found = chosen.sort_values(by, ascending=False, kind="stable").head(len(chosen) if k is None else k)
    above = found["max"].clip(lower=0.0)
    largest = above.where(above >= -found["min"], found["min"]) if store.gated else above
    found = found.assign(largest=largest, sign=np.where(largest < 0, NEGATIVE, POSITIVE))
    kept = [table for sign in COEFFICIENT_SIGNS if (table := kept_verdicts(store, sign)) is not None]
    if kept:
        found = found.merge(pd.concat(kept)[[*KEY, "verdict"]], "left", KEY)
    return NeuronList(found.reset_index(drop=True), store.provenance, store)


def in_brief(neuron: Known) -> dict[str, Any]:
    """What a table says of a neuron that was read; verdict and tokens are of its stronger side."""
    side = neuron.sides[0]
    return {
        "layer": neuron.layer,
        "neuron": neuron.neuron,
        "fires_at": [text for text, _ in side.fires_at[:FEW]],
        "firing_rate": float(neuron.stats["firing_rate"]),
        "largest": side.extreme,
        "promotes": [text for text, _ in side.promotes[:FEW]],
        "verdict": side.meanings.label if side.meanings else "",
        "described_as": neuron.description,
        "kurtosis": float(neuron.stats["kurtosis"]),
    }


@checked
@dataclass(frozen=True, eq=False, repr=False)
class NeuronCards(Result):
    """Several neurons of a store. Made by :func:`read_cards`.

    Attributes:
        cards: what the store knows of each.
        provenance: of the store.
    """

    tables: ClassVar = {"neurons": f"{BRIEFLY} kurtosis", "details": ""}
    main = "examples"
    only_shown = "neurons details"
    only_data = "cards"
    in_full = "examples"

    cards: tuple[Neuron, ...]
    provenance: dict[str, Any]

    @property
    def title(self) -> str:
        return f"{len(self.cards)} neurons of {self.provenance['model']}"

    @property
    def neurons(self) -> pd.DataFrame:
        # Each in short.
        return pd.DataFrame([in_brief(one) for one in self.cards])

    @property
    def examples(self) -> pd.DataFrame:
        """Where they fire, one neuron's examples after another's."""
        return pd.concat([one.examples for one in self.cards], ignore_index=True)

    def details(self, top: int | None = None) -> Iterator[Block]:
        """The cards."""
        yield from join_sheets(one.sheet(top).without_origin() for one in self.cards).blocks

    @property
    def lead(self) -> str:
        """What a page of them begins with: how to read them."""
        return self.cards[0].lead

    def on_page(self, top: int | None = BRIEF) -> NeuronCards:
        """With shaded tokens, where the store's model is at hand and they are few."""
        return replace(self, cards=tuple(self.cards[0].store.shaded_on_page(self.cards, listed_of(top))))


@checked
def read_cards(
    store: Store,
    neurons: NeuronName | NeuronNames,
    *,
    kind: Sequence[AnyExampleKind] | None = None,
    k: Count | None = None,
    context: Whole = 12,
    shade: bool = False,
    lens: Lens = LOGIT,
    progress: Progress | None = None,
) -> Neuron | NeuronCards:
    """What fires a neuron, how often, how strongly, and what it writes.

    Shows what a scan found out about each neuron. A card tells what the neuron fires at and which frequent tokens
    excite it, which tokens its value promotes and suppresses, how often it fires (its pre-activation is above 0), how
    its coefficient is distributed, and where in the corpus it fires. The largest coefficients alone mislead; the
    quantiles show what is typical.

    A gated neuron's coefficient is act(gate) times a linear part. Its card also tells which tokens its two keys read,
    and treats the four cases of signs (above 0, or not) of gate and linear part apart: the coefficient is positive
    where both agree, so its largest values mix two cases. Its pre-activation is its gate's.

    Args:
        store: from :func:`ffnmem.scan` or :func:`ffnmem.open_store`.
        neurons: Which; at most 500.
        kind: Which examples: top or bottom for the largest or smallest coefficients, quantile for random sequences by
            quantile, random for random positions, or a sign case of a gated neuron, such as "gate+ linear-".
            [default: top, or the four cases of a gated neuron, and quantile]
        k: examples of each kind, and of each band.
        context: How many tokens of text on each side of an example.
        shade: Shade every token of the examples by the neuron's coefficient there, which the model computes; pages of
            at most 20 neurons do so where the model is at hand.
        lens: as :func:`ffnmem.project` takes it; any but logit needs the model.
        progress: called as ("read", done, all) in neurons, then as ("shade", done, all) in tokens.

    Returns: One :class:`ffnmem.scanning.neuron.Neuron`, or :class:`NeuronCards` of several.

    Raises: OutOfRangeError, InputError: such a neuron, or kind, is not there; too many. ModelError: the model is needed
        and not at hand, or gives other coefficients than the store has. FileError.

    Example:
        $ ffnmem neuron 3.17 --store runs/atlas
        $ ffnmem neuron 3.17 --store runs/atlas --kind bottom --kind random --top 5
        $ ffnmem neuron 3.17,0.18 --store runs/atlas --html neurons.html
    """
    places = store.places(neurons)
    most = MOST_SHADED if shade else MOST
    if len(places) > most:
        raise InputError(
            f"{len(places):,} neurons are too many: at most {most} {'shaded ' if shade else ''}cards at once"
        )
    kinds = store.check_kinds(kind or kinds_shown(store))
    if lens != LOGIT:
        store.model_for()
    found = []
    for done, place in enumerate(places, start=1):
        found.append(store.neuron(place, kind=kinds, k=k, context=context, lens=lens))
        if progress is not None and len(places) > 1:
            progress("read", done, len(places))
    if shade:
        found = store.shaded(found, k, progress=progress)
    return found[0] if len(found) == 1 else NeuronCards(tuple(found), store.provenance)
