"""``Silencing`` and ``Silencings``: how much of an answer is lost without what FFNs or attention write somewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pandas as pd

from ..core.errors import check_choice
from ..core.provenance import Provenance
from ..core.sheets import Column, Content, Line, Sheet, line
from ..core.types import checked
from .maps import FactMaps, PromptMaps
from .traces import GROUPS, averaged, kind_in_words, positions_by_group

if TYPE_CHECKING:
    pass

TOGETHER = ("whole subject", "whole prompt")  # what others are part of
PLACES = ("BOS", "before subject", *GROUPS, *TOGETHER)
GROUP_COLUMNS = ("kind", "group", "layer", "loss", "low", "high", "share", "share_low", "share_high", "n")


@dataclass(frozen=True)
class Place:
    """Positions that are silenced together.

    Attributes:
        name: a token, or one of ``PLACES``.
        positions: ascending.
    """

    name: str
    positions: tuple[int, ...]


def places_of_groups(subject: range, length: int, bos: bool) -> tuple[Place, ...]:
    """The places of a prompt by where they stand towards the subject, those that it has.

    The six groups are a trace's. The whole subject is all of its tokens, the whole prompt all tokens but the
    beginning-of-sequence one.
    """
    found = {
        "BOS": [0] if bos else [],
        "before subject": list(range(int(bos), subject.start)),
        **positions_by_group(subject, length),
        "whole subject": list(subject),
        "whole prompt": list(range(int(bos), length)),
    }
    return tuple(Place(name, tuple(found[name])) for name in PLACES if found[name])


def places_of_tokens(tokens: Sequence[str], subject: range, bos: bool) -> tuple[Place, ...]:
    """Each token by itself, the whole subject, and the whole prompt."""
    single = (Place(text, (position,)) for position, text in enumerate(tokens))
    together = (place for place in places_of_groups(subject, len(tokens), bos) if place.name in TOGETHER)
    return (*single, *together)


class PlaceMaps(PromptMaps):
    """A result that says what an answer loses when something is done at a place, in a window of layers."""

    in_json = "fact text tokens subject answer answer_ids clean window places scores largest"
    KEYS = ("kind", "place", "positions")
    EFFECT, PEAK, SHOWN = "loss", "worst", Column("loss", "percent")

    places: tuple[Place, ...]
    window: int

    def loss(self, kind: str | None = None) -> np.ndarray:
        """How much less probable the answer is ``[n_layers, places]``: clean minus changed. Raises InputError.

        ``kind``: one of ``kinds``; default the first.
        """
        chosen = self.kinds[0] if kind is None else check_choice("kind", kind, self.scores)
        return self.clean - self.scores[chosen]

    def share(self, kind: str | None = None) -> np.ndarray:
        """The same as a share of the clean probability. Raises InputError."""
        return self.loss(kind) / self.clean

    def to_frame(self) -> pd.DataFrame:
        """One row a cell: kind, layer, place, positions, score, loss, share (of the clean probability that is lost)."""
        places = {
            "place": np.array([place.name for place in self.places], dtype=object),
            "positions": np.array([" ".join(map(str, place.positions)) for place in self.places], dtype=object),
        }
        return self.cells(places, lambda kind: {"loss": self.loss(kind), "share": self.share(kind)})

    def effects(self, kind: str) -> np.ndarray:
        """The loss, or its share of the clean probability, as :attr:`EFFECT` says."""
        return self.loss(kind) if self.EFFECT == "loss" else self.share(kind)

    @property
    def labels(self) -> list[Line]:
        """Each place: a token, with a star where it is of the subject, or a group's name."""
        return [
            self.label_token(place.positions[0]) if self.is_token(place) else line(place.name) for place in self.places
        ]

    def is_token(self, place: Place) -> bool:
        """Whether a place is one token by itself, not a group."""
        return place.name not in PLACES


class PlaceMapsOfFacts(FactMaps):
    """The same of many facts."""

    OF_FACT: ClassVar[tuple[str, ...]] = ("fact", "text", "answer", "clean")

    def mean_answer(self) -> dict[str, Content]:
        """For a sheet's heading: the mean probability of the answers."""
        return {"answer": f"{float(self.facts['clean'].mean()):.1%} clean, on the mean"} if len(self) else {}


def by_group(
    some: Sequence[PlaceMaps], names: Sequence[str], effect: Callable[[PlaceMaps, str], np.ndarray]
) -> pd.DataFrame:
    """Means of an effect over facts, by kind, group and layer: kind, group, layer, mean, low, high, n."""
    found = []
    for kind in some[0].kinds if some else ():
        for group in names:
            effects = [
                effect(one, kind)[:, column]
                for one in some
                for column, place in enumerate(one.places)
                if place.name == group
            ]
            if effects:
                found.append(averaged(np.stack(effects)).assign(kind=kind, group=group))
    if not found:
        return pd.DataFrame(columns=["kind", "group", "layer", "mean", "low", "high", "n"])
    return pd.concat(found, ignore_index=True)


@checked
@dataclass(frozen=True, eq=False, repr=False)
class Silencing(PlaceMaps):
    """What silencing does to the answer of one prompt. Made by :func:`ffnmem.tracing.silence_fact`.

    Attributes:
        scores: by kind ``[n_layers, places]``, the probability of the answer where that part of a window of layers
            around one is silenced at a place.
        places: tokens or groups of them.
        clean: the answer's probability where nothing is silenced.
        answer, answer_ids: what the model says, of which all this is the probability: its text and tokens.
        text: the prompt; tokens: its tokens; subject: the positions of the subject's.
        fact: the fact's id, or the prompt where it has none.
        window: how many layers are silenced at once.
        replaced_by: what a silenced part writes: nothing ("zero"), or what it writes on the mean, and over what.
    """

    in_json = f"{PlaceMaps.in_json} replaced_by"

    scores: dict[str, np.ndarray]
    places: tuple[Place, ...]
    clean: float
    answer: str
    answer_ids: tuple[int, ...]
    text: str
    tokens: tuple[str, ...]
    subject: range
    fact: str
    window: int
    replaced_by: str
    provenance: Provenance

    def sheet(self) -> Sheet:
        """The prompt, the answer, and a map of each kind, a row a place."""
        more = {"silenced": describe_silence(self.replaced_by)}
        return self.map_sheet("", more, lambda kind: f"without {kind_in_words(kind, self.window)}")


def describe_silence(replaced_by: str) -> str:
    """What silenced parts write, for people."""
    return "writes nothing" if replaced_by == "zero" else f"writes its {replaced_by}"


@checked
@dataclass(frozen=True, eq=False, repr=False)
class Silencings(PlaceMapsOfFacts):
    """What silencing does to the answers of many prompts. Made by :func:`ffnmem.tracing.silence_facts`.

    Attributes:
        silencings: one :class:`Silencing` a fact, its places groups of positions, in the order of the facts.
        skipped: one row for each fact that was left out: fact, subject, reason.
        provenance: of all of them.
    """

    MEAN = "loss"

    silencings: tuple[Silencing, ...]
    skipped: pd.DataFrame
    provenance: Provenance

    @property
    def of_facts(self) -> tuple[Silencing, ...]:
        return self.silencings

    @cached_property
    def groups(self) -> pd.DataFrame:
        """Mean losses by kind, group of positions and layer.

        Columns kind, group (``PLACES``), layer, loss (the mean of clean minus silenced), low, high (± 1.96 standard
        errors over facts; NaN of a single fact), share (the mean share of the clean probability that is lost),
        share_low, share_high, n (facts with such a position).
        """
        loss = by_group(self.silencings, PLACES, lambda one, kind: one.loss(kind)).rename(columns={"mean": "loss"})
        share = by_group(self.silencings, PLACES, lambda one, kind: one.share(kind))
        found = loss.assign(share=share["mean"], share_low=share["low"], share_high=share["high"])
        return found[list(GROUP_COLUMNS)]

    def sheet(self) -> Sheet:
        """How many facts were asked, why some were not, and the mean losses of each kind and group."""
        more = self.mean_answer()
        if len(self):
            more["silenced"] = describe_silence(self.silencings[0].replaced_by)
        return self.map_sheet(
            "asked",
            more,
            lambda kind: f"without {kind_in_words(kind, self.silencings[0].window)}",
            {"of clean": "share"},
        )
