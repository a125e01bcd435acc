"""What is added to the residual stream and how the final norm reads it, with norms frozen to linear maps."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .layout import inner
from .model import Model
from .norms import NormMap, at_least_float32

# The final norm as attribution and projection need it: linear once its scale is frozen.


class FinalNorm:
    """Norm(x) = (x − mean x)/σ ⊙ γ + β (an RMSNorm without the mean), read from a model; nothing of it is changed."""

    def __init__(self, model: Model) -> None:
        self.model = model
        kind = model.layout.architecture.norm_kind
        self.norm = NormMap.of(inner(model.layout.final_norm), kind, model.d_model, model.device)
        self.gain, self.bias, self.eps = self.norm.gain, self.norm.shift, self.norm.eps
        self.logit_scale = model.layout.logit_scale

    def scale(self, x: Float[Tensor, "n d_model"]) -> Float[Tensor, " n"]:
        """σ of each row: √(var x + ε), or √(mean x² + ε) of an RMSNorm."""
        return self.norm.scale(x)

    def directions(
        self, targets: Int[Tensor, " n"], foil: int | None = None
    ) -> tuple[Float[Tensor, "n d_model"], Float[Tensor, " n"]]:
        """Per target, the direction u with logit = x·u/σ + constant, and that constant (norm and unembedding bias).

        The logit is the one before a soft cap, where the model has one.
        """
        w = at_least_float32(self.model.unembedding.detach()[targets])
        if foil is not None:
            w = w - at_least_float32(self.model.unembedding.detach()[foil])
        constant = self.norm.constant(w)
        bias = self.model.unembedding_bias
        if bias is not None:
            constant = (
                constant + bias.detach()[targets].double() - (0.0 if foil is None else bias.detach()[foil].double())
            )
        return self.norm.pull(w) * self.logit_scale, (constant * self.logit_scale).to(w.dtype)


def model_logits(
    model: Model, final: Float[Tensor, "n d_model"], targets: Int[Tensor, " n"], foil: int | None
) -> Float[Tensor, " n"]:
    """The logits that the model itself gives the targets (minus the foil's), from the output of its own final norm.

    Before a soft cap, where the model has one; in float64.
    """
    weight, bias = model.unembedding.detach(), model.unembedding_bias

    def logit(ids: Tensor) -> Tensor:
        found = (final * weight[ids]).double().sum(-1)
        return (found if bias is None else found + bias.detach()[ids].double()) * model.layout.logit_scale

    return logit(targets) if foil is None else logit(targets) - logit(torch.full_like(targets, foil))


# From what an FFN's neurons write to what is added to the residual stream, where a norm stands in between.


def pulled_through(
    model: Model, layer: int, directions: Float[Tensor, "*batch n d_model"], written: Float[Tensor, "n d_model"]
) -> Float[Tensor, "*batch n d_model"]:
    """Directions in the residual stream as directions at the output of a layer's FFN.

    With the scale of the norm behind the FFN as it was (frozen), what a neuron adds along a direction w of the stream
    is mᵢvᵢ · pull(w)/σ; without such a norm it is mᵢvᵢ · w.

    Args:
        model: from :func:`ffnmem.load`. layer: an index. directions: one for each position; or a batch of such sets.
        written: the FFN's output at these positions, from which σ is taken.
    """
    return pull(model.norm_after(layer), model.layout.write_scale, directions, written)


def pull(
    norm: NormMap | None,
    factor: float,
    directions: Float[Tensor, "*batch n d_model"],
    written: Float[Tensor, "n d_model"],
) -> Float[Tensor, "*batch n d_model"]:
    """The same for any norm behind a part of a layer, and what the part's writes are multiplied by."""
    if norm is not None:
        directions = norm.pull(directions) / norm.scale(at_least_float32(written)).unsqueeze(-1)
    return directions if factor == 1.0 else directions * factor


def passed_on(model: Model, layer: int, values: Float[Tensor, "rows d_model"]) -> Float[Tensor, "rows d_model"]:
    """Values as the residual stream gets them, but for the scale of the norm behind the FFN: v, or v ⊙ γ_post."""
    norm, factor = model.norm_after(layer), model.layout.write_scale
    passed = values if norm is None else norm.passed(values)
    return passed if factor == 1.0 else passed * factor
