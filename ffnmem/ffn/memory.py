"""One FFN read as an unnormalised key–value memory, and what it would be without its activation or with a neighbour."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from ..core.errors import InputError, check_count, check_index, check_seed, counted
from ..core.sheets import Column, Sheet, Table, Words
from ..show.result import Result
from .activations import Activation, widened
from .layers import affine, chosen, classic_coefficients, classic_ffn, gated_coefficients

SHOWN = 10


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

    main = "slots"
    in_json = "slots output"

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

    def summary(self) -> str:
        inputs, neurons, kept = self.bias_shares.numel(), self.coefficients.shape[-1], self.neurons.shape[-1]
        return f"{counted(inputs, 'input')}, {neurons:,} neurons, {counted(kept, 'slot')} kept"

    def sheet(self, top: int = SHOWN) -> Sheet:
        """The first ``top`` rows of ``slots``."""
        neuron = Column("neuron", of=lambda row: "bias" if row["neuron"] < 0 else str(row["neuron"]))
        numbers = (
            Column(name, "number", of=name.replace(" ", "_")) for name in ("coefficient", "value norm", "weight")
        )
        row = Column("row", of=lambda row: str(row["row"]))
        return Sheet.of(Words.of(self.summary()), Table.of(self.slots, row, neuron, *numbers, "share", top=top))


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


@dataclass(frozen=True, eq=False)
class Affine:
    """The map x ↦ xW + b, with W ``[d_model, d_model]`` and b ``[d_model]``."""

    weight: Float[Tensor, "d_model d_model"]
    bias: Float[Tensor, " d_model"]

    def __call__(self, x: Float[Tensor, "*rows d_model"]) -> Float[Tensor, "*rows d_model"]:
        """xW + b."""
        return x @ self.weight + self.bias

    def __repr__(self) -> str:
        return f"Affine({self.weight.shape[0]} to {self.weight.shape[1]})"


def collapse(
    w_in: Float[Tensor, "d_in d_mlp"],
    w_out: Float[Tensor, "d_mlp_out d_out"],
    b_in: Float[Tensor, " b_mlp"] | None = None,
    b_out: Float[Tensor, " b_model"] | None = None,
) -> Affine:
    """What is left of a classic FFN without its activation: x(W_inW_out) + (b_inW_out + b_out), one affine map.

    However wide, two linear layers with nothing between them are one: the activation is what makes memories of them.
    (A bilinear gated FFN has no activation either and does not collapse: it is quadratic in x.)

    Args: as :func:`classic_ffn`.

    Returns:
        The map, equal to ``classic_ffn(…, activation="identity")``.

    Raises:
        InputError: shapes that do not fit.
    """
    nothing = torch.zeros(1, w_in.shape[0], dtype=w_in.dtype, device=w_in.device)
    bias = classic_ffn(nothing, w_in, w_out, b_in, b_out, "identity")  # checks every shape; 0·W_in + b_in is b_in
    return Affine(w_in @ w_out, rearrange(bias, "1 d_model -> d_model"))


def position_leak(
    f: Callable[[Tensor], Tensor],
    x: Float[Tensor, "*rows pos d_model"],
    position: int | None = None,
    *,
    seed: int = 0,
) -> float:
    """How far the outputs at other positions move when the input at one position changes: 0 for an FFN.

    An FFN is position-wise: what it writes at a position depends on that position's input alone, so that text can
    only be mixed by attention, for which this is not 0.

    Args:
        f: from ``[*rows, pos, d_model]`` to the same shape, without randomness.
        x: its input.
        position: the position whose input is replaced; default each in turn.
        seed: of the input put there, normal with the spread of ``x``.

    Returns:
        The largest absolute change of an output at any other position, in the unit of the outputs.

    Raises:
        InputError: fewer than two positions, or an ``f`` that changes the shape. OutOfRangeError: no such position.
    """
    n = x.shape[-2]
    if n < 2:
        raise InputError(f"x {list(x.shape)} has {n} positions: position_leak compares at least 2")
    places = range(n) if position is None else [check_index("position", position, n, "x")]
    generator = torch.Generator().manual_seed(check_seed(seed))
    with torch.no_grad():
        before = f(x)
        if before.shape != x.shape:
            raise InputError(f"f turned x {list(x.shape)} into {list(before.shape)}: it must keep the shape")
        spread = float(x.double().std()) or 1.0
        largest = 0.0
        for place in places:
            noise = torch.randn(x[..., place, :].shape, generator=generator, dtype=torch.float64)
            changed = x.clone()
            changed[..., place, :] = (noise * spread).to(x)
            moved = (f(changed) - before).abs()
            moved[..., place, :] = 0
            if not bool(moved.isfinite().all()):
                raise InputError("f gives NaN or infinite outputs: nothing can be said of what moved")
            largest = max(largest, float(moved.max()))
    return largest
