"""One FFN of a model as keys and values, in one orientation whatever the weights' own."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor, nn


def oriented(module: nn.Module) -> Float[Tensor, "d_in d_out"]:
    """The live weight of a projection as ``[d_in, d_out]``: Conv1D stores it so, Linear stores its transpose."""
    weight = module.weight
    assert isinstance(weight, Tensor)
    return weight.T if isinstance(module, nn.Linear) else weight


@dataclass(frozen=True)
class FFN:
    """The key-value memory view of one layer: FFN(x) = Σᵢ act(kᵢ·x + bᵢ)·vᵢ + b_out (Geva et al. 2021, eq. 2).

    Every tensor is a view of the live parameter: what is written into it changes the model.
    """

    layer: int
    project_in: nn.Module
    project_out: nn.Module
    activation: str
    gated: bool = False

    @property
    def keys(self) -> Float[Tensor, "d_mlp d_model"]:
        """Row i is neuron i's key: what its input is compared with."""
        return oriented(self.project_in).T

    @property
    def gates(self) -> Float[Tensor, "d_mlp d_model"] | None:
        """The gate keys of a gated FFN; None for a classic one."""
        return None

    @property
    def key_bias(self) -> Float[Tensor, " d_mlp"] | None:
        bias = self.project_in.bias
        return bias if isinstance(bias, Tensor) else None

    @property
    def values(self) -> Float[Tensor, "d_mlp d_model"]:
        """Row i is neuron i's value: what it writes into the residual stream, times its coefficient."""
        return oriented(self.project_out)

    @property
    def value_bias(self) -> Float[Tensor, " d_model"] | None:
        bias = self.project_out.bias
        return bias if isinstance(bias, Tensor) else None

    @property
    def d_mlp(self) -> int:
        return int(self.values.shape[0])

    @property
    def d_model(self) -> int:
        return int(self.values.shape[1])

    def __repr__(self) -> str:
        return f"FFN(layer={self.layer}, d_mlp={self.d_mlp}, d_model={self.d_model}, activation={self.activation!r})"
