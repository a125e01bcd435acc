"""``Silencing`` and ``Silencings``: how much of an answer is lost without what FFNs or attention write somewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pandas as pd

from ..core.errors import check_choice, counted
from ..core.number_text import format_probability
from ..core.pictures import picture
from ..core.provenance import Provenance
from ..core.sheets import Column, Content, Facts, Line, Origin, Rows, Sheet, line, rows, token
from ..core.types import checked
from ..prompts.attribution import plain_records
from ..show.result import Result
from .maps import FactMaps, PromptMaps, largest, layers_column
from .traces import GROUPS, averaged, kind_in_words, positions_by_group

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TOGETHER = ("whole subject", "whole prompt")  # what others are part of
PLACES = ("BOS", "before subject", *GROUPS, *TOGETHER)
GROUP_COLUMNS = ("kind", "group", "layer", "loss", "low", "high", "share", "share_low", "share_high", "n")
LOSS = Column("loss", "percent")


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

    EFFECT: ClassVar[str] = "loss"
    """What a map shows of each cell: the loss, or its share of the clean probability."""

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

    def brief(self) -> dict[str, Any]:
        """As ``to_dict``, with the layer of the largest loss of each kind and place in place of all scores."""
        found = {name: value for name, value in self.to_dict().items() if name != "scores"}
        worst = largest(self.to_frame(), ("kind", "place", "positions"), "loss")
        return {**found, "worst": plain_records(worst)}

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        places = [{"name": place.name, "positions": list(place.positions)} for place in self.places]
        return self.plain(window=self.window, places=places)

    def map(self, kind: str) -> Rows:
        """Each place with its effects by layer, the layer of the largest, and how large it is."""
        effects = self.loss(kind) if self.EFFECT == "loss" else self.share(kind)
        found = rows(
            "at", layers_column(effects), Column("worst layer", "number", places=0), Column(self.EFFECT, "percent")
        )
        for column, place in enumerate(self.places):
            own = effects[:, column]
            worst = int(own.argmax())
            found.add(self.label(place), own.tolist(), worst, float(own[worst]))
        return found

    def label(self, place: Place) -> Line:
        """A place: a token, with a star where it is of the subject, or a group's name."""
        return self.token_label(place.positions[0]) if self.is_token(place) else line(place.name)

    def is_token(self, place: Place) -> bool:
        """Whether a place is one token by itself, not a group."""
        return place.name not in PLACES


class PlaceMapsOfFacts(FactMaps):
    """The same of many facts."""

    OF_FACT: ClassVar[tuple[str, ...]] = ("fact", "text", "answer", "clean")

    @property
    def worst(self) -> pd.DataFrame:
        """The rows of ``groups`` with the largest mean effect of each kind and group."""
        return self.largest

    def summary(self) -> str:
        clean = f", mean clean {self.facts['clean'].mean():.3f}" if len(self) else ""
        return f"{counted(len(self), 'fact')}, {len(self.skipped)} skipped{clean}"


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
class Silencing(PlaceMaps, Result):
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

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        found = super().to_dict()
        scores, provenance = found.pop("scores"), found.pop("provenance")
        return {**found, "replaced_by": self.replaced_by, "scores": scores, "provenance": provenance}

    def plot(self, kind: str | None = None, axes: Sequence[Axes] | None = None) -> list[Axes]:
        """Heat maps, as :func:`ffnmem.plots.tracing.silencing` draws them."""
        silencing = picture("silencing")

        return silencing(self, kind, axes)

    def summary(self) -> str:
        said = ", ".join(kind_in_words(kind, self.window) for kind in self.kinds)
        return f"{self.text!r} {self.answer!r}, clean {self.clean:.3f}, without {said}"

    def sheet(self) -> Sheet:
        """The prompt, the answer, and a map of each kind, a row a place."""
        heading: dict[str, Content] = {
            "prompt": self.text,
            "answer": line(token(self.answer, "strong"), f"   {format_probability(self.clean)} clean"),
            "silenced": in_words(self.replaced_by),
        }
        maps = [self.map(kind).table(f"without {kind_in_words(kind, self.window)}") for kind in self.kinds]
        return Sheet.of(Facts(heading), *maps, Origin(self.provenance.to_dict()))


def in_words(replaced_by: str) -> str:
    """What silenced parts write, for people."""
    return "writes nothing" if replaced_by == "zero" else f"writes its {replaced_by}"


@checked
@dataclass(frozen=True, eq=False, repr=False)
class Silencings(PlaceMapsOfFacts, Result):
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

    def plot(self, kind: str | None = None, axes: Sequence[Axes] | None = None) -> list[Axes]:
        """The averaged losses by group, as :func:`ffnmem.plots.tracing.silencings` draws them."""
        silencings = picture("silencings")

        return silencings(self, kind, axes)

    def sheet(self) -> Sheet:
        """How many facts were asked, why some were not, and the mean losses of each kind and group."""
        heading: dict[str, Content] = {"asked": self.counted_facts()}
        if len(self):
            heading["answer"] = f"{float(self.facts['clean'].mean()):.1%} clean, on the mean"
            heading["silenced"] = in_words(self.silencings[0].replaced_by)
        heading |= self.skipped_in_words()
        maps = [
            self.map_of(some, "worst", LOSS, {"of clean": "share"}).table(
                f"without {kind_in_words(str(kind), self.silencings[0].window)}"
            )
            for kind, some in self.groups.groupby("kind", sort=False)
        ]
        return Sheet.of(Facts(heading), *maps, Origin(self.provenance.to_dict()))
