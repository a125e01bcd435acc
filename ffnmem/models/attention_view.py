"""One attention layer as a linear map of what stands at each position: its pattern and its norm's scale are frozen."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor, nn

from ..errors import HookError, listed
from ..hooks import OnTensor, listening
from .final_norm import at_least_float32
from .layout import Block, inner
from .model import Model


@dataclass(frozen=True, eq=False)
class FrozenAttention:
    """Attention output at t = Σ_heads Σ_p A[t, p] · LN(x_p)·W_V·W_O + biases, with A and LN's scale as they were.

    Attributes:
        pattern: ``[head, query, key]``, the attention weights A.
        w_v: ``[head, d_model, d_head]``; w_o: ``[head, d_head, d_model]``.
        gain: ``[d_model]``, γ of the norm before attention; shift: ``[d_model]``, its β (zeros if none).
        scale: ``[pos]``, σ of that norm at each position.
        b_v: ``[head, d_head]``; b_o: ``[d_model]`` (zeros if none).
    """

    pattern: Float[Tensor, "head query key"]
    w_v: Float[Tensor, "head d_model d_head"]
    w_o: Float[Tensor, "head d_head d_model"]
    gain: Float[Tensor, " d_model"]
    shift: Float[Tensor, " d_model"]
    scale: Float[Tensor, " key"]
    b_v: Float[Tensor, "head d_head"]
    b_o: Float[Tensor, " d_model"]

    def pull(
        self, directions: Float[Tensor, "query d_model"]
    ) -> tuple[Float[Tensor, "key d_model"], Float[Tensor, ""]]:
        """Carry directions at the output back to the input.

        Returns, for each position p, the direction along which the residual stream at p reaches the given directions
        through this layer, and the constant that the layer's biases add.
        """
        through_o = einsum(self.w_o, directions, "head d_head d_model, query d_model -> head query d_head")
        carried = einsum(self.pattern, through_o, "head query key, head query d_head -> head key d_head")
        normed = einsum(self.w_v, carried, "head d_model d_head, head key d_head -> key d_model")
        constant = (normed * self.shift).sum() + einsum(carried, self.b_v, "head key d_head, head d_head ->")
        gained = normed * self.gain / self.scale.unsqueeze(-1)
        return gained - gained.mean(dim=-1, keepdim=True), constant + (directions * self.b_o).sum()


def frozen_attention(model: Model, tokens: Tensor) -> list[FrozenAttention]:
    """Every attention layer of one forward pass over ``tokens [pos]``.

    Raises HookError if a layer does not give its pattern.
    """
    patterns: dict[int, Tensor] = {}
    inputs: dict[int, Tensor] = {}
    outputs, befores = [], []
    for layer, block in enumerate(model.layout.blocks):
        outputs.append((block.attention.get_submodule("hook_pattern"), keeper(patterns, layer)))
        befores.append((block.attention_norm, keeper(inputs, layer)))
    with listening(befores, outputs):
        model.body(tokens.reshape(1, -1))
    silent = [layer for layer in range(model.n_layers) if layer not in patterns or layer not in inputs]
    if silent:
        raise HookError(f"layers {listed(silent)} of {model.name} do not show their attention patterns")
    return [frozen(block, patterns[layer], inputs[layer]) for layer, block in enumerate(model.layout.blocks)]


def keeper(store: dict[int, Tensor], layer: int) -> OnTensor:
    def keep(tensor: Tensor) -> None:
        store[layer] = tensor.detach()

    return keep


def frozen(block: Block, pattern: Tensor, x: Tensor) -> FrozenAttention:
    norm = inner(block.attention_norm)
    assert isinstance(norm, nn.LayerNorm)
    x = at_least_float32(x.reshape(-1, x.shape[-1]))
    attention = block.attention
    w_v, w_o = (at_least_float32(getattr(attention, name).detach()) for name in ("W_V", "W_O"))
    groups, _, d_head = w_v.shape
    b_v = bias_of(attention.get_submodule("v"))
    b_o = bias_of(attention.get_submodule("o"))
    b_v = (w_v.new_zeros(groups * d_head) if b_v is None else b_v).reshape(groups, d_head)
    shared = w_o.shape[0] // groups  # heads that share one value projection (grouped-query attention)
    return FrozenAttention(
        pattern=at_least_float32(pattern[0]),
        w_v=w_v.repeat_interleave(shared, dim=0),
        w_o=w_o,
        gain=at_least_float32(norm.weight.detach()),
        shift=torch.zeros_like(norm.weight) if norm.bias is None else at_least_float32(norm.bias.detach()),
        scale=(x.var(dim=-1, unbiased=False) + norm.eps).sqrt(),
        b_v=b_v.repeat_interleave(shared, dim=0),
        b_o=w_o.new_zeros(w_o.shape[-1]) if b_o is None else b_o,
    )


def bias_of(projection: nn.Module) -> Tensor | None:
    bias = getattr(inner(projection), "bias", None)
    return at_least_float32(bias.detach()) if isinstance(bias, Tensor) else None
