"""``NeuronHealth``: what a corpus said about every neuron: firing, dead, stuck, saturated, and its gradient."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ..arguments import public
from ..attribution import plain_records
from ..errors import check_count
from ..provenance import Provenance
from ..token_text import printable
from .sums import SATURATED

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FLAGS = ("dead", "stuck", "saturated")


@public
@dataclass(frozen=True, eq=False)
class NeuronHealth:
    """The health of every neuron over a corpus. Made by :func:`neuron_health`, which says what the columns mean.

    Attributes:
        neurons: one row a neuron.
        layers: one row a layer: ``layer``, ``neurons``, ``fires`` (mean over neurons), ``dead``, ``stuck``,
            ``saturated`` (shares of its neurons), ``saturated_linear`` (the share that is linear rather than flat at
            99% of positions), ``local_gradient`` (mean); with flow also ``flow_coefficient`` and ``flow_pre`` (means),
            and ``half_flow``: the smallest share of the layer's neurons that carries half of its ``flow_pre``.
        activation: of the layers, by its name in :mod:`ffnmem.ffn`.
        positions: counted, BOS, pads and special tokens left out.
        flow_positions: those of them that a scored prediction follows; 0 without flow.
        loss: the mean next-token loss in nats; None without flow.
        provenance: model, numeric type and settings.
    """

    neurons: pd.DataFrame
    layers: pd.DataFrame
    activation: str
    positions: int
    flow_positions: int
    loss: float | None
    provenance: Provenance

    @property
    def flow(self) -> bool:
        """Whether the way back was run."""
        return "flow_pre" in self.neurons

    def extremes(self, top: int = 5) -> pd.DataFrame:
        """The neurons at both ends, with a column ``kind`` in front.

        With flow "most gradient" and "least gradient", by ``flow_pre``; else "most flat" and "most linear". Ties go by
        layer and neuron. Raises InputError for ``top`` below 1.
        """
        check_count("top", top)
        ends = [("most gradient", "flow_pre", False), ("least gradient", "flow_pre", True)]
        if not self.flow:
            ends = [("most flat", "flat", False), ("most linear", "linear", False)]
        rows = [
            self.neurons.sort_values(column, ascending=rising, kind="stable").head(top).assign(kind=kind)
            for kind, column, rising in ends
        ]
        return pd.concat(rows, ignore_index=True)[["kind", *self.neurons.columns]]

    def to_frame(self) -> pd.DataFrame:
        """The rows by neuron."""
        return self.neurons.copy()

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        tables = {"layers": plain_records(self.layers), "neurons": plain_records(self.neurons)}
        return {**tables, **self.about()}

    def about(self) -> dict[str, Any]:
        """All but the tables, as plain values."""
        return {
            "activation": self.activation,
            "positions": self.positions,
            "flow_positions": self.flow_positions,
            "loss": self.loss,
            "provenance": self.provenance.as_dict(),
        }

    def plot(self, what: str = "shares", ax: Axes | None = None) -> Axes:
        """Shares of neurons by layer, or their gradient, as :func:`ffnmem.health_plots.plot_health` draws them."""
        from ..health_plots import plot_health

        return plot_health(self, what, ax)

    def __repr__(self) -> str:
        shares = ", ".join(f"{self.neurons[flag].mean():.1%} {flag}" for flag in FLAGS)
        return (
            f"NeuronHealth({printable(self.provenance.model)}, {len(self.layers)} layers, "
            f"{len(self.neurons):,} neurons over {self.positions:,} positions: {shares})"
        )

    def _repr_html_(self) -> str:
        from .display import health_html

        return health_html(self)


def layer_rows(neurons: pd.DataFrame) -> pd.DataFrame:
    """The summary by layer of a table of neurons."""
    rows = []
    for layer, frame in neurons.groupby("layer"):
        row: dict[str, Any] = {"layer": layer, "neurons": len(frame), "fires": frame["fires"].mean()}
        row |= {flag: frame[flag].mean() for flag in FLAGS}
        row["saturated_linear"] = (frame["linear"] >= SATURATED).mean()
        row["local_gradient"] = frame["local_gradient"].mean()
        if "flow_pre" in frame:
            row |= {name: frame[name].mean() for name in ("flow_coefficient", "flow_pre")}
            row["half_flow"] = half_share(frame["flow_pre"].to_numpy())
        rows.append(row)
    return pd.DataFrame(rows)


def half_share(values: np.ndarray) -> float:
    """The smallest share of some values (none negative) that adds up to half of their sum; NaN where that is 0."""
    total = float(values.sum())
    if not total > 0:
        return math.nan
    running = np.cumsum(np.sort(values)[::-1])
    return float((int(np.searchsorted(running, 0.5 * total)) + 1) / len(values))
