"""``Ablation``: what the removal of each of some neurons does to an answer, beside what attribution says it does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from ..arguments import public
from ..attribution import plain_records
from ..core.sheets import (
    Column,
    Content,
    Facts,
    Origin,
    Prompt,
    Sheet,
    Span,
    Table,
    decimals,
    line,
    of_chance,
    of_negatives,
    place,
    rows,
    token,
    tokens,
)
from ..provenance import Provenance
from ..show.result import Result

COLUMNS = ("layer", "neuron", "coefficient", "direct", "logit", "probability", "loss", "peak_position", "peak")


@public
@dataclass(frozen=True, eq=False, repr=False)
class Ablation(Result):
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

    def summary(self) -> str:
        against = "" if self.foil is None else f" against {self.foil!r}"
        return (
            f"{len(self.neurons)} neurons {self.how}, of {self.target!r}{against}, logit {self.logit:.3f}, "
            f"Spearman of direct and total {self.spearman:.2f}"
        )

    def sheet(
        self,
        top: int | None = 20,
        *,
        promoted: Mapping[tuple[int, int], Sequence[str]] | None = None,
        attributed: pd.DataFrame | None = None,
    ) -> Sheet:
        """The answer, how far direct and total effects agree, and both of each neuron.

        Args:
            top: how many neurons; None for all.
            promoted: adds the tokens that each neuron's value promotes, by (layer, neuron).
            attributed: ``neurons`` with a column ``attribution``, which stands in for the loss: both would leave no
                room for tokens.
        """
        strong = token(self.target, "strong")
        facts: dict[str, Content] = {
            "prompt": Prompt(self.tokens, self.position, bool(self.provenance.prepend_bos)),
            "after": place(self.tokens, self.position),
            "target": line(strong, f"   {of_chance(self.probability)}, loss {self.loss:.4g}"),
        }
        if self.foil is not None:
            facts["foil"] = token(self.foil, "strong")
        facts["logit"] = f"{self.logit:.3f}" + ("" if self.foil is None else ", the target's minus the foil's")
        where = "at every position" if self.positions is None else f"at position {', '.join(map(str, self.positions))}"
        facts["removed"] = f"{len(self.neurons):,} neurons, one at a time: {self.how} {where}"
        facts["agree"] = self.agreement()
        whole = self.neurons if attributed is None else attributed
        table = self.effect_table(whole if top is None else whole.head(top), promoted)
        basis = {} if promoted is None else {"basis": "folded"}
        return Sheet.of(Facts(facts), table, Origin({**self.provenance.as_dict(), **basis}))

    def agreement(self) -> str:
        """How far attribution says what ablation finds."""
        rank = self.spearman
        known = "" if rank != rank else f"Spearman {rank:.2f} between direct and total effects; "
        return f"{known}{self.opposite:,} of {len(self.neurons):,} have opposite signs"

    def effect_table(
        self, shown: pd.DataFrame, promoted: Mapping[tuple[int, int], Sequence[str]] | None = None
    ) -> Table:
        """One row a neuron: the effects, and the tokens that its value promotes."""
        last = "attribution" if "attribution" in shown else "loss"
        logits = decimals([*shown["direct"], *shown["logit"]])
        table = rows(
            Column("neuron", "neuron"),
            Column("coefficient", "number"),
            Column("at", "count"),
            Column("direct", "number", places=logits, sign=True, colour=True, bars=True),
            Column("total", "number", places=logits, sign=True, colour=True, bars=True),
            Column("probability", left=False),
            Column(last, "number", sign=True),
            *([] if promoted is None else [Column("value promotes", wraps=True)]),
        )
        named = [self.target, *([] if self.foil is None else [self.foil])]
        for row in shown.to_dict("records"):
            at = (row["layer"], row["neuron"])
            numbers = (row["peak"], row["peak_position"], row["direct"], row["logit"])
            beside = [] if promoted is None else [tokens(promoted[at], named)]
            table.add(at, *numbers, of_change(row["probability"]), row[last], *beside)
        notes = ["coefficient: the largest of the text's tokens where the neuron was removed, at that position"]
        more = of_negatives(shown["peak"])
        left = len(self.neurons) - len(shown)
        notes += [more] if more else []
        return table.table(caption="; ".join([*notes, *([f"{left:,} more in .neurons"] if left else [])]))


def of_change(value: float) -> Span:
    """A difference of probabilities in percent, with its sign; one that rounds to nothing has none."""
    shown = f"{value:z.1%}"
    if shown == f"{0.0:z.1%}":
        return Span(shown, "soft")
    return Span(f"+{shown}" if value > 0 else shown, "adds" if value > 0 else "takes")
