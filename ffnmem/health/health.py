"""``NeuronHealth``: what a corpus said about every neuron: firing, dead, stuck, saturated, and its gradient."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ..arguments import public
from ..attribution import plain_records
from ..core.sheets import Column, Origin, Sheet, Table, decimals, folded, rows
from ..errors import check_count
from ..provenance import Provenance
from ..show.result import Result
from ..token_text import printable
from .sums import SATURATED

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FLAGS = ("dead", "stuck", "saturated")
NOT_SHOWN = ("tolerance", "saturated", "batch_tokens", "corpus_hash")  # of the settings, in a sheet


@public
@dataclass(frozen=True, eq=False, repr=False)
class NeuronHealth(Result):
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

    def to_dict(self, top: int | None = None) -> dict[str, Any]:
        """Plain values, ready for JSON: of all neurons, or of the ``top`` at both ends, as ``extremes`` has them."""
        neurons = self.neurons if top is None else self.extremes(top)
        return {"layers": plain_records(self.layers), "neurons": plain_records(neurons), **self.about()}

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

    def summary(self) -> str:
        shares = ", ".join(f"{self.neurons[flag].mean():.1%} {flag}" for flag in FLAGS)
        return (
            f"{printable(self.provenance.model)}, {len(self.layers)} layers, "
            f"{len(self.neurons):,} neurons over {self.positions:,} positions: {shares}"
        )

    def sheet(self, top: int = 5) -> Sheet:
        """Each layer, and the ``top`` neurons at both ends."""
        origin = {name: value for name, value in self.provenance.as_dict().items() if name not in NOT_SHOWN}
        layers = folded(self.layers.to_dict("records"), "layers", "all columns")
        return Sheet.of(self.layer_table(), self.neuron_table(top), layers, Origin(origin))

    def layer_table(self) -> Table:
        """A row a layer."""
        shown = rows(
            Column("layer", "count"),
            Column("neurons", "count"),
            *(Column(name, "percent") for name in ("fires", *FLAGS)),
            Column("act'", "number", places=3, sign=True),
            *((Column("dL/dpre", "number", digits=3), Column("half", "percent")) if self.flow else ()),
        )
        names = ("layer", "neurons", "fires", *FLAGS, "local_gradient")
        for row in self.layers.to_dict("records"):
            shown.add(*(row[name] for name in (*names, *(("flow_pre", "half_flow") if self.flow else ()))))
        loss = "" if self.loss is None else f", loss {self.loss:.3f} nats"
        flow = "; half: neurons that carry half of dL/dpre" if self.flow else ""
        return shown.table(
            f"{len(self.neurons):,} neurons ({self.activation}) over {self.positions:,} positions{loss}",
            caption=f"fires, act': means over neurons; dead, stuck, saturated: shares of neurons{flow}",
        )

    def neuron_table(self, top: int = 5) -> Table:
        """The neurons at both ends."""
        found = self.extremes(top).to_dict("records")
        places = decimals((row["flow_pre"] for row in found), 3) + 1 if self.flow else 0
        shown = rows(
            "ends",
            Column("neuron", "neuron", left=False),
            *(Column(name, "percent") for name in ("fires", "flat", "linear")),
            Column("act'", "number", places=3, sign=True),
            *((Column("dL/dpre", "number", places=places),) if self.flow else ()),
            Column("is", wraps=True),
        )
        previous = None
        for row in found:
            first, previous = row["kind"] != previous, row["kind"]
            shown.add(
                previous if first else "",
                (row["layer"], row["neuron"]),
                *(row[name] for name in ("fires", "flat", "linear", "local_gradient")),
                *((row["flow_pre"],) if self.flow else ()),
                ", ".join(flags_of(row)),
            )
        return shown.table()


def flags_of(row: Mapping[Any, Any]) -> list[str]:
    """What a neuron is; that a stuck one is saturated too goes without saying."""
    return [flag for flag in FLAGS if row[flag] and not (flag == "saturated" and row["stuck"])]


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
