"""The maps of one fact (``Trace``, ``Silencing``, ``Knockout``) by layer and place, and their means over many facts."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from ..core.errors import check_choice, counted
from ..core.number_text import format_probability
from ..core.provenance import Provenance
from ..core.sheets import Grid, Line, Span, line, token
from ..core.types import Seed, checked
from ..show.result import Result
from .places import GROUPS, PLACES, VIEWS, Place, positions_by_group

WIDTH = 1.96  # of a 95% interval, in standard errors
SUBJECT = "whole subject"
NAMES = {
    "state": "state",
    "ffn": "FFN",
    "attention": "attention",
    "edges": "edges to the last token",
}
UNITS = {"indirect": "indirect effect", "loss": "loss", "share": "share lost"}
OF_WINDOWS = {"ffn": "of", "attention": "of", "edges": "in"}


def kind_in_words(kind: str, window: int) -> str:
    """A kind with its window where it has one: "FFN of 3 layers"."""
    if kind not in OF_WINDOWS:
        return NAMES[kind]
    return f"{NAMES[kind]} {OF_WINDOWS[kind]} {window if window > 1 else 'one'} layer{'s' * (window > 1)}"


def around(layer: int, window: int) -> str:
    """Layers that are changed at once, in words."""
    return f"layer {layer}" if window == 1 else f"{window} layers around layer {layer}"


def grid(
    rows: Iterable[str | Span], effects: np.ndarray, title: str, effect: str, positions: Iterable[int] = ()
) -> Grid:
    """Effects ``[places, n_layers]`` of one of ``UNITS``, a row a place; ``positions``: of the rows, if each is one."""
    columns = tuple(str(layer) for layer in range(effects.shape[1]))
    limit = float(np.abs(effects).max()) or 1.0
    return Grid(
        tuple(rows),
        columns,
        tuple(map(tuple, effects.tolist())),
        limit,
        UNITS[effect],
        "percent",
        title=title,
        caption="by layer",
        leads={(row, layer): (layer, at) for row, at in enumerate(positions) for layer in range(len(columns))},
    )


@dataclass(frozen=True, eq=False, repr=False)
class FactMap(Result):
    """A score for each layer and place of one prompt, by kind.

    Attributes:
        scores: by kind ``[n_layers, places]``, the probability of the answer.
        clean: the answer's probability where nothing is changed.
        answer, answer_ids: what the model says, of which all this is the probability: its text and tokens.
        text: the prompt; tokens: its tokens; subject: the positions of the subject's.
        fact: the fact's id, or the prompt where it has none.
        window: how many layers are changed at once.
    """

    heading = "prompt answer clean"
    tables: ClassVar = {"maps": "", "cells": "|*"}
    main = in_full = "cells"

    EFFECTS: ClassVar[tuple[str, ...]]
    """The methods that give effects ``[n_layers, places]`` of a kind, columns of its table."""
    EFFECT: ClassVar[str]
    """The one that its maps show."""

    scores: dict[str, np.ndarray]
    clean: float
    answer: str
    answer_ids: tuple[int, ...]
    text: str
    tokens: tuple[str, ...]
    subject: range
    fact: str
    window: int
    provenance: Provenance

    @property
    def kinds(self) -> tuple[str, ...]:
        """What was restored, silenced or blocked."""
        return tuple(self.scores)

    @property
    def n_layers(self) -> int:
        """How many layers the model has."""
        return next(iter(self.scores.values())).shape[0]

    @property
    @abstractmethod
    def where(self) -> Mapping[str, np.ndarray]:
        """The columns of its table that say where a place is."""

    @property
    @abstractmethod
    def labels(self) -> list[str | Span]:
        """The places' names."""

    @abstractmethod
    def find_group(self, group: str) -> list[int]:
        """The numbers of the places that are of a group of positions."""

    def title_of(self, kind: str) -> str:
        """What stands above the map of a kind."""
        return kind_in_words(kind, self.window)

    @property
    def prompt(self) -> str:
        """What was asked."""
        return self.text

    @property
    def cells(self) -> pd.DataFrame:
        """One row a cell: kind, layer, where it is (a trace's position and token, or place and positions), score, and
        the effects (indirect, or loss and share of the clean probability)."""
        frames = [
            pd.DataFrame(
                {
                    "kind": kind,
                    "layer": np.repeat(np.arange(self.n_layers), scores.shape[1]),
                    **{name: np.tile(values, self.n_layers) for name, values in self.where.items()},
                    "score": scores.ravel(),
                    **{name: getattr(self, name)(kind).ravel() for name in self.EFFECTS},
                }
            )
            for kind, scores in self.scores.items()
        ]
        return pd.concat(frames, ignore_index=True)

    def label_token(self, position: int) -> Span:
        """A token, with a star where it is of the subject."""
        bos = position == 0 and self.provenance.prepend_bos
        return token(self.tokens[position] + "*" * (position in self.subject), "special" if bos else "", limit=16)

    def map(self, kind: str) -> Grid:
        """The effects of a kind, a row a place."""
        positions = map(int, self.where.get("position", ()))
        found = grid(self.labels, getattr(self, self.EFFECT)(kind).T, self.title_of(kind), self.EFFECT, positions)
        return replace(found, caption=f"{found.caption}; * the subject") if self.subject else found

    @property
    def maps(self) -> dict[str, Grid]:
        """The effects of each kind, by place and layer."""
        return {kind: self.map(kind) for kind in self.kinds}

    def change(self, after: float) -> Line:
        """The answer's probability before and after something, in words."""
        ends = f" goes from {format_probability(self.clean)} to {format_probability(after)}"
        return line("the probability of ", token(self.answer, "strong"), ends)


@checked
@dataclass(frozen=True, eq=False, repr=False)
class Trace(FactMap):
    """Causal tracing of one fact. Made by :func:`ffnmem.trace_fact`.

    Attributes:
        scores: by kind ``[n_layers, pos]``, the mean probability of the answer over the corrupted runs when the clean
            output is restored at that layer and position. Before the subject nothing is corrupted, so there the score
            is that of the corrupted runs.
        samples: the answer's probability in each corrupted run.
        window: how many layers a cell of ``"ffn"`` and ``"attention"`` restores.
        noise: the standard deviation of the noise; seed: as given.
        clean, answer, answer_ids, text, tokens, subject, fact: as of :class:`Silencing`.
    """

    heading = "prompt answer clean corrupted"
    EFFECTS, EFFECT = ("indirect",), "indirect"

    samples: np.ndarray
    noise: float
    seed: Seed

    @property
    def corrupted(self) -> float:
        """The answer's mean probability over the corrupted runs."""
        return float(self.samples.mean())

    @property
    def total(self) -> float:
        """The total effect: clean minus corrupted."""
        return self.clean - self.corrupted

    def indirect(self, kind: str = "state") -> np.ndarray:
        """The indirect effects ``[n_layers, pos]`` of a kind: scores minus corrupted. Raises InputError."""
        check_choice("kind", kind, self.scores)
        return self.scores[kind] - self.corrupted

    @property
    def where(self) -> Mapping[str, np.ndarray]:
        return {"position": np.arange(len(self.tokens)), "token": np.array(self.tokens, dtype=object)}

    @property
    def labels(self) -> list[str | Span]:
        return [self.label_token(position) for position in range(len(self.tokens))]

    def find_group(self, group: str) -> list[int]:
        return positions_by_group(self.subject, len(self.tokens))[group]

    @property
    def verdict(self) -> Line:
        """What the noise takes, and where in the subject the most of it is brought back."""
        kind = self.kinds[0]
        own = self.scores[kind][:, self.subject.start : self.subject.stop]
        layer, place = np.unravel_index(own.argmax(), own.shape)
        back = "state of" if kind == "state" else f"{NAMES[kind]} output of"
        where = around(int(layer), 1 if kind == "state" else self.window)
        return line(
            "With noise on the subject ", *self.change(self.corrupted), f"; with the clean {back} {where} put back at ",
            token(self.tokens[self.subject[int(place)]]), f" it is {format_probability(float(own.max()))}.",
        )  # fmt: skip


@dataclass(frozen=True, eq=False, repr=False)
class PlaceMap(FactMap):
    """What an answer loses when something is done at a place, in a window of layers."""

    EFFECTS = ("loss", "share")
    WITHOUT: ClassVar[str]
    """What is done, in words: a kind's name and layers are filled in."""

    places: tuple[Place, ...]

    def loss(self, kind: str | None = None) -> np.ndarray:
        """How much less probable the answer is ``[n_layers, places]``: clean minus changed. Raises InputError.

        ``kind``: one of ``kinds``; default the first.
        """
        chosen = self.kinds[0] if kind is None else check_choice("kind", kind, self.scores)
        return self.clean - self.scores[chosen]

    def share(self, kind: str | None = None) -> np.ndarray:
        """The same as a share of the clean probability. Raises InputError."""
        return self.loss(kind) / self.clean

    @property
    def where(self) -> Mapping[str, np.ndarray]:
        positions = [" ".join(map(str, place.positions)) for place in self.places]
        names = [place.name for place in self.places]
        return {"place": np.array(names, dtype=object), "positions": np.array(positions, dtype=object)}

    @property
    def labels(self) -> list[str | Span]:
        return [self.label_token(place.positions[0]) if self.is_token(place) else place.name for place in self.places]

    @property
    def verdict(self) -> Line:
        """What the answer loses most by what is done at the subject."""
        columns = self.find_group(SUBJECT)
        own = self.scores[self.kinds[0]][:, columns[0]]
        layers = around(int(own.argmin()), self.window)
        return line(self.WITHOUT.format(NAMES[self.kinds[0]], layers), *self.change(float(own.min())), ".")

    def is_token(self, place: Place) -> bool:
        """Whether a place is one token by itself, not a group."""
        first, *more = place.positions
        return not more and place.name == self.tokens[first]

    def find_group(self, group: str) -> list[int]:
        return [column for column, place in enumerate(self.places) if place.name == group]


@checked
@dataclass(frozen=True, eq=False, repr=False)
class Silencing(PlaceMap):
    """What silencing does to the answer of one prompt. Made by :func:`ffnmem.trace_fact` with ``way="silence"``.

    Attributes:
        scores: by kind ``[n_layers, places]``, the probability of the answer where that part of a window of layers
            around one is silenced at a place.
        places: tokens or groups of them.
        clean: the answer's probability where nothing is silenced.
        answer, answer_ids: what the model says, of which all this is the probability: its text and tokens.
        text: the prompt; tokens: its tokens; subject: the positions of the subject's.
        fact: the fact's id, or the prompt where it has none.
        window: how many layers are silenced at once.
    """

    EFFECT = "loss"
    WITHOUT = "Where the {} of {} writes nothing at the subject, "

    def title_of(self, kind: str) -> str:
        return f"without {super().title_of(kind)}"


@checked
@dataclass(frozen=True, eq=False, repr=False)
class Knockout(PlaceMap):
    """What an answer loses where its position cannot look somewhere. Made by :func:`ffnmem.knockout`.

    Attributes:
        scores: of the one kind, ``"edges"``, ``[n_layers, places]``: the probability of the answer where, in a window
            of layers around one, attention from the last position to a place is blocked.
        window: in how many layers edges are blocked at once.
        places, clean, answer, answer_ids, text, tokens, subject, fact: as of :class:`Silencing`.
    """

    EFFECT = "share"
    WITHOUT = "Where the last token cannot look at the subject in {1}, "

    def title_of(self, kind: str) -> str:
        return f"without looking there, in {counted(self.window, 'layer')} at once"


class FactMaps(Result):
    """The maps of many facts: means by kind, group of positions and layer, of some effects."""

    heading = "n clean"
    tables: ClassVar = {"maps": "", "largest": "*", "groups": "|*", "facts": "|*", "skipped": "subject reason"}
    main = in_full = "groups"

    GROUPS: ClassVar[tuple[str, ...]]
    """The groups of positions, in the order of the table."""
    COLUMNS: ClassVar[str]
    """The columns of ``groups``."""
    MEANS: ClassVar[Mapping[str, str]]
    """Its means: the effect of each. The first, whose interval is "low" and "high", is what its maps show."""
    SUBJECT: ClassVar[str] = SUBJECT
    """The group that the verdict is about."""
    OF_FACT: ClassVar[tuple[str, ...]] = ("fact", "text", "answer", "clean")

    skipped: pd.DataFrame
    provenance: Provenance

    @property
    def of_facts(self) -> tuple[FactMap, ...]:
        """The maps of each fact, the first field."""
        maps: tuple[FactMap, ...] = getattr(self, fields(self)[0].name)  # type: ignore[arg-type]
        return maps

    @property
    def mean(self) -> str:
        """The column of ``groups`` that its maps show."""
        return next(iter(self.MEANS))

    def __len__(self) -> int:
        return len(self.of_facts)

    @property
    def n(self) -> int:
        """How many facts there are."""
        return len(self)

    @property
    def facts(self) -> pd.DataFrame:
        """One row a fact that was traced."""
        columns = self.OF_FACT
        return pd.DataFrame([[getattr(one, name) for name in columns] for one in self.of_facts], columns=columns)

    @cached_property
    def groups(self) -> pd.DataFrame:
        """Means over facts by kind, group of positions and layer.

        A fact's positions in a group are averaged first, so that facts count alike. Columns: kind, group, layer, n
        (facts with such a position), low and high (the first mean ± 1.96 standard errors over facts; NaN of a single
        fact), and the means: of traces ``mean`` (of indirect effects), of silencings and knockouts ``loss`` (of clean
        minus changed) and ``share`` (of the clean probability that is lost), with ``share_low`` and ``share_high``.

        Source: Meng et al. 2022 (2202.05262), section 2.2 and appendix B.2; the published program counts the only token
        of a subject and a last token that follows the subject in two groups, here they are in one. Of knockouts: Geva
        et al. 2023 (2304.14767), whose relative change is minus the share.
        """
        found = []
        for kind in self.of_facts[0].kinds if self.of_facts else ():
            for group in self.GROUPS:
                places = [(one, columns) for one in self.of_facts if (columns := one.find_group(group))]
                if not places:
                    continue
                means: dict[str, Any] = {}
                for name, effect in self.MEANS.items():
                    prefix = f"{name}_" if means else ""
                    rows = np.stack([getattr(one, effect)(kind)[:, at].mean(axis=1) for one, at in places])
                    means[name], means[f"{prefix}low"], means[f"{prefix}high"] = average(rows)
                layers = np.arange(len(means[self.mean]))
                found.append(pd.DataFrame({"kind": kind, "group": group, "layer": layers, **means, "n": len(places)}))
        names = self.COLUMNS.split()
        return pd.concat(found, ignore_index=True)[names] if found else pd.DataFrame(columns=names)

    @property
    def largest(self) -> pd.DataFrame:
        """The rows of ``groups`` with the largest mean of each kind and group."""
        return self.groups.loc[self.groups.groupby(["kind", "group"], sort=False)[self.mean].idxmax()]

    @property
    def clean(self) -> float | None:
        """The mean probability of the answers; None of no facts."""
        return float(self.facts["clean"].mean()) if len(self) else None

    @property
    def maps(self) -> dict[str, Grid]:
        """The means of each kind, by group of positions and layer."""
        return {str(kind): self.map(some, str(kind)) for kind, some in self.groups.groupby("kind", sort=False)}

    def map(self, groups: pd.DataFrame, kind: str) -> Grid:
        """The means of one kind, a row a group."""
        means = groups.pivot(index="group", columns="layer", values=self.mean).reindex(groups["group"].unique())
        return grid(means.index, means.to_numpy(), self.of_facts[0].title_of(kind), self.of_facts[0].EFFECT)

    @property
    def verdict(self) -> str:
        """What was done at the subject, where it counts most, and what it does on the mean."""
        if not len(self):
            return f"{self.provenance.model} knows none of {counted(len(self.skipped), 'fact')}."
        own = self.groups[(self.groups["group"] == self.SUBJECT) & (self.groups["kind"] == self.of_facts[0].kinds[0])]
        return self.describe_largest(own.loc[own[self.mean].idxmax()]) if len(own) else ""

    def describe_largest(self, row: Any) -> str:
        """A row of ``groups`` in words."""
        one: Any = self.of_facts[0]
        done = one.WITHOUT.format(NAMES[row["kind"]], around(int(row["layer"]), one.window))
        return (
            f"{done}the mean probability of {counted(int(row['n']), 'answer')} is {100 * row['loss']:.1f} points lower."
        )


@checked
@dataclass(frozen=True, eq=False, repr=False)
class Traces(FactMaps):
    """Causal tracing of many facts. Made by :func:`ffnmem.tracing.trace_facts`.

    Attributes:
        traces: one :class:`Trace` a fact, in the order of the facts.
        skipped: one row for each fact that was left out: fact, subject, reason.
        provenance: of all of them.
    """

    heading = "n clean corrupted"
    GROUPS, MEANS, SUBJECT = GROUPS, {"mean": "indirect"}, "last subject"
    COLUMNS = "kind group layer mean low high n"
    OF_FACT = ("fact", "text", "answer", "clean", "corrupted", "total")

    traces: tuple[Trace, ...]
    skipped: pd.DataFrame
    provenance: Provenance

    @property
    def corrupted(self) -> float | None:
        """The mean probability of the answers with noise on the subject; None of no facts."""
        return float(self.facts["corrupted"].mean()) if len(self) else None

    def describe_largest(self, row: Any) -> str:
        part = "state" if row["kind"] == "state" else f"{NAMES[row['kind']]} output"
        where = around(int(row["layer"]), 1 if row["kind"] == "state" else self.traces[0].window)
        return (
            f"With noise on the subject, the clean {part} of {where}, put back at the subject's last token, raises the "
            f"mean probability of {counted(int(row['n']), 'answer')} by {100 * row['mean']:.1f} points."
        )


@checked
@dataclass(frozen=True, eq=False, repr=False)
class Silencings(FactMaps):
    """What silencing does to many answers, as :class:`Traces`. Made by :func:`ffnmem.tracing.trace_facts`."""

    GROUPS, MEANS = PLACES, {"loss": "loss", "share": "share"}
    COLUMNS = "kind group layer loss low high share share_low share_high n"

    silencings: tuple[Silencing, ...]
    skipped: pd.DataFrame
    provenance: Provenance


@checked
@dataclass(frozen=True, eq=False, repr=False)
class Knockouts(FactMaps):
    """What knockout does to many answers, as :class:`Traces`. Made by :func:`ffnmem.tracing.knockout_facts`."""

    GROUPS, MEANS = VIEWS, {"share": "share", "loss": "loss"}
    COLUMNS = "kind group layer share low high loss n"

    knockouts: tuple[Knockout, ...]
    skipped: pd.DataFrame
    provenance: Provenance


def average(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean and ends of its interval over facts of ``[facts, n_layers]``."""
    mean = rows.mean(axis=0)
    error = rows.std(axis=0, ddof=1) / np.sqrt(len(rows)) if len(rows) > 1 else np.full_like(mean, np.nan)
    return mean, mean - WIDTH * error, mean + WIDTH * error
