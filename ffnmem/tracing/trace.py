"""``Trace``: how much of an answer comes back when a clean output is restored at one layer and token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ..arguments import public
from ..errors import check_choice
from ..provenance import Provenance

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RECORDED = ("model", "fingerprint", "dtype", "device", "prepend_bos", "ffnmem")


@public
@dataclass(frozen=True, eq=False)
class Trace:
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

    def __repr__(self) -> str:
        return (
            f"Trace({self.text!r} {self.answer!r}, clean {self.clean:.3f}, corrupted {self.corrupted:.3f}, "
            f"{len(self.samples)} samples, {', '.join(self.kinds)})"
        )

    def _repr_html_(self) -> str:
        from .display import trace_html

        return trace_html(self)
