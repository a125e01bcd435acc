"""What traces, silencings and knockouts share: scores by layer and place of one prompt, and means over many facts."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from ..core.errors import counted
from ..core.number_text import MISSING, format_probability
from ..core.provenance import Provenance
from ..core.sheets import Column, Content, Line, Sheet, Table, line, token
from ..show.result import Result

REASONS = 3  # why facts were skipped


class PromptMaps(Result):
    """A result that has a score for each layer and place of one prompt, by kind.

    It only says which fields it reads: the results have them in orders of their own, by which they can be made.
    """

    not_brief = "scores"
    in_repr = "text answer clean kinds"

    KEYS: ClassVar[tuple[str, ...]]
    """The columns of its table that name a place of a kind."""
    EFFECT: ClassVar[str]
    """The column of its table that its maps show."""
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
        """What was restored, or silenced."""
        return tuple(self.scores)

    @property
    def n_layers(self) -> int:
        """How many layers the model has."""
        return next(iter(self.scores.values())).shape[0]

    @abstractmethod
    def effects(self, kind: str) -> np.ndarray:
        """The effects of a kind ``[n_layers, places]``, as its maps show them."""

    @property
    @abstractmethod
    def labels(self) -> list[Line]:
        """The places' names."""

    @property
    def largest(self) -> pd.DataFrame:
        """The rows of the table with the largest effect of each kind and place."""
        return largest_rows(self.to_frame(), self.KEYS, self.EFFECT)

    def cells(
        self, places: Mapping[str, np.ndarray], effects: Callable[[str], Mapping[str, np.ndarray]]
    ) -> pd.DataFrame:
        """One row a cell: kind, layer, the columns of its place, score, and the effects of its kind."""
        count = len(next(iter(places.values())))
        frames = [
            pd.DataFrame(
                {
                    "kind": kind,
                    "layer": np.repeat(np.arange(self.n_layers), count),
                    **{name: np.tile(values, self.n_layers) for name, values in places.items()},
                    "score": scores.ravel(),
                    **{name: found.ravel() for name, found in effects(kind).items()},
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

    def map_sheet(self, said: str, more: Mapping[str, Content], title: Callable[[str], str]) -> Sheet:
        """The prompt, the answer with what is ``said`` of it, ``more`` facts, and a map of each kind, a row a place."""
        answer = line(token(self.answer, "strong"), f"   {format_probability(self.clean)} clean{said}")
        maps = (self.map(kind, title(kind)) for kind in self.kinds)
        return Sheet.of({"prompt": self.text, "answer": answer, **more}, *maps, self.provenance)

    def map(self, kind: str, title: str = "") -> Table:
        """Each place with its effects by layer, the layer of the largest, and how large it is."""
        effects = self.effects(kind)
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


class FactMaps(Result):
    """A result over many facts: means by kind, group of positions and layer, of one column of ``groups``."""

    main = "groups"
    in_json = "n groups facts largest skipped"
    not_brief = "groups facts"
    in_repr = "facts skipped"

    MEAN: ClassVar[str]
    OF_FACT: ClassVar[tuple[str, ...]]
    skipped: pd.DataFrame
    provenance: Provenance

    @property
    @abstractmethod
    def groups(self) -> pd.DataFrame:
        """Means by kind, group of positions and layer."""

    @property
    @abstractmethod
    def of_facts(self) -> Sequence[PromptMaps]:
        """The maps of each fact."""

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

    @property
    def largest(self) -> pd.DataFrame:
        """The rows of ``groups`` with the largest mean of each kind and group."""
        return largest_rows(self.groups, ("kind", "group"), self.MEAN) if len(self.groups) else self.groups

    def map_sheet(
        self,
        name: str,
        more: Mapping[str, Content],
        title: Callable[[str], str],
        shares: Mapping[str, str] | None = None,
    ) -> Sheet:
        """How many facts there are (under ``name``), ``more`` facts, why some were skipped, and the means of each kind
        and group. ``shares``: further columns of ``groups``, by the name that is shown."""
        facts: dict[str, Content | None] = {
            name: f"{counted(len(self), 'fact')}, {len(self.skipped):,} skipped",
            **more,
            "skipped": tuple(line(str(reason)) for reason in self.skipped["reason"].head(REASONS)) or None,
        }
        kinds = self.groups.groupby("kind", sort=False)
        return Sheet.of(facts, *(self.map(some, title(str(kind)), shares) for kind, some in kinds), self.provenance)

    def map(self, groups: pd.DataFrame, title: str = "", shares: Mapping[str, str] | None = None) -> Table:
        """Each group with its means by layer, and of the layer of the largest: mean, interval, some ``shares`` and how
        many facts have such a position."""
        first, by_group = self.of_facts[0], groups.groupby("group", sort=False)
        most = groups.loc[by_group[self.MEAN].idxmax()].assign(
            effects=[some.tolist() for _, some in by_group[self.MEAN]]
        )

        def interval(row: Mapping[str, Any]) -> str:
            return MISSING if np.isnan(row["low"]) else f"{100 * row['low']:.1f} to {100 * row['high']:.1f}"

        return Table.of(
            most,
            Column("at", of="group"),
            layers_column(np.array(most["effects"].tolist()).T),
            Column(first.PEAK, "number", places=0, of="layer"),
            replace(first.SHOWN, of=self.MEAN),
            Column("95% interval", left=False, of=interval),
            *(Column(name, "percent", of=column) for name, column in (shares or {}).items()),
            Column("facts", "count", of="n"),
            title=title,
        )


def largest_rows(found: pd.DataFrame, keys: Iterable[str], column: str) -> pd.DataFrame:
    """The row of the largest value of a column for each of some keys."""
    return found.loc[found.groupby(list(keys), sort=False)[column].idxmax()]


def layers_column(effects: np.ndarray) -> Column:
    """A column for effects by layer ``[n_layers, …]``, whose strongest colour is the largest of them."""
    limit, name = float(np.abs(effects).max()) or 1.0, f"layers 0–{len(effects) - 1}"
    return Column(name, "heat", limit=limit, scale=f"{limit:.1%}", each="layer", of="effects")
