"""One FFN of a model as keys and values, in one orientation whatever the weights' own."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from .turns import check_turn


def oriented(module: nn.Module) -> Float[Tensor, "d_in d_out"]:
    """The live weight of a projection as ``[d_in, d_out]``: Conv1D stores it so, Linear stores its transpose."""
    weight = module.weight
    assert isinstance(weight, Tensor)
    return weight.T if isinstance(module, nn.Linear | Half) else weight


def bias_of(module: nn.Module) -> Tensor | None:
    bias = module.bias
    return bias if isinstance(bias, Tensor) else None


class JointLinear(nn.Linear):
    """One projection that holds gates and keys, in this order, run as two, so that hooks see each (Phi 3, GLM)."""

    halves: tuple[Half, Half]

    @classmethod
    def around(cls, joint: nn.Linear) -> JointLinear:
        """The same projection with the same parameters."""
        made = cls(joint.in_features, joint.out_features, joint.bias is not None, device="meta")
        made.weight, made.bias = joint.weight, joint.bias
        made.halves = (Half(made, 0), Half(made, 1))
        return made.train(joint.training)

    def forward(self, input: Float[Tensor, "*n d_in"]) -> Float[Tensor, "*n d_out"]:
        return torch.cat([half(input) for half in self.halves], dim=-1)


class Half(nn.Module):
    """The gates (0) or the keys (1) of a joint projection. Its weights are views: what is written changes the whole."""

    def __init__(self, whole: JointLinear, which: int) -> None:
        super().__init__()
        self.held, self.which = (whole,), which  # in a tuple, so that torch does not take it for a part of this one

    @property
    def weight(self) -> Float[Tensor, "d_out d_in"]:
        return self.held[0].weight.chunk(2)[self.which]

    @property
    def bias(self) -> Float[Tensor, " d_out"] | None:
        bias = self.held[0].bias
        return None if bias is None else bias.chunk(2)[self.which]

    def forward(self, x: Float[Tensor, "*n d_in"]) -> Float[Tensor, "*n d_out"]:
        return nn.functional.linear(x, self.weight, self.bias)


@dataclass(frozen=True)
class FFN:
    """The key-value memory view of one layer (Geva et al. 2021, eq. 2; gated: Shazeer 2020).

    Classic: FFN(x) = Σᵢ act(kᵢ·x + bᵢ)·vᵢ + b_out. Gated: FFN(x) = Σᵢ act(gᵢ·x)·(kᵢ·x)·vᵢ, with biases where there are
    any: a neuron has two keys, the gate gᵢ that decides whether it fires and the key kᵢ that the strength is linear in.
    Its pre-activation is what the activation takes: kᵢ·x + bᵢ, or gᵢ·x.

    Every tensor is a view of the live parameter: what is written into it changes the model.
    """

    layer: int
    project_in: nn.Module
    project_out: nn.Module
    activation: str
    project_gate: nn.Module | None = None

    @property
    def gated(self) -> bool:
        """Whether neurons have gates beside their keys."""
        return self.project_gate is not None

    @property
    def keys(self) -> Float[Tensor, "d_mlp d_model"]:
        """Row i is neuron i's key: what its input is compared with (in a gated FFN the linear one, "up")."""
        return oriented(self.project_in).T

    @property
    def gates(self) -> Float[Tensor, "d_mlp d_model"] | None:
        """The gate keys of a gated FFN, one row a neuron; None for a classic one."""
        return None if self.project_gate is None else oriented(self.project_gate).T

    @property
    def key_bias(self) -> Float[Tensor, " d_mlp"] | None:
        return bias_of(self.project_in)

    @property
    def gate_bias(self) -> Float[Tensor, " d_mlp"] | None:
        return None if self.project_gate is None else bias_of(self.project_gate)

    @property
    def activated(self) -> Float[Tensor, "d_mlp d_model"]:
        """The keys whose products go through the activation: the gates of a gated FFN, else the keys."""
        return self.keys if self.gates is None else self.gates

    @property
    def activated_bias(self) -> Float[Tensor, " d_mlp"] | None:
        """Their bias."""
        return self.gate_bias if self.gated else self.key_bias

    @property
    def values(self) -> Float[Tensor, "d_mlp d_model"]:
        """Row i is neuron i's value: what it writes into the residual stream, times its coefficient.

        Raises BusyError while another thread or context changes the model.
        """
        check_turn(self.project_out)
        return oriented(self.project_out)

    @property
    def value_bias(self) -> Float[Tensor, " d_model"] | None:
        return bias_of(self.project_out)

    @property
    def d_mlp(self) -> int:
        return int(oriented(self.project_out).shape[0])

    @property
    def d_model(self) -> int:
        return int(oriented(self.project_out).shape[1])

    def __repr__(self) -> str:
        size = f"d_mlp={self.d_mlp}, d_model={self.d_model}"
        return f"FFN(layer={self.layer}, {size}, activation={self.activation!r}{', gated' * self.gated})"
