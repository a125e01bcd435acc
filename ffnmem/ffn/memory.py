"""One FFN read as an unnormalised key–value memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..core.errors import InputError, check_count, counted
from ..show.result import Result
from .activations import Activation, widened
from .layers import affine, chosen, classic_coefficients, gated_coefficients


@dataclass(frozen=True, eq=False, repr=False)
class Memory(Result):
    """What the memories of one FFN wrote for each input: y = Σᵢ mᵢvᵢ + b, the strongest slots first.

    Attributes:
        coefficients: mᵢ of every neuron, ``[*rows, d_mlp]``.
        neurons: the kept slots by falling weight, ``[*rows, top]``; of equal weights the lower index first.
        weights: |mᵢ|·‖vᵢ‖ of these, ``[*rows, top]``, the length of what the memory wrote.
        shares: mᵢvᵢ·y/‖y‖² of these, ``[*rows, top]``; with ``bias_shares`` they sum to 1 over all neurons.
        bias_shares: b·y/‖y‖², ``[*rows]``.
        value_norms: ‖vᵢ‖ of every neuron, ``[d_mlp]``.
        bias_norm: ‖b‖, 0 without a bias.
        output: y, ``[*rows, d_model]``.
    """

    tables: ClassVar = {"slots": "row slot coefficient value_norm weight share"}

    coefficients: Float[Tensor, "*rows d_mlp"]
    neurons: Int[Tensor, "*rows top"]
    weights: Float[Tensor, "*rows top"]
    shares: Float[Tensor, "*rows top"]
    bias_shares: Float[Tensor, "*rows"]
    value_norms: Float[Tensor, " d_mlp"]
    bias_norm: float
    output: Float[Tensor, "*rows d_model"]

    @property
    def slots(self) -> pd.DataFrame:
        """One row a kept slot by falling weight, and last in each input ``neuron = -1``, the output bias.

        Columns: ``row`` (index of the input, 0 where there is one), ``neuron``, ``coefficient``, ``value_norm``,
        ``weight``, ``share``. With every slot kept the shares of a row sum to 1.
        """
        neurons = self.neurons.reshape(-1, self.neurons.shape[-1])
        n, top = neurons.shape
        one, bias = torch.ones(n, 1), torch.full((n, 1), self.bias_norm)
        kept = self.coefficients.gather(-1, self.neurons).reshape(n, top)

        def column(slots: Tensor, last: Tensor) -> Any:
            return torch.cat([slots.detach().double().cpu(), last.detach().double().cpu()], dim=1).flatten().numpy()

        return pd.DataFrame(
            {
                "row": torch.arange(n).repeat_interleave(top + 1).numpy(),
                "neuron": torch.cat([neurons.cpu(), torch.full((n, 1), -1)], dim=1).flatten().numpy(),
                "coefficient": column(kept, one),
                "value_norm": column(self.value_norms[neurons], bias),
                "weight": column(self.weights.reshape(n, top), bias),
                "share": column(self.shares.reshape(n, top), self.bias_shares.reshape(n, 1)),
            }
        )

    @property
    def verdict(self) -> str:
        inputs, neurons, kept = self.bias_shares.numel(), self.coefficients.shape[-1], self.neurons.shape[-1]
        return f"{counted(inputs, 'input')}, {neurons:,} neurons, {counted(kept, 'slot')} kept"


def as_memory(
    x: Float[Tensor, "*rows d_model"],
    keys: Float[Tensor, "d_mlp d_key"],
    values: Float[Tensor, "n_values d_value"],
    key_bias: Float[Tensor, " b_key"] | None = None,
    value_bias: Float[Tensor, " b_value"] | None = None,
    *,
    gates: Float[Tensor, "n_gates d_gate"] | None = None,
    gate_bias: Float[Tensor, " b_gate"] | None = None,
    activation: str | Activation = "gelu",
    top: int | None = None,
) -> Memory:
    """An FFN as a sum over its memories: FFN(x) = Σᵢ mᵢvᵢ + b, mᵢ = act(kᵢ·x + bᵢ), or gated act(gᵢ·x)·(kᵢ·x).

    The sum is a matrix product; what each memory wrote, mᵢvᵢ, is never laid out for all neurons at once.

    Args:
        x: inputs of the FFN, ``[d_model]`` or ``[*rows, d_model]``.
        keys: ``[d_mlp, d_model]``, one a row, as ``model.ffn[layer].keys``.
        values: ``[d_mlp, d_model]``.
        key_bias: ``[d_mlp]``, or None for no bias.
        value_bias: ``[d_model]``, or None.
        gates: ``[d_mlp, d_model]`` of a gated FFN, else None.
        gate_bias: ``[d_mlp]``, or None.
        activation: an activation or its name; of a gated FFN that of the gate.
        top: keep this many slots a row; default all.

    Returns:
        A :class:`Memory`.

    Raises:
        InputError: shapes that do not fit, an unknown activation, or a ``top`` below 1.

    Source: Geva et al. 2021 (2012.14913), eq. 1; the order by |mᵢ|·‖vᵢ‖ is Geva et al. 2022 (2203.14680), §3.2.
    """
    if gates is None and gate_bias is not None:
        raise InputError("gate_bias is given without gates")
    if gates is None:
        m = classic_coefficients(x, keys.T, key_bias, activation)
    else:
        m = gated_coefficients(x, gates.T, keys.T, chosen(activation), b_gate=gate_bias, b_up=key_bias)
    output = affine(m, "values", values, "value_bias", value_bias, x.shape[-1])
    y, wide, bias = widened(output), widened(values), None if value_bias is None else widened(value_bias)
    square = y.square().sum(-1).clamp_min(torch.finfo(y.dtype).tiny)
    norms = wide.norm(dim=-1)
    weights = widened(m).abs() * norms
    weights, order = weights.sort(dim=-1, descending=True, stable=True)
    kept = order.shape[-1] if top is None else min(check_count("top", top), order.shape[-1])
    neurons = order[..., :kept]
    shares = widened(m) * (y @ wide.T) / square.unsqueeze(-1)
    return Memory(
        coefficients=m,
        neurons=neurons,
        weights=weights[..., :kept],
        shares=shares.gather(-1, neurons),
        bias_shares=torch.zeros_like(square) if bias is None else y @ bias / square,
        value_norms=norms,
        bias_norm=0.0 if bias is None else float(bias.detach().norm()),
        output=output,
    )
