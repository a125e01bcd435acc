"""What traces, silencings and knockouts share: scores by layer and place of one prompt, and means over many facts."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from ..core.errors import counted
from ..core.provenance import Provenance
from ..core.sheets import Column, Content, Line, Rows, line, rows, token
from ..prompts.attribution import plain_records

REASONS = 3  # why facts were skipped


class PromptMaps:
    """A result that has a score for each layer and place of one prompt, by kind.

    It only says which fields it reads: the results have them in orders of their own, by which they can be made.
    """

    scores: dict[str, np.ndarray]
    clean: float
    answer: str
    answer_ids: tuple[int, ...]
    text: str
    tokens: tuple[str, ...]
    subject: range
    fact: str
    provenance: Provenance

    @property
    def kinds(self) -> tuple[str, ...]:
        """What was restored, or silenced."""
        return tuple(self.scores)

    @property
    def n_layers(self) -> int:
        return next(iter(self.scores.values())).shape[0]

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

    def plain(self, **own: Any) -> dict[str, Any]:
        """Plain values, ready for JSON: what all have, and a result's ``own``."""
        return {
            "fact": self.fact,
            "text": self.text,
            "tokens": list(self.tokens),
            "subject": [self.subject.start, self.subject.stop],
            "answer": self.answer,
            "answer_ids": list(self.answer_ids),
            "clean": self.clean,
            **own,
            "scores": {kind: scores.tolist() for kind, scores in self.scores.items()},
            "provenance": self.provenance.to_dict(),
        }

    def token_label(self, position: int) -> Line:
        """A token, with a star where it is of the subject."""
        bos = position == 0 and self.provenance.prepend_bos
        shown = token(self.tokens[position], "special" if bos else "", limit=16)
        return line(shown, "*") if position in self.subject else line(shown)


class FactMaps:
    """A result over many facts: means by kind, group of positions and layer, of one column of ``groups``."""

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
    def facts(self) -> pd.DataFrame:
        """One row a fact, with the columns of ``OF_FACT``."""
        columns = self.OF_FACT
        return pd.DataFrame([[getattr(one, name) for name in columns] for one in self.of_facts], columns=columns)

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
        """As :meth:`to_dict`, with the layer of the largest mean of each kind and group, and without the facts."""
        found = {**self.to_dict(), "groups": plain_records(self.largest), "facts": len(self)}
        return {**found, "skipped": plain_records(self.skipped.head(REASONS)), "all_skipped": len(self.skipped)}

    @property
    def largest(self) -> pd.DataFrame:
        """The rows of ``groups`` with the largest mean of each kind and group."""
        return largest(self.groups, ("kind", "group"), self.MEAN) if len(self.groups) else self.groups

    def skipped_in_words(self) -> dict[str, Content]:
        """For a sheet's heading: why facts were left out, where some were."""
        reasons = tuple(line(str(reason)) for reason in self.skipped["reason"].head(REASONS))
        return {"skipped": reasons} if reasons else {}

    def counted_facts(self) -> str:
        return f"{counted(len(self), 'fact')}, {len(self.skipped):,} skipped"

    def map_of(self, groups: pd.DataFrame, peak: str, effect: Column, shares: Mapping[str, str] | None = None) -> Rows:
        """Each group with its means by layer, and of the layer of the largest, called ``peak``: mean, interval, some
        ``shares`` (the column of ``groups`` by the name that is shown) and how many facts have such a position."""
        by_group = {str(group): some for group, some in groups.groupby("group", sort=False)}
        means = np.stack([some[self.MEAN].to_numpy() for some in by_group.values()], axis=1)
        found = rows(
            "at",
            layers_column(means),
            Column(peak, "number", places=0),
            effect,
            Column("95% interval", left=False),
            *(Column(name, "percent") for name in shares or {}),
            Column("facts", "count"),
        )
        for group, some in by_group.items():
            most = some.loc[some[self.MEAN].idxmax()]
            low, high = 100 * most["low"], 100 * most["high"]
            interval = "–" if np.isnan(low) else f"{low:.1f} to {high:.1f}"
            found.add(
                group,
                some[self.MEAN].tolist(),
                int(most["layer"]),
                float(most[self.MEAN]),
                interval,
                *(float(most[column]) for column in (shares or {}).values()),
                int(most["n"]),
            )
        return found


def largest(found: pd.DataFrame, keys: Iterable[str], column: str) -> pd.DataFrame:
    """The row of the largest value of a column for each of some keys."""
    return found.loc[found.groupby(list(keys), sort=False)[column].idxmax()]


def layers_column(effects: np.ndarray) -> Column:
    """A column for effects by layer ``[n_layers, …]``, whose strongest colour is the largest of them."""
    limit = float(np.abs(effects).max()) or 1.0
    return Column(f"layers 0–{len(effects) - 1}", "heat", limit=limit, scale=f"{limit:.1%}", each="layer")
