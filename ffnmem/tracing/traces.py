"""``Trace`` and ``Traces``: how much of an answer comes back when a clean output is restored, fact by fact."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from ..core.errors import check_choice, counted
from ..core.number_text import format_probability
from ..core.provenance import Provenance
from ..core.sheets import Column, Line, Sheet
from ..core.types import Seed, checked
from .maps import FactMaps, PromptMaps

if TYPE_CHECKING:
    pass


# `Trace`: how much of an answer comes back when a clean output is restored at one layer and token.

NAMES = {
    "state": "state",
    "ffn": "FFN",
    "attention": "attention",
    "severed_ffn": "state, FFN severed",
    "severed_attention": "state, attention severed",
    "edges": "edges to the last token",
}
OF_WINDOWS = {"ffn": "of", "attention": "of", "edges": "in"}


@checked
@dataclass(frozen=True, eq=False, repr=False)
class Trace(PromptMaps):
    """Causal tracing of one fact. Made by :func:`ffnmem.trace_fact`.

    Attributes:
        scores: by kind ``[n_layers, pos]``, the mean probability of the answer over the corrupted runs when the clean
            output is restored at that layer and position. Before the subject nothing is corrupted, so there the score
            is that of the corrupted runs.
        clean: the answer's probability in the clean run; samples: in each corrupted run.
        answer, answer_ids: what the model says, of which all this is the probability: its text and tokens.
        text: the prompt; tokens: its tokens; subject: the positions of the subject's.
        fact: the fact's id, or the prompt where it has none.
        window: how many layers a cell of ``"ffn"`` and ``"attention"`` restores.
        noise: the standard deviation of the noise.
        seed: as given.
    """

    in_json = "fact text tokens subject answer answer_ids clean corrupted samples window noise seed scores largest"
    not_brief = "scores samples"
    in_repr = "text answer clean corrupted samples kinds"
    KEYS = ("kind", "position")
    EFFECT, PEAK, SHOWN = "indirect", "best", Column("effect", "percent", sign=True)

    scores: dict[str, np.ndarray]
    clean: float
    samples: np.ndarray
    answer: str
    answer_ids: tuple[int, ...]
    text: str
    tokens: tuple[str, ...]
    subject: range
    fact: str
    window: int
    noise: float
    seed: Seed
    provenance: Provenance

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
        places = {"position": np.arange(len(self.tokens)), "token": np.array(self.tokens, dtype=object)}
        return self.cells(places, lambda kind: {"indirect": self.indirect(kind)})

    effects = indirect

    @property
    def labels(self) -> list[Line]:
        """Each token."""
        return [self.label_token(position) for position in range(len(self.tokens))]

    def sheet(self) -> Sheet:
        """The prompt, the answer and what noise leaves of it, and a map of each kind, a row a token."""
        source = dict(self.provenance.settings).get("noise_from")
        noise = (
            f"standard deviation {self.noise:.3g}{f' ({source})' if source else ''}, "
            f"{counted(len(self.samples), 'sample')}, seed {self.seed}"
        )
        said = f", {format_probability(self.corrupted)} with noise on the subject (*)"
        return self.map_sheet(said, {"noise": noise}, lambda kind: kind_in_words(kind, self.window))


def kind_in_words(kind: str, window: int) -> str:
    """A kind with its window where it has one: "FFN of 3 layers"."""
    if kind not in OF_WINDOWS:
        return NAMES[kind]
    return f"{NAMES[kind]} {OF_WINDOWS[kind]} {window if window > 1 else 'one'} layer{'s' * (window > 1)}"


# `Traces`: many facts traced, averaged over where a token stands towards the subject.

GROUPS = ("first subject", "middle subject", "last subject", "first subsequent", "further", "last token")
WIDTH = 1.96  # of a 95% interval, in standard errors
GROUP_COLUMNS = ("kind", "group", "layer", "mean", "low", "high", "n")


@checked
@dataclass(frozen=True, eq=False, repr=False)
class Traces(FactMaps):
    """Causal tracing of many facts. Made by :func:`ffnmem.tracing.trace_facts`.

    Attributes:
        traces: one :class:`Trace` a fact, in the order of the facts.
        skipped: one row for each fact that was not traced: fact, subject, reason.
        provenance: of all of them.
    """

    MEAN = "mean"
    OF_FACT = ("fact", "text", "answer", "clean", "corrupted", "total")

    traces: tuple[Trace, ...]
    skipped: pd.DataFrame
    provenance: Provenance

    @property
    def of_facts(self) -> tuple[Trace, ...]:
        return self.traces

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

    def sheet(self) -> Sheet:
        """How many facts were traced, why some were not, and the mean effects of each kind and group."""
        more = {}
        if len(self):
            clean, corrupted = (f"{float(self.facts[name].mean()):.1%}" for name in ("clean", "corrupted"))
            more["answer"] = f"{clean} clean, {corrupted} with noise on the subject, on the mean"
        return self.map_sheet("traced", more, lambda kind: kind_in_words(kind, self.traces[0].window))


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
