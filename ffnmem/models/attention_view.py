"""One attention layer as a linear map of what stands at each position: its pattern and its norm's scale are frozen."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor, nn

from ..errors import HookError, UnsupportedModelError, listed
from ..hooks import OnTensor, listening
from .architectures import setting
from .layout import Block, inner
from .model import Model
from .norms import Norm, at_least_float32
from .writes import pull


@dataclass(frozen=True, eq=False)
class FrozenAttention:
    """Attention output at t = Σ_heads Σ_p A[t, p] · LN(x_p)·W_V·W_O + biases, with A and LN's scale as they were.

    Attributes:
        pattern: ``[head, query, key]``, the attention weights A.
        w_v: ``[head, d_model, d_head]``; w_o: ``[head, d_head, d_model]``.
        b_v: ``[head, d_head]``; b_o: ``[d_model]`` (zeros if none).
        norm: in front of attention; None where it reads the stream as it is. scale: ``[pos]``, its σ.
        post: behind attention, or None. written: ``[pos, d_model]``, what it then normed. factor: of what is added.
    """

    pattern: Float[Tensor, "head query key"]
    w_v: Float[Tensor, "head d_model d_head"]
    w_o: Float[Tensor, "head d_head d_model"]
    b_v: Float[Tensor, "head d_head"]
    b_o: Float[Tensor, " d_model"]
    norm: Norm | None
    scale: Float[Tensor, " key"]
    post: Norm | None
    written: Float[Tensor, "query d_model"]
    factor: float

    def pull(
        self, directions: Float[Tensor, "query d_model"]
    ) -> tuple[Float[Tensor, "key d_model"], Float[Tensor, ""]]:
        """Carry directions at the output back to the input.

        Returns, for each position p, the direction along which the residual stream at p reaches the given directions
        through this layer, and the constant that the layer's biases add.
        """
        directions = pull(self.post, self.factor, directions, self.written)
        through_o = einsum(self.w_o, directions, "head d_head d_model, query d_model -> head query d_head")
        carried = einsum(self.pattern, through_o, "head query key, head query d_head -> head key d_head")
        normed = einsum(self.w_v, carried, "head d_model d_head, head key d_head -> key d_model")
        constant = einsum(carried, self.b_v, "head key d_head, head d_head ->") + (directions * self.b_o).sum()
        if self.norm is None:
            return normed, constant
        constant = constant + self.norm.constant(normed).sum().to(constant)
        return self.norm.pull(normed) / self.scale.unsqueeze(-1), constant


def frozen_attention(model: Model, tokens: Tensor) -> list[FrozenAttention]:
    """Every attention layer of one forward pass over ``tokens [pos]``.

    Raises HookError if a layer does not give its pattern.
    """
    clip = model.layout.architecture.clip
    if setting(model.bridge.original_model.config, clip) is not None:
        raise UnsupportedModelError(f"{model.name} clips what its attention reads ({clip}), which is not linear")
    patterns: dict[int, Tensor] = {}
    inputs: dict[int, Tensor] = {}
    written: dict[int, Tensor] = {}
    outputs, befores = [], []
    for layer, block in enumerate(model.layout.blocks):
        outputs.append((block.attention.get_submodule("hook_pattern"), keeper(patterns, layer)))
        outputs.append((block.attention_out, keeper(written, layer)))
        befores.append((block.whole, keeper(inputs, layer)))
    with listening(befores, outputs):
        model.body(tokens.reshape(1, -1))
    silent = [layer for layer in range(model.n_layers) if layer not in patterns or layer not in inputs]
    if silent:
        raise HookError(f"layers {listed(silent)} of {model.name} do not show their attention patterns")
    return [
        frozen(model, block, patterns[layer], inputs[layer], written[layer])
        for layer, block in enumerate(model.layout.blocks)
    ]


def keeper(store: dict[int, Tensor], layer: int) -> OnTensor:
    def keep(tensor: Tensor) -> None:
        store[layer] = tensor.detach()

    return keep


def frozen(model: Model, block: Block, pattern: Tensor, x: Tensor, written: Tensor) -> FrozenAttention:
    norm = model.layout.norm(block.attention_norm, model.d_model)
    x, written = (at_least_float32(tensor.reshape(-1, model.d_model)) for tensor in (x, written))
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
        b_v=b_v.repeat_interleave(shared, dim=0),
        b_o=w_o.new_zeros(w_o.shape[-1]) if b_o is None else b_o,
        norm=norm,
        scale=torch.ones_like(x[:, 0]) if norm is None else norm.scale(x),
        post=model.layout.norm(block.attention_post, model.d_model),
        written=written,
        factor=model.layout.write_scale,
    )


def bias_of(projection: nn.Module) -> Tensor | None:
    bias = getattr(inner(projection), "bias", None)
    return at_least_float32(bias.detach()) if isinstance(bias, Tensor) else None
