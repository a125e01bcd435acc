"""``Traces``: many facts traced, averaged over where a token stands towards the subject."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ..arguments import public
from ..attribution import plain_records
from ..core.sheets import Column, Content, Facts, Origin, Sheet, Table, line, rows
from ..provenance import Provenance
from ..show.result import Result
from .trace import EFFECT, Trace, kind_in_words, layers_column

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GROUPS = ("first subject", "middle subject", "last subject", "first subsequent", "further", "last token")
WIDTH = 1.96  # of a 95% interval, in standard errors
REASONS = 3  # why facts were skipped
GROUP_COLUMNS = ("kind", "group", "layer", "mean", "low", "high", "n")


@public
@dataclass(frozen=True, eq=False, repr=False)
class Traces(Result):
    """Causal tracing of many facts. Made by :func:`ffnmem.trace_facts`.

    Attributes:
        traces: one :class:`Trace` a fact, in the order of the facts.
        skipped: one row for each fact that was not traced: fact, subject, reason.
        provenance: of all of them.
    """

    traces: tuple[Trace, ...]
    skipped: pd.DataFrame
    provenance: Provenance

    @cached_property
    def groups(self) -> pd.DataFrame:
        """Mean indirect effects by kind, group of positions and layer.

        Columns kind, group (``GROUPS``), layer, mean, low, high (the mean ± 1.96 standard errors over facts; NaN of a
        single fact), n (facts with such a position). A fact's positions in a group are averaged first, so that facts
        count alike.

        Source: Meng et al. 2022, section 2.2 and appendix B.2; the published program counts the only token of a
        subject and a last token that follows the subject in two groups, here they are in one.
        """
        found = []
        for kind in self.traces[0].kinds if self.traces else ():
            for group in GROUPS:
                rows = [
                    trace.indirect(kind)[:, places].mean(axis=1)
                    for trace in self.traces
                    if (places := positions_by_group(trace.subject, len(trace.tokens))[group])
                ]
                if rows:
                    found.append(averaged(np.stack(rows)).assign(kind=kind, group=group))
        if not found:
            return pd.DataFrame(columns=list(GROUP_COLUMNS))
        return pd.concat(found, ignore_index=True)[list(GROUP_COLUMNS)]

    @property
    def facts(self) -> pd.DataFrame:
        """One row a traced fact: fact, text, answer, clean, corrupted, total."""
        columns = ("fact", "text", "answer", "clean", "corrupted", "total")
        return pd.DataFrame([[getattr(trace, name) for name in columns] for trace in self.traces], columns=columns)

    def to_frame(self) -> pd.DataFrame:
        """A copy of ``groups``."""
        return self.groups.copy()

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON; the single maps are left out."""
        return {
            "groups": plain_records(self.groups),
            "facts": plain_records(self.facts),
            "skipped": plain_records(self.skipped),
            "provenance": self.provenance.as_dict(),
        }

    def plot(self, kind: str | None = None, axes: Sequence[Axes] | None = None) -> list[Axes]:
        """The averaged effects by group, as :func:`ffnmem.tracing_plots.plot_traces` draws them."""
        from ..tracing_plots import plot_traces

        return plot_traces(self, kind, axes)

    def __len__(self) -> int:
        return len(self.traces)

    def brief(self) -> dict[str, Any]:
        """As :meth:`to_dict`, with the best layer of each kind and group, and without the single facts."""
        found = {**self.to_dict(), "groups": plain_records(self.best), "facts": len(self)}
        return {**found, "skipped": plain_records(self.skipped.head(REASONS)), "all_skipped": len(self.skipped)}

    @property
    def best(self) -> pd.DataFrame:
        """The rows of ``groups`` with the largest mean effect of each kind and group."""
        found = self.groups
        return found.loc[found.groupby(["kind", "group"], sort=False)["mean"].idxmax()] if len(found) else found

    def summary(self) -> str:
        facts = self.facts
        means = (
            f", mean clean {facts['clean'].mean():.3f}, corrupted {facts['corrupted'].mean():.3f}"
            if self.traces
            else ""
        )
        return f"{len(self.traces)} facts, {len(self.skipped)} skipped{means}"

    def sheet(self) -> Sheet:
        """How many facts were traced, why some were not, and the mean effects of each kind and group."""
        heading: dict[str, Content] = {"traced": f"{len(self):,} facts, {len(self.skipped):,} skipped"}
        if len(self):
            clean, corrupted = (f"{float(self.facts[name].mean()):.1%}" for name in ("clean", "corrupted"))
            heading["answer"] = f"{clean} clean, {corrupted} with noise on the subject, on the mean"
        if len(self.skipped):
            heading["skipped"] = tuple(line(str(reason)) for reason in self.skipped["reason"].head(REASONS))
        maps = [self.map(str(kind), rows) for kind, rows in self.groups.groupby("kind", sort=False)]
        return Sheet.of(Facts(heading), *maps, Origin(self.provenance.as_dict()))

    def map(self, kind: str, groups: pd.DataFrame) -> Table:
        """Each group of positions with its mean effects by layer, the best layer and the interval there."""
        by_group = {str(group): some for group, some in groups.groupby("group", sort=False)}
        means = np.stack([some["mean"].to_numpy() for some in by_group.values()], axis=1)
        found = rows(
            "at",
            layers_column(means),
            Column("best", "number", places=0),
            EFFECT,
            Column("95% interval", left=False),
            Column("facts", "count"),
        )
        for group, some in by_group.items():
            best = some.loc[some["mean"].idxmax()]
            low, high = 100 * best["low"], 100 * best["high"]
            interval = "–" if np.isnan(low) else f"{low:.1f} to {high:.1f}"
            found.add(group, some["mean"].tolist(), int(best["layer"]), float(best["mean"]), interval, int(best["n"]))
        return found.table(kind_in_words(kind, self.traces[0].window))


def positions_by_group(subject: range, length: int) -> dict[str, list[int]]:
    """The positions of each group of a prompt of ``length`` tokens, each in one; those before the subject in none.

    A prompt's last token is that before anything else, and the only token of a subject its last.
    """
    last = length - 1
    inside, after = range(subject.start, min(subject.stop, last)), range(subject.stop, last)
    ends_inside = len(inside) < len(subject)
    before_last = inside if ends_inside else inside[:-1]
    return {
        "first subject": list(before_last[:1]),
        "middle subject": list(before_last[1:]),
        "last subject": [] if ends_inside else [subject[-1]],
        "first subsequent": list(after[:1]),
        "further": list(after[1:]),
        "last token": [last],
    }


def averaged(rows: np.ndarray) -> pd.DataFrame:
    """Mean and interval over facts of ``[facts, n_layers]``."""
    n = len(rows)
    mean = rows.mean(axis=0)
    error = rows.std(axis=0, ddof=1) / np.sqrt(n) if n > 1 else np.full_like(mean, np.nan)
    low, high = mean - WIDTH * error, mean + WIDTH * error
    return pd.DataFrame({"layer": np.arange(rows.shape[1]), "mean": mean, "low": low, "high": high, "n": n})
