"""``Knockout`` and ``Knockouts``: how much of an answer is lost where the last token cannot look somewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from ..core.errors import counted
from ..core.provenance import Provenance
from ..core.sheets import Column, Sheet
from ..core.types import checked
from .silences import Place, PlaceMaps, PlaceMapsOfFacts, by_group, places_of_groups
from .traces import GROUPS

if TYPE_CHECKING:
    pass

EDGES = "edges"
CHOSEN = "chosen"
OF_PAPER = ("BOS", "whole subject", "non-subject", "last token")  # what the paper blocks, and the first token
VIEWS = ("BOS", "before subject", *GROUPS[:-1], "whole subject", "non-subject", "last token")
GROUP_COLUMNS = ("kind", "group", "layer", "share", "low", "high", "loss", "n")


def views_of_groups(subject: range, length: int, bos: bool) -> tuple[Place, ...]:
    """What the last token of a prompt may be kept from looking at, by where it stands towards the subject.

    The six groups of a trace, the beginning-of-sequence token, what stands before the subject, and the paper's: the
    whole subject, and non-subject: every token that is neither of the subject nor the last one nor begins the
    sequence. What a subject is at the end of, the last token, is its own.
    """
    found = {place.name: place.positions for place in places_of_groups(subject, length, bos)}
    found["non-subject"] = tuple(p for p in range(int(bos), length - 1) if p not in subject)
    return tuple(Place(name, found[name]) for name in VIEWS if found.get(name))


def views_of_tokens(tokens: Sequence[str], subject: range, bos: bool, chosen: Sequence[int] = ()) -> tuple[Place, ...]:
    """Each token by itself, the whole subject, non-subject, and what is chosen."""
    single = (Place(text, (position,)) for position, text in enumerate(tokens))
    groups = views_of_groups(subject, len(tokens), bos)
    together = [place for place in groups if place.name in ("whole subject", "non-subject")]
    return (*single, *together, *([Place(CHOSEN, tuple(chosen))] if chosen else ()))


@checked
@dataclass(frozen=True, eq=False, repr=False)
class Knockout(PlaceMaps):
    """What an answer loses where its position cannot look somewhere. Made by :func:`ffnmem.knockout`.

    Attributes:
        scores: of the one kind, ``"edges"``, ``[n_layers, places]``: the probability of the answer where, in a window
            of layers around one, attention from the last position to a place is blocked.
        places: tokens or groups of them.
        clean: the answer's probability where nothing is blocked.
        answer, answer_ids: what the model says, of which all this is the probability: its text and tokens.
        text: the prompt; tokens: its tokens; subject: the positions of the subject's.
        fact: the fact's id, or the prompt where it has none.
        window: in how many layers edges are blocked at once.
    """

    EFFECT, SHOWN = "share", Column("share", "percent")

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
    provenance: Provenance

    def is_token(self, place: Place) -> bool:
        return place.name not in (*VIEWS, CHOSEN)

    def sheet(self) -> Sheet:
        """The prompt, the answer, and the share of it that is lost, a row a place."""
        return self.map_sheet("", {"blocked": describe_blocking(self.window)}, lambda _: "without looking at")


def describe_blocking(window: int) -> str:
    """What a knockout does, for people."""
    return f"attention from the last token, in {counted(window, 'layer')} at once"


@checked
@dataclass(frozen=True, eq=False, repr=False)
class Knockouts(PlaceMapsOfFacts):
    """What knockout does to the answers of many prompts. Made by :func:`ffnmem.tracing.knockout_facts`.

    Attributes:
        knockouts: one :class:`Knockout` a fact, its places groups of positions, in the order of the facts.
        skipped: one row for each fact that was left out: fact, subject, reason.
        provenance: of all of them.
    """

    MEAN = "share"

    knockouts: tuple[Knockout, ...]
    skipped: pd.DataFrame
    provenance: Provenance

    @property
    def of_facts(self) -> tuple[Knockout, ...]:
        return self.knockouts

    @cached_property
    def groups(self) -> pd.DataFrame:
        """Mean shares of the clean probability that are lost, by group of positions and layer.

        Columns kind ("edges"), group, layer, share (the mean of 1 − blocked/clean: minus the paper's relative change),
        low, high (± 1.96 standard errors over facts; NaN of a single fact), loss (the mean of clean minus blocked),
        n (facts with such a position).
        """
        share = by_group(self.knockouts, VIEWS, lambda one, kind: one.share(kind)).rename(columns={"mean": "share"})
        loss = by_group(self.knockouts, VIEWS, lambda one, kind: one.loss(kind))
        return share.assign(loss=loss["mean"])[list(GROUP_COLUMNS)]

    def sheet(self) -> Sheet:
        """How many facts were asked, why some were not, and the mean share that is lost for each group."""
        more = self.mean_answer() | ({"blocked": describe_blocking(self.knockouts[0].window)} if len(self) else {})
        return self.map_sheet("asked", more, lambda _: "without looking at")
