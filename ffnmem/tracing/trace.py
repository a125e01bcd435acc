"""``Trace``: how much of an answer comes back when a clean output is restored at one layer and token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ..arguments import public
from ..core.sheets import Column, Content, Facts, Line, Origin, Rows, Sheet, Span, line, of_chance, rows, token
from ..errors import check_choice
from ..provenance import Provenance
from ..show.result import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
            "provenance": self.provenance.as_dict(),
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
        """Heat maps, as :func:`ffnmem.tracing_plots.plot_trace` draws them."""
        from ..tracing_plots import plot_trace

        return plot_trace(self, kind, axes)

    def brief(self) -> dict[str, Any]:
        """As :meth:`to_dict`, with the best layer of each kind and token in place of the scores of all layers."""
        found = {name: value for name, value in self.to_dict().items() if name not in ("scores", "samples")}
        best = self.to_frame()
        best = best.loc[best.groupby(["kind", "position"], sort=False)["indirect"].idxmax()]
        return {**found, "best": best.to_dict("records")}

    def summary(self) -> str:
        return (
            f"{self.text!r} {self.answer!r}, clean {self.clean:.3f}, corrupted {self.corrupted:.3f}, "
            f"{len(self.samples)} samples, {', '.join(self.kinds)}"
        )

    def sheet(self) -> Sheet:
        """The prompt, the answer and what noise leaves of it, and a map of each kind, a row a token."""
        source = dict(self.provenance.settings).get("noise_from")
        taken = f" ({source})" if source else ""
        said = f"   {of_chance(self.clean)} clean, {of_chance(self.corrupted)} with noise on the subject (*)"
        heading: dict[str, Content] = {
            "prompt": self.text,
            "answer": line(token(self.answer, "strong"), said),
            "noise": f"standard deviation {self.noise:.3g}{taken}, {len(self.samples)} samples, seed {self.seed}",
        }
        maps = [self.map(kind).table(kind_in_words(kind, self.window)) for kind in self.kinds]
        return Sheet.of(Facts(heading), *maps, Origin(self.provenance.as_dict()))

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
