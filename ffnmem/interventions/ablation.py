"""``Ablation``: what the removal of each of some neurons does to an answer, beside what attribution says it does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd

from ..arguments import public
from ..attribution import plain_records
from ..provenance import Provenance

COLUMNS = ("layer", "neuron", "coefficient", "direct", "logit", "probability", "loss", "peak_position", "peak")


@public
@dataclass(frozen=True, eq=False)
class Ablation:
    """Direct and total effects of single neurons on one answer. Made by :func:`ffnmem.ablate`.

    Effects are what the neuron adds: clean minus ablated, so that a positive one says that without the neuron the
    answer would be less likely; the loss likewise is ablated minus clean, what the neuron saves.

    Attributes:
        neurons: one row a neuron, largest \\|logit\\| first: ``layer``, ``neuron``, ``coefficient`` (at the answer's
            position), ``direct`` (what it adds to the logit by itself, all else frozen), ``logit`` (what it adds in
            all, through every later layer and position), ``probability``, ``loss`` (in nats), ``peak_position`` and
            ``peak``: where among the tokens at which it was removed its coefficient is largest, and that coefficient. A
            neuron that writes at the subject for attention to read does not fire at the answer.
        logit, probability, loss: of the target in the clean pass; the logit minus the foil's if there is one.
        target, target_id, foil, foil_id: tokens, as text and as ids.
        position: where the answer is read; positions: where neurons were removed, None for every one of the prompt.
        how: what they became.
        tokens: the prompt's tokens.
    """

    neurons: pd.DataFrame
    logit: float
    probability: float
    loss: float
    target: str
    target_id: int
    foil: str | None
    foil_id: int | None
    position: int
    positions: tuple[int, ...] | None
    how: str
    tokens: tuple[str, ...]
    provenance: Provenance

    @property
    def spearman(self) -> float:
        """Rank correlation between direct and total effect on the logit; NaN where either is the same for all."""
        from scipy import stats

        direct, total = self.neurons["direct"], self.neurons["logit"]
        if len(self.neurons) < 2 or direct.nunique() < 2 or total.nunique() < 2:
            return float("nan")
        return float(stats.spearmanr(direct, total).statistic)

    @property
    def opposite(self) -> int:
        """How many neurons have a direct effect of the other sign than their total one: there attribution misleads."""
        return int((self.neurons["direct"] * self.neurons["logit"] < 0).sum())

    def to_frame(self) -> pd.DataFrame:
        """A copy of ``neurons``."""
        return self.neurons.copy()

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        spearman = self.spearman
        return {
            "prompt_tokens": list(self.tokens),
            "position": self.position,
            "target": self.target,
            "foil": self.foil,
            "logit": self.logit,
            "probability": self.probability,
            "loss": self.loss,
            "how": self.how,
            "positions": None if self.positions is None else list(self.positions),
            "spearman": spearman if spearman == spearman else None,
            "opposite": self.opposite,
            "neurons": plain_records(self.neurons),
            "provenance": self.provenance.as_dict(),
        }

    def __repr__(self) -> str:
        against = "" if self.foil is None else f" against {self.foil!r}"
        return (
            f"Ablation({len(self.neurons)} neurons {self.how}, of {self.target!r}{against}, logit {self.logit:.3f}, "
            f"Spearman of direct and total {self.spearman:.2f})"
        )

    def _repr_html_(self) -> str:
        from ..reports.interventions import ablation_html

        return ablation_html(self)
