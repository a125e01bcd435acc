"""The final norm as attribution and projection need it: linear once its scale is frozen."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from .layout import inner
from .model import Model


def at_least_float32(tensor: Tensor) -> Tensor:
    """The tensor in float32, or float64 if it is: half-precision models are summed without further loss."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


class FinalNorm:
    """LayerNorm(x) = (x − mean x)/σ ⊙ γ + β, read from a model; nothing of the model is changed."""

    def __init__(self, model: Model) -> None:
        norm = inner(model.layout.final_norm)
        assert isinstance(norm, nn.LayerNorm)
        self.model = model
        self.eps = norm.eps
        self.gain = at_least_float32(norm.weight.detach())
        self.bias = None if norm.bias is None else at_least_float32(norm.bias.detach())

    def scale(self, x: Float[Tensor, "n d_model"]) -> Float[Tensor, " n"]:
        """σ = √(var x + ε) of each row."""
        return (x.var(dim=-1, unbiased=False) + self.eps).sqrt()

    def directions(
        self, targets: Int[Tensor, " n"], foil: int | None = None
    ) -> tuple[Float[Tensor, "n d_model"], Float[Tensor, " n"]]:
        """Per target, the direction u with logit = x·u/σ + constant, and that constant (norm and unembedding bias)."""
        w = at_least_float32(self.model.unembedding.detach()[targets])
        if foil is not None:
            w = w - at_least_float32(self.model.unembedding.detach()[foil])
        u = w * self.gain
        constant = torch.zeros(len(targets), dtype=torch.float64, device=w.device)
        if self.bias is not None:
            constant = constant + (w * self.bias).double().sum(-1)
        bias = self.model.unembedding_bias
        if bias is not None:
            constant = (
                constant + bias.detach()[targets].double() - (0.0 if foil is None else bias.detach()[foil].double())
            )
        return u - u.mean(dim=-1, keepdim=True), constant.to(w.dtype)
