"""``Silencing`` and ``Silencings``: how much of an answer is lost without what FFNs or attention write somewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ..core.arguments import public
from ..core.errors import check_choice, counted
from ..core.pictures import picture
from ..core.provenance import Provenance
from ..core.sheets import Column, Content, Facts, Line, Origin, Rows, Sheet, Span, line, of_chance, rows, token
from ..prompts.attribution import plain_records
from ..show.result import Result
from .traces import GROUPS, REASONS, averaged, kind_in_words, layers_column, positions_by_group

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


@public
@dataclass(frozen=True, eq=False, repr=False)
class Silencing(Result):
    """What silencing does to the answer of one prompt. Made by :func:`ffnmem.tracing.silence_fact`.

    Attributes:
        scores: by kind ``[n_layers, places]``, the probability of the answer where that part of a window of layers
            around one is silenced at a place.
        places: tokens or groups of them.
        clean: the answer's probability where nothing is silenced.
        answer, answer_id: the model's likeliest token, of which all this is the probability.
        text: the prompt; tokens: its tokens; subject: the positions of the subject's.
        fact: the fact's id, or the prompt where it has none.
        window: how many layers are silenced at once.
        replaced_by: what a silenced part writes: nothing ("zero"), or what it writes on the mean, and over what.
    """

    scores: dict[str, np.ndarray]
    places: tuple[Place, ...]
    clean: float
    answer: str
    answer_id: int
    text: str
    tokens: tuple[str, ...]
    subject: range
    fact: str
    window: int
    replaced_by: str
    provenance: Provenance

    @property
    def kinds(self) -> tuple[str, ...]:
        """What was silenced."""
        return tuple(self.scores)

    @property
    def n_layers(self) -> int:
        return next(iter(self.scores.values())).shape[0]

    def loss(self, kind: str = "ffn") -> np.ndarray:
        """How much less probable the answer is ``[n_layers, places]``: clean minus silenced. Raises InputError."""
        check_choice("kind", kind, self.scores)
        return self.clean - self.scores[kind]

    def to_frame(self) -> pd.DataFrame:
        """One row a cell: kind, layer, place, positions, score, loss, share (of the clean probability that is lost)."""
        n_layers, names = self.n_layers, [place.name for place in self.places]
        at = [" ".join(map(str, place.positions)) for place in self.places]
        frames = [
            pd.DataFrame(
                {
                    "kind": kind,
                    "layer": np.repeat(np.arange(n_layers), len(names)),
                    "place": np.tile(np.array(names, dtype=object), n_layers),
                    "positions": np.tile(np.array(at, dtype=object), n_layers),
                    "score": scores.ravel(),
                    "loss": self.loss(kind).ravel(),
                    "share": self.loss(kind).ravel() / self.clean,
                }
            )
            for kind, scores in self.scores.items()
        ]
        return pd.concat(frames, ignore_index=True)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "fact": self.fact,
            "text": self.text,
            "tokens": list(self.tokens),
            "subject": [self.subject.start, self.subject.stop],
            "answer": self.answer,
            "answer_id": self.answer_id,
            "clean": self.clean,
            "window": self.window,
            "replaced_by": self.replaced_by,
            "places": [{"name": place.name, "positions": list(place.positions)} for place in self.places],
            "scores": {kind: scores.tolist() for kind, scores in self.scores.items()},
            "provenance": self.provenance.to_dict(),
        }

    def brief(self) -> dict[str, Any]:
        """As :meth:`to_dict`, with the layer of the largest loss of each kind and place in place of all scores."""
        found = {name: value for name, value in self.to_dict().items() if name != "scores"}
        every = self.to_frame()
        worst = every.loc[every.groupby(["kind", "place", "positions"], sort=False)["loss"].idxmax()]
        return {**found, "worst": plain_records(worst)}

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
            "answer": line(token(self.answer, "strong"), f"   {of_chance(self.clean)} clean"),
            "silenced": in_words(self.replaced_by),
        }
        maps = [self.map(kind).table(f"without {kind_in_words(kind, self.window)}") for kind in self.kinds]
        return Sheet.of(Facts(heading), *maps, Origin(self.provenance.to_dict()))

    def map(self, kind: str) -> Rows:
        """Each place with its losses by layer, the layer where most is lost, and how much."""
        losses = self.loss(kind)
        found = rows("at", layers_column(losses), Column("worst layer", "number", places=0), LOSS)
        for column, place in enumerate(self.places):
            own = losses[:, column]
            worst = int(own.argmax())
            found.add(self.label(place), own.tolist(), worst, float(own[worst]))
        return found

    def label(self, place: Place) -> Line:
        """A place: a token, with a star where it is of the subject, or a group's name."""
        if place.name in PLACES:
            return line(place.name)
        bos = place.positions == (0,) and self.provenance.prepend_bos
        shown = Span("BOS", "special") if bos else token(place.name, limit=16)
        return line(shown, "*") if place.positions[0] in self.subject else line(shown)


def in_words(replaced_by: str) -> str:
    """What silenced parts write, for people."""
    return "writes nothing" if replaced_by == "zero" else f"writes its {replaced_by}"


@public
@dataclass(frozen=True, eq=False, repr=False)
class Silencings(Result):
    """What silencing does to the answers of many prompts. Made by :func:`ffnmem.tracing.silence_facts`.

    Attributes:
        silencings: one :class:`Silencing` a fact, its places groups of positions, in the order of the facts.
        skipped: one row for each fact that was left out: fact, subject, reason.
        provenance: of all of them.
    """

    silencings: tuple[Silencing, ...]
    skipped: pd.DataFrame
    provenance: Provenance

    @cached_property
    def groups(self) -> pd.DataFrame:
        """Mean losses by kind, group of positions and layer.

        Columns kind, group (``PLACES``), layer, loss (the mean of clean minus silenced), low, high (± 1.96 standard
        errors over facts; NaN of a single fact), share (the mean share of the clean probability that is lost),
        share_low, share_high, n (facts with such a position).
        """
        found = []
        for kind in self.silencings[0].kinds if self.silencings else ():
            for group in PLACES:
                losses, shares = [], []
                for one in self.silencings:
                    for column, place in enumerate(one.places):
                        if place.name == group:
                            losses.append(one.loss(kind)[:, column])
                            shares.append(losses[-1] / one.clean)
                if not losses:
                    continue
                share = averaged(np.stack(shares)).rename(columns={"mean": "share", "low": "share_low"})
                frame = averaged(np.stack(losses)).rename(columns={"mean": "loss"}).assign(kind=kind, group=group)
                found.append(frame.assign(share=share["share"], share_low=share["share_low"], share_high=share["high"]))
        if not found:
            return pd.DataFrame(columns=list(GROUP_COLUMNS))
        return pd.concat(found, ignore_index=True)[list(GROUP_COLUMNS)]

    @property
    def facts(self) -> pd.DataFrame:
        """One row a fact: fact, text, answer, clean."""
        columns = ("fact", "text", "answer", "clean")
        return pd.DataFrame([[getattr(one, name) for name in columns] for one in self.silencings], columns=columns)

    def to_frame(self) -> pd.DataFrame:
        """A copy of ``groups``."""
        return self.groups.copy()

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON; the single maps are left out."""
        return {
            "groups": plain_records(self.groups),
            "facts": plain_records(self.facts),
            "skipped": plain_records(self.skipped),
            "provenance": self.provenance.to_dict(),
        }

    def brief(self) -> dict[str, Any]:
        """As :meth:`to_dict`, with the worst layer of each kind and group, and without the single facts."""
        found = {**self.to_dict(), "groups": plain_records(self.worst), "facts": len(self)}
        return {**found, "skipped": plain_records(self.skipped.head(REASONS)), "all_skipped": len(self.skipped)}

    @property
    def worst(self) -> pd.DataFrame:
        """The rows of ``groups`` with the largest mean loss of each kind and group."""
        found = self.groups
        return found.loc[found.groupby(["kind", "group"], sort=False)["loss"].idxmax()] if len(found) else found

    def plot(self, kind: str | None = None, axes: Sequence[Axes] | None = None) -> list[Axes]:
        """The averaged losses by group, as :func:`ffnmem.plots.tracing.silencings` draws them."""
        silencings = picture("silencings")

        return silencings(self, kind, axes)

    def __len__(self) -> int:
        return len(self.silencings)

    def summary(self) -> str:
        clean = f", mean clean {self.facts['clean'].mean():.3f}" if len(self) else ""
        return f"{counted(len(self), 'fact')}, {len(self.skipped)} skipped{clean}"

    def sheet(self) -> Sheet:
        """How many facts were asked, why some were not, and the mean losses of each kind and group."""
        heading: dict[str, Content] = {"asked": f"{counted(len(self), 'fact')}, {len(self.skipped):,} skipped"}
        if len(self):
            heading["answer"] = f"{float(self.facts['clean'].mean()):.1%} clean, on the mean"
            heading["silenced"] = in_words(self.silencings[0].replaced_by)
        if len(self.skipped):
            heading["skipped"] = tuple(line(str(reason)) for reason in self.skipped["reason"].head(REASONS))
        maps = [
            self.map(some).table(f"without {kind_in_words(str(kind), self.silencings[0].window)}")
            for kind, some in self.groups.groupby("kind", sort=False)
        ]
        return Sheet.of(Facts(heading), *maps, Origin(self.provenance.to_dict()))

    def map(self, groups: pd.DataFrame) -> Rows:
        """Each group with its mean losses by layer, the worst layer with its interval, and the share lost there."""
        by_group = {str(group): some for group, some in groups.groupby("group", sort=False)}
        means = np.stack([some["loss"].to_numpy() for some in by_group.values()], axis=1)
        found = rows(
            "at",
            layers_column(means),
            Column("worst", "number", places=0),
            LOSS,
            Column("95% interval", left=False),
            Column("of clean", "percent"),
            Column("facts", "count"),
        )
        for group, some in by_group.items():
            worst = some.loc[some["loss"].idxmax()]
            low, high = 100 * worst["low"], 100 * worst["high"]
            interval = "–" if np.isnan(low) else f"{low:.1f} to {high:.1f}"
            found.add(
                group,
                some["loss"].tolist(),
                int(worst["layer"]),
                float(worst["loss"]),
                interval,
                float(worst["share"]),
                int(worst["n"]),
            )
        return found
