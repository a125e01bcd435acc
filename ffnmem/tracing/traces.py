"""``Trace`` and ``Traces``: how much of an answer comes back when a clean output is restored, fact by fact."""

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
from ..core.sheets import Column, Content, Facts, Line, Origin, Rows, Sheet, Span, Table, line, of_chance, rows, token
from ..prompts.attribution import plain_records
from ..show.result import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes


# `Trace`: how much of an answer comes back when a clean output is restored at one layer and token.

NAMES = {
    "state": "state",
    "ffn": "FFN",
    "attention": "attention",
    "severed_ffn": "state, FFN severed",
    "severed_attention": "state, attention severed",
}
RECORDED = ("model", "fingerprint", "dtype", "device", "prepend_bos", "ffnmem")


@public
@dataclass(frozen=True, eq=False, repr=False)
class Trace(Result):
    """Causal tracing of one fact. Made by :func:`ffnmem.trace_fact`.

    Attributes:
        scores: by kind ``[n_layers, pos]``, the mean probability of the answer over the corrupted runs when the clean
            output is restored at that layer and position. Before the subject nothing is corrupted, so there the score
            is that of the corrupted runs.
        clean: the answer's probability in the clean run; samples: in each corrupted run.
        answer, answer_id: the model's likeliest token, of which all this is the probability.
        text: the prompt; tokens: its tokens; subject: the positions of the subject's.
        fact: the fact's id, or the prompt where it has none.
        window: how many layers a cell of ``"ffn"`` and ``"attention"`` restores.
        noise: the standard deviation of the noise.
        seed: as given.
    """

    scores: dict[str, np.ndarray]
    clean: float
    samples: np.ndarray
    answer: str
    answer_id: int
    text: str
    tokens: tuple[str, ...]
    subject: range
    fact: str
    window: int
    noise: float
    seed: int
    provenance: Provenance

    @property
    def kinds(self) -> tuple[str, ...]:
        """What was restored."""
        return tuple(self.scores)

    @property
    def n_layers(self) -> int:
        return next(iter(self.scores.values())).shape[0]

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

    def to_frame(self) -> pd.DataFrame:
        """One row a cell: kind, layer, position, token, score, indirect."""
        n_layers, length = self.n_layers, len(self.tokens)
        frames = [
            pd.DataFrame(
                {
                    "kind": kind,
                    "layer": np.repeat(np.arange(n_layers), length),
                    "position": np.tile(np.arange(length), n_layers),
                    "token": np.tile(np.array(self.tokens, dtype=object), n_layers),
                    "score": scores.ravel(),
                    "indirect": self.indirect(kind).ravel(),
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
            "corrupted": self.corrupted,
            "samples": self.samples.tolist(),
            "window": self.window,
            "noise": self.noise,
            "seed": self.seed,
            "scores": {kind: scores.tolist() for kind, scores in self.scores.items()},
            "provenance": self.provenance.to_dict(),
        }

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> Trace:
        """The trace of such a record."""
        recorded = dict(record["provenance"])
        own = {name: recorded.pop(name, None) for name in RECORDED}
        version = own.pop("ffnmem")
        shape = (-1, len(record["tokens"]))
        return cls(
            scores={k: np.array(v, dtype=np.float64).reshape(shape) for k, v in record["scores"].items()},
            clean=record["clean"],
            samples=np.array(record["samples"], dtype=np.float64),
            tokens=tuple(record["tokens"]),
            subject=range(*record["subject"]),
            provenance=Provenance(**own, version=version, settings=tuple(recorded.items())),
            **{k: record[k] for k in ("answer", "answer_id", "text", "fact", "window", "noise", "seed")},
        )

    def plot(self, kind: str | None = None, axes: Sequence[Axes] | None = None) -> list[Axes]:
        """Heat maps, as :func:`ffnmem.plots.tracing.trace` draws them."""
        trace = picture("trace")

        return trace(self, kind, axes)

    def brief(self) -> dict[str, Any]:
        """As :meth:`to_dict`, with the best layer of each kind and token in place of the scores of all layers."""
        found = {name: value for name, value in self.to_dict().items() if name not in ("scores", "samples")}
        best = self.to_frame()
        best = best.loc[best.groupby(["kind", "position"], sort=False)["indirect"].idxmax()]
        return {**found, "best": best.to_dict("records")}

    def summary(self) -> str:
        return (
            f"{self.text!r} {self.answer!r}, clean {self.clean:.3f}, corrupted {self.corrupted:.3f}, "
            f"{counted(len(self.samples), 'sample')}, {', '.join(self.kinds)}"
        )

    def sheet(self) -> Sheet:
        """The prompt, the answer and what noise leaves of it, and a map of each kind, a row a token."""
        source = dict(self.provenance.settings).get("noise_from")
        taken = f" ({source})" if source else ""
        said = f"   {of_chance(self.clean)} clean, {of_chance(self.corrupted)} with noise on the subject (*)"
        heading: dict[str, Content] = {
            "prompt": self.text,
            "answer": line(token(self.answer, "strong"), said),
            "noise": f"standard deviation {self.noise:.3g}{taken}, "
            f"{counted(len(self.samples), 'sample')}, seed {self.seed}",
        }
        maps = [self.map(kind).table(kind_in_words(kind, self.window)) for kind in self.kinds]
        return Sheet.of(Facts(heading), *maps, Origin(self.provenance.to_dict()))

    def map(self, kind: str) -> Rows:
        """Each token with its indirect effects by layer, the layer that brings back most, and how much that is."""
        effects = self.indirect(kind)
        found = rows("token", layers_column(effects), Column("best layer", "number", places=0), EFFECT)
        for position in range(len(self.tokens)):
            column = effects[:, position]
            best = int(column.argmax())
            found.add(
                self.label(position),
                column.tolist(),
                *((best, float(column[best])) if bool(np.abs(column).max() > 0) else ()),
            )
        return found

    def label(self, position: int) -> Line:
        """A token, with a star where it is of the subject."""
        bos = position == 0 and self.provenance.prepend_bos
        shown = Span("BOS", "special") if bos else token(self.tokens[position], limit=16)
        return line(shown, "*") if position in self.subject else line(shown)


EFFECT = Column("effect", "change")


def layers_column(effects: np.ndarray) -> Column:
    """A column for effects by layer ``[n_layers, …]``, whose strongest colour is the largest of them."""
    limit = float(np.abs(effects).max()) or 1.0
    return Column(f"layers 0–{len(effects) - 1}", "heat", limit=limit, scale=f"{limit:.1%}", each="layer")


def kind_in_words(kind: str, window: int) -> str:
    """A kind with its window where it has one: "FFN of 3 layers"."""
    if kind not in ("ffn", "attention"):
        return NAMES[kind]
    return f"{NAMES[kind]} of {window} layers" if window > 1 else f"{NAMES[kind]} of one layer"


# `Traces`: many facts traced, averaged over where a token stands towards the subject.

GROUPS = ("first subject", "middle subject", "last subject", "first subsequent", "further", "last token")
WIDTH = 1.96  # of a 95% interval, in standard errors
REASONS = 3  # why facts were skipped
GROUP_COLUMNS = ("kind", "group", "layer", "mean", "low", "high", "n")


@public
@dataclass(frozen=True, eq=False, repr=False)
class Traces(Result):
    """Causal tracing of many facts. Made by :func:`ffnmem.tracing.trace_facts`.

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
            "provenance": self.provenance.to_dict(),
        }

    def plot(self, kind: str | None = None, axes: Sequence[Axes] | None = None) -> list[Axes]:
        """The averaged effects by group, as :func:`ffnmem.plots.tracing.traces` draws them."""
        traces = picture("traces")

        return traces(self, kind, axes)

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
        return f"{counted(len(self.traces), 'fact')}, {len(self.skipped)} skipped{means}"

    def sheet(self) -> Sheet:
        """How many facts were traced, why some were not, and the mean effects of each kind and group."""
        heading: dict[str, Content] = {"traced": f"{counted(len(self), 'fact')}, {len(self.skipped):,} skipped"}
        if len(self):
            clean, corrupted = (f"{float(self.facts[name].mean()):.1%}" for name in ("clean", "corrupted"))
            heading["answer"] = f"{clean} clean, {corrupted} with noise on the subject, on the mean"
        if len(self.skipped):
            heading["skipped"] = tuple(line(str(reason)) for reason in self.skipped["reason"].head(REASONS))
        maps = [self.map(str(kind), rows) for kind, rows in self.groups.groupby("kind", sort=False)]
        return Sheet.of(Facts(heading), *maps, Origin(self.provenance.to_dict()))

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
