"""What is added up over positions for each neuron of a layer, and the table that comes of it."""

from __future__ import annotations

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..ffn.activations import Activation
from ..models.norms import at_least_float32

TOLERANCE = 0.01
"""A neuron is flat at a position where |act′| is below this, and linear where |act′ − 1| is."""

SATURATED = 0.99
"""The share of positions in one regime, flat or linear, from which on a neuron is saturated."""


class LayerSums:
    """Counts and float64 sums over positions, for each neuron of one layer; as large as the layer is wide.

    Args:
        activation: of the layer. d_mlp: its width. gated: whether coefficients are act(pre)·linear.
        device: where the sums lie.
    """

    def __init__(self, activation: Activation, d_mlp: int, gated: bool, device: torch.device) -> None:
        self.activation, self.gated = activation, gated
        self.n = self.n_flow = 0
        self.fires, self.above, self.flat, self.linear = (
            torch.zeros(d_mlp, dtype=torch.int64, device=device) for _ in range(4)
        )
        self.slope, self.abs_m, self.abs_pre, self.square_m, self.square_pre = (
            torch.zeros(d_mlp, dtype=torch.float64, device=device) for _ in range(5)
        )

    def add(self, pre: Float[Tensor, "n d_mlp"], coefficients: Float[Tensor, "n d_mlp"]) -> Float[Tensor, "n d_mlp"]:
        """Count positions; returns act′(pre), in at least float32."""
        slope = self.activation.gradient(at_least_float32(pre))
        self.n += len(pre)
        self.fires += (pre > 0).sum(0)
        self.above += (coefficients > 0).sum(0)
        self.flat += (slope.abs() < TOLERANCE).sum(0)
        self.linear += ((slope - 1).abs() < TOLERANCE).sum(0)
        self.slope += slope.sum(0, dtype=torch.float64)
        return slope

    def add_flow(self, gradient: Float[Tensor, "n d_mlp"], slope: Float[Tensor, "n d_mlp"]) -> None:
        """Add ∂L/∂m of some positions, and with it ∂L/∂pre = ∂L/∂m · ∂m/∂pre.

        Args:
            gradient: ∂L/∂m. slope: ∂m/∂pre, which is act′(pre), of gated FFNs act′(pre)·linear.
        """
        self.n_flow += len(gradient)
        gradient = at_least_float32(gradient)
        for by, absolute, square in (
            (gradient, self.abs_m, self.square_m),
            (gradient * slope, self.abs_pre, self.square_pre),
        ):
            by = by.abs()
            absolute += by.sum(0, dtype=torch.float64)
            square += by.square_().sum(0, dtype=torch.float64)

    @property
    def finite(self) -> bool:
        """False where a NaN or an infinity has come in."""
        return bool((self.slope + self.square_m + self.square_pre).isfinite().all())

    def frame(self, layer: int, flow: bool) -> pd.DataFrame:
        """A row a neuron; :func:`ffnmem.health.neuron_health` says what the columns mean."""
        share = {name: of(count, self.n) for name, count in self.counts().items()}
        columns = {
            "layer": layer,
            "neuron": range(len(self.fires)),
            "fires": share["fires"],
            "dead": share["fires" if self.gated else "above"] == 0,
            "local_gradient": of(self.slope, self.n),
            "flat": share["flat"],
            "linear": share["linear"],
            "stuck": share["flat"] == 1,
            "saturated": (share["flat"] >= SATURATED) | (share["linear"] >= SATURATED),
        }
        if flow:
            columns |= {
                "flow_coefficient": of(self.abs_m, self.n_flow),
                "flow_pre": of(self.abs_pre, self.n_flow),
                "flow_coefficient_rms": of(self.square_m, self.n_flow) ** 0.5,
                "flow_pre_rms": of(self.square_pre, self.n_flow) ** 0.5,
            }
        return pd.DataFrame({k: v.cpu().numpy() if isinstance(v, Tensor) else v for k, v in columns.items()})

    def counts(self) -> dict[str, Int[Tensor, " d_mlp"]]:
        return {"fires": self.fires, "above": self.above, "flat": self.flat, "linear": self.linear}


def of(total: Tensor, n: int) -> Float[Tensor, " d_mlp"]:
    """A mean over positions."""
    return total.double() / n
