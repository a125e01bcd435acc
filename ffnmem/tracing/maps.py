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
from ..core.number_text import MISSING, format_probability
from ..core.provenance import Provenance
from ..core.sheets import Column, Content, Line, Sheet, Table, line, token
from ..core.types import Seed, checked
from ..show.result import Result
from .places import GROUPS, PLACES, VIEWS, Place, positions_by_group

REASONS = 3  # why facts were skipped
WIDTH = 1.96  # of a 95% interval, in standard errors
NAMES = {
    "state": "state",
    "ffn": "FFN",
    "attention": "attention",
    "edges": "edges to the last token",
}
OF_WINDOWS = {"ffn": "of", "attention": "of", "edges": "in"}


def kind_in_words(kind: str, window: int) -> str:
    """A kind with its window where it has one: "FFN of 3 layers"."""
    if kind not in OF_WINDOWS:
        return NAMES[kind]
    return f"{NAMES[kind]} {OF_WINDOWS[kind]} {window if window > 1 else 'one'} layer{'s' * (window > 1)}"


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

    not_brief = "scores"
    in_repr = "text answer clean kinds"

    KEYS: ClassVar[tuple[str, ...]]
    """The columns of its table that name a place of a kind."""
    EFFECTS: ClassVar[tuple[str, ...]]
    """The methods that give effects ``[n_layers, places]`` of a kind, columns of its table."""
    EFFECT: ClassVar[str]
    """The one that its maps show."""
    SHOWN: ClassVar[Column]
    """How they show it."""
    PEAK: ClassVar[str]
    """What its largest is called."""

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
    def largest(self) -> pd.DataFrame:
        """The rows of the table with the largest effect of each kind and place."""
        return largest_rows(self.to_frame(), self.KEYS, self.EFFECT)

    @property
    @abstractmethod
    def where(self) -> Mapping[str, np.ndarray]:
        """The columns of its table that say where a place is."""

    @property
    @abstractmethod
    def labels(self) -> list[Line]:
        """The places' names."""

    @abstractmethod
    def find_group(self, group: str) -> list[int]:
        """The numbers of the places that are of a group of positions."""

    @property
    @abstractmethod
    def how(self) -> dict[str, Content]:
        """What was done, for a sheet's heading."""

    def title_of(self, kind: str) -> str:
        """What stands above the map of a kind."""
        return kind_in_words(kind, self.window)

    def to_frame(self) -> pd.DataFrame:
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

    def label_token(self, position: int) -> Line:
        """A token, with a star where it is of the subject."""
        bos = position == 0 and self.provenance.prepend_bos
        shown = token(self.tokens[position], "special" if bos else "", limit=16)
        return line(shown, "*") if position in self.subject else line(shown)

    @property
    def chances(self) -> str:
        """The answer's probability, in words."""
        return f"{format_probability(self.clean)} clean"

    def sheet(self) -> Sheet:
        """The prompt, the answer and its probability, what was done, and a map of each kind, a row a place."""
        answer = line(token(self.answer, "strong"), f"   {self.chances}")
        maps = (self.map(kind, self.title_of(kind)) for kind in self.kinds)
        return Sheet.of({"prompt": self.text, "answer": answer, **self.how}, *maps, self.provenance)

    def map(self, kind: str, title: str = "") -> Table:
        """Each place with its effects by layer, the layer of the largest, and how large it is."""
        effects = getattr(self, self.EFFECT)(kind)
        records = [
            {"label": label, "effects": own.tolist()}
            | ({"layer": int(own.argmax()), "most": float(own.max())} if np.any(own) else {"layer": None, "most": None})
            for label, own in zip(self.labels, effects.T, strict=True)
        ]
        heads = (
            Column("at", of="label"),
            layers_column(effects),
            Column(f"{self.PEAK} layer", "number", places=0, of="layer"),
        )
        return Table.of(records, *heads, replace(self.SHOWN, of="most"), title=title)


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

    in_json = "fact text tokens subject answer answer_ids clean corrupted samples window noise seed scores largest"
    not_brief = "scores samples"
    in_repr = "text answer clean corrupted samples kinds"
    KEYS, EFFECTS = ("kind", "position"), ("indirect",)
    EFFECT, PEAK, SHOWN = "indirect", "best", Column("effect", "percent", sign=True)

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
    def labels(self) -> list[Line]:
        return [self.label_token(position) for position in range(len(self.tokens))]

    def find_group(self, group: str) -> list[int]:
        return positions_by_group(self.subject, len(self.tokens))[group]

    @property
    def how(self) -> dict[str, Content]:
        source = dict(self.provenance.settings).get("noise_from")
        words = f"standard deviation {self.noise:.3g}{f' ({source})' if source else ''}"
        return {"noise": f"{words}, {counted(len(self.samples), 'sample')}, seed {self.seed}"}

    @property
    def chances(self) -> str:
        return f"{super().chances}, {format_probability(self.corrupted)} with noise on the subject (*)"


@dataclass(frozen=True, eq=False, repr=False)
class PlaceMap(FactMap):
    """What an answer loses when something is done at a place, in a window of layers."""

    in_json = "fact text tokens subject answer answer_ids clean window places scores largest"
    KEYS, EFFECTS, PEAK = ("kind", "place", "positions"), ("loss", "share"), "worst"

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
    def labels(self) -> list[Line]:
        return [
            self.label_token(place.positions[0]) if self.is_token(place) else line(place.name) for place in self.places
        ]

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

    EFFECT, SHOWN = "loss", Column("loss", "percent")

    @property
    def how(self) -> dict[str, Content]:
        return {"silenced": "a part of some layers, which writes nothing at one token"}

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

    EFFECT, SHOWN = "share", Column("share", "percent")

    @property
    def how(self) -> dict[str, Content]:
        return {"blocked": f"attention from the last token, in {counted(self.window, 'layer')} at once"}

    def title_of(self, kind: str) -> str:
        return "without looking at"


class FactMaps(Result):
    """The maps of many facts: means by kind, group of positions and layer, of some effects."""

    main = "groups"
    in_json = "n groups facts largest skipped"
    not_brief = "groups facts"
    in_repr = "facts skipped"

    DONE: ClassVar[str] = "asked"
    GROUPS: ClassVar[tuple[str, ...]]
    """The groups of positions, in the order of the table."""
    COLUMNS: ClassVar[str]
    """The columns of ``groups``."""
    MEANS: ClassVar[Mapping[str, str]]
    """Its means: the effect of each. The first, whose interval is "low" and "high", is what its maps show."""
    MORE: ClassVar[Mapping[str, str]] = {}
    """Further columns of the maps: their names, and what they are in ``groups``."""
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
        """One row a fact, with the columns of ``OF_FACT``."""
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
        return largest_rows(self.groups, ("kind", "group"), self.mean) if len(self.groups) else self.groups

    def sheet(self) -> Sheet:
        """How many facts there are, their answers, why some were skipped, and the means of each kind and group."""
        facts: dict[str, Content | None] = {
            self.DONE: f"{counted(len(self), 'fact')}, {len(self.skipped):,} skipped",
            **(self.how if len(self) else {}),
            "skipped": tuple(line(str(reason)) for reason in self.skipped["reason"].head(REASONS)) or None,
        }
        kinds = self.groups.groupby("kind", sort=False)
        return Sheet.of(
            facts, *(self.map(some, self.of_facts[0].title_of(str(kind))) for kind, some in kinds), self.provenance
        )

    @property
    def how(self) -> dict[str, Content]:
        """The mean probability of the answers, and what was done."""
        return {
            "answer": f"{format_probability(float(self.facts['clean'].mean()))} clean, on the mean",
            **self.of_facts[0].how,
        }

    def map(self, groups: pd.DataFrame, title: str = "") -> Table:
        """Each group with its means by layer, and of the layer of the largest: mean, interval, further columns and how
        many facts have such a position."""
        first, by_group = self.of_facts[0], groups.groupby("group", sort=False)
        most = groups.loc[by_group[self.mean].idxmax()].assign(
            effects=[some.tolist() for _, some in by_group[self.mean]]
        )

        def interval(row: Mapping[str, Any]) -> str:
            return MISSING if np.isnan(row["low"]) else f"{100 * row['low']:.1f} to {100 * row['high']:.1f}"

        return Table.of(
            most,
            Column("at", of="group"),
            layers_column(np.array(most["effects"].tolist()).T),
            Column(first.PEAK, "number", places=0, of="layer"),
            replace(first.SHOWN, of=self.mean),
            Column("95% interval", left=False, of=interval),
            *(Column(name, "percent", of=column) for name, column in self.MORE.items()),
            Column("facts", "count", of="n"),
            title=title,
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

    DONE, GROUPS, MEANS = "traced", GROUPS, {"mean": "indirect"}
    COLUMNS = "kind group layer mean low high n"
    OF_FACT = ("fact", "text", "answer", "clean", "corrupted", "total")

    traces: tuple[Trace, ...]
    skipped: pd.DataFrame
    provenance: Provenance

    @property
    def how(self) -> dict[str, Content]:
        clean, corrupted = (format_probability(float(self.facts[name].mean())) for name in ("clean", "corrupted"))
        return {"answer": f"{clean} clean, {corrupted} with noise on the subject, on the mean"}


@checked
@dataclass(frozen=True, eq=False, repr=False)
class Silencings(FactMaps):
    """What silencing does to many answers, as :class:`Traces`. Made by :func:`ffnmem.tracing.trace_facts`."""

    GROUPS, MEANS, MORE = PLACES, {"loss": "loss", "share": "share"}, {"of clean": "share"}
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


def largest_rows(found: pd.DataFrame, keys: Iterable[str], column: str) -> pd.DataFrame:
    """The row of the largest value of a column for each of some keys."""
    return found.loc[found.groupby(list(keys), sort=False)[column].idxmax()]


def layers_column(effects: np.ndarray) -> Column:
    """A column for effects by layer ``[n_layers, …]``, whose strongest colour is the largest of them."""
    limit, name = float(np.abs(effects).max()) or 1.0, f"layers 0–{len(effects) - 1}"
    return Column(name, "heat", limit=limit, scale=f"{limit:.1%}", each="layer", of="effects")
