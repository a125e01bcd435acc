"""From what an FFN's neurons write to what is added to the residual stream, where a norm stands in between."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from .model import Model
from .norms import Norm, at_least_float32


def pulled_through(
    model: Model, layer: int, directions: Float[Tensor, "n d_model"], written: Float[Tensor, "n d_model"]
) -> Float[Tensor, "n d_model"]:
    """Directions in the residual stream as directions at the output of a layer's FFN.

    With the scale of the norm behind the FFN as it was (frozen), what a neuron adds along a direction w of the stream
    is mᵢvᵢ · pull(w)/σ; without such a norm it is mᵢvᵢ · w.

    Args:
        model: from :func:`ffnmem.load`. layer: an index. directions: one for each position.
        written: the FFN's output at these positions, from which σ is taken.
    """
    return pull(model.norm_after(layer), model.layout.write_scale, directions, written)


def pull(
    norm: Norm | None, factor: float, directions: Float[Tensor, "n d_model"], written: Float[Tensor, "n d_model"]
) -> Float[Tensor, "n d_model"]:
    """The same for any norm behind a part of a layer, and what the part's writes are multiplied by."""
    if norm is not None:
        directions = norm.pull(directions) / norm.scale(at_least_float32(written)).unsqueeze(-1)
    return directions if factor == 1.0 else directions * factor


def passed_on(model: Model, layer: int, values: Float[Tensor, "rows d_model"]) -> Float[Tensor, "rows d_model"]:
    """Values as the residual stream gets them, but for the scale of the norm behind the FFN: v, or v ⊙ γ_post."""
    norm, factor = model.norm_after(layer), model.layout.write_scale
    passed = values if norm is None else norm.passed(values)
    return passed if factor == 1.0 else passed * factor
