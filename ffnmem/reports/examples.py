"""Places in the corpus as cards and pages show them, with the text around each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from ..core.sheets import Context
from ..scanning.contexts import Window


@dataclass(frozen=True, kw_only=True)
class Example(Context):
    """One place in the corpus. ``strength``: the share of the neuron's largest magnitude, 0 to 1. ``gate`` and
    ``linear``: of a gated neuron, its gate's pre-activation and its linear part there."""

    activation: float
    sequence: int
    position: int
    gate: float | None = None
    linear: float | None = None

    @property
    def parts(self) -> tuple[float, ...]:
        """Gate and linear part; nothing of a classic neuron."""
        return () if self.gate is None or self.linear is None else (self.gate, self.linear)


def example_list(rows: pd.DataFrame, windows: Sequence[Window], largest: float) -> list[Example]:
    """Rows with the columns activation, sequence and position, of gated neurons gate and linear too, each with its
    window; ``largest`` as the strongest."""
    columns = (rows[name].tolist() for name in ("activation", "sequence", "position"))
    nothing = [None] * len(rows)
    parts = (rows[name].tolist() if name in rows.columns else nothing for name in ("gate", "linear"))
    return [
        Example(
            activation=activation,
            strength=round(min(abs(activation) / (largest or 1.0), 1.0), 3),
            before="".join(window.tokens[: window.at]),
            token=window.tokens[window.at],
            after="".join(window.tokens[window.at + 1 :]),
            cut_before=window.cut_before,
            cut_after=window.cut_after,
            sequence=sequence,
            position=position,
            gate=gate,
            linear=linear,
        )
        for activation, sequence, position, gate, linear, window in zip(*columns, *parts, windows, strict=True)
    ]
