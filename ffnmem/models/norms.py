"""Norms of the residual stream: the kinds that there are, and each as a linear map once its scale is frozen."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..core.errors import UnsupportedModelError
from ..core.foreign import foreign


def at_least_float32(tensor: Tensor) -> Tensor:
    """The tensor in float32, or float64 if it is: half-precision models are summed without further loss."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


@dataclass(frozen=True)
class NormKind:
    """A formula: (x − mean x if ``centred``)/σ ⊙ (``offset`` + weight) + bias, weight and bias where there are any.

    Attributes:
        name: in the field's words.
        centred: whether the mean is taken out first.
        offset: what the stored weight is added to; 1 in Gemma.
    """

    name: str
    centred: bool
    offset: float = 0.0


LAYER = NormKind("LayerNorm", centred=True)
RMS = NormKind("RMSNorm", centred=False)
RMS_OFFSET = NormKind("RMSNorm (1 + weight)", centred=False, offset=1.0)
LAYER_OFFSET = NormKind("LayerNorm (1 + weight)", centred=True, offset=1.0)
KINDS = (LAYER, RMS, RMS_OFFSET, LAYER_OFFSET)


@dataclass(frozen=True, eq=False)
class NormMap:
    """Norm(x) = (x − mean x)/σ ⊙ γ + β, or without the mean; σ = √(mean of squares + ε). Weights as they are now.

    Attributes:
        gain: γ, ``[d_model]``, ones where the norm has none; in at least float32.
        shift: β, ``[d_model]``, or None.
        eps: ε. centred: whether the mean is taken out.
    """

    gain: Float[Tensor, " d_model"]
    shift: Float[Tensor, " d_model"] | None
    eps: float
    centred: bool

    @classmethod
    def of(cls, module: nn.Module, kind: NormKind, width: int, device: torch.device | None = None) -> NormMap:
        """What a Hugging Face norm of a kind holds; ``device`` is for one that holds nothing."""
        weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
        gain = (
            torch.ones(width, device=device)
            if not isinstance(weight, Tensor)
            else kind.offset + at_least_float32(weight.detach())
        )
        return cls(gain, None if bias is None else at_least_float32(bias.detach()), eps_of(module), kind.centred)

    def centre(self, x: Float[Tensor, "*n d_model"]) -> Float[Tensor, "*n d_model"]:
        """x without its mean, where the norm takes that out."""
        return x - x.mean(dim=-1, keepdim=True) if self.centred else x

    def scale(self, x: Float[Tensor, "*n d_model"]) -> Float[Tensor, "*n"]:
        """σ of each row."""
        return (self.centre(x).square().mean(dim=-1) + self.eps).sqrt()

    def __call__(self, x: Float[Tensor, "*n d_model"]) -> Float[Tensor, "*n d_model"]:
        """The norm itself."""
        found = self.centre(x) / self.scale(x).unsqueeze(-1) * self.gain.to(x.dtype)
        return found if self.shift is None else found + self.shift.to(x.dtype)

    def pull(self, directions: Float[Tensor, "*n d_model"]) -> Float[Tensor, "*n d_model"]:
        """Directions behind the norm as directions in front of it: Norm(x)·w = x·pull(w)/σ + constant(w)."""
        return self.centre(directions * self.gain.to(directions.dtype))

    def constant(self, directions: Float[Tensor, "*n d_model"]) -> Float[Tensor, "*n"]:
        """β·w, in float64."""
        wide = directions.double()
        return torch.zeros_like(wide[..., 0]) if self.shift is None else (wide * self.shift.double()).sum(-1)

    def passed(self, writes: Float[Tensor, "*n d_model"]) -> Float[Tensor, "*n d_model"]:
        """Writes as they look behind the norm, but for its scale: (v − mean v) ⊙ γ."""
        return self.centre(writes) * self.gain.to(writes.dtype)


def eps_of(module: nn.Module) -> float:
    """ε as Hugging Face's norms call it; OLMo's has none of its own and uses 1e-5."""
    found = [getattr(module, name) for name in ("eps", "variance_epsilon") if getattr(module, name, None) is not None]
    return float(found[0]) if found else 1e-5


def width_of(module: nn.Module) -> int | None:
    """How many numbers a norm takes; None for a module that is no norm."""
    weight, shape = getattr(module, "weight", None), getattr(module, "normalized_shape", None)
    if isinstance(weight, Tensor):
        return int(weight.shape[0]) if weight.ndim == 1 else None
    return int(shape[-1]) if isinstance(shape, tuple) else None


CLOSE = {torch.float64: 1e-5, torch.float32: 1e-4}  # Hugging Face takes many norms in float32 whatever their type
HALF_CLOSE = 3e-2


def computes(module: nn.Module, kind: NormKind, width: int) -> bool:
    """Whether a module is a norm of a kind, tried on numbers with a mean."""
    reference = next((p for p in module.parameters()), torch.ones(()))
    probe = torch.linspace(-1.0, 3.0, width, dtype=reference.dtype, device=reference.device).sin() + 0.25
    with torch.no_grad():
        with foreign(UnsupportedModelError, f"a norm ({type(module).__name__}) that does not run"):
            found = at_least_float32(module(probe.unsqueeze(0))[0])
        expected = NormMap.of(module, kind, width)(at_least_float32(probe))
    allowed = CLOSE.get(probe.dtype, HALF_CLOSE) * max(1.0, float(expected.abs().max()))
    return bool((found - expected).abs().max() <= allowed)


def kind_of(module: nn.Module) -> NormKind | None:
    """The kind of a Hugging Face norm, found by trying each; None if it is none of them."""
    width = width_of(module)
    if width is None:
        return None
    return next((kind for kind in KINDS if computes(module, kind, width)), None)


def widen(network: nn.Module) -> None:
    """Let norms of a float64 network count in float64: Hugging Face rounds all but torch's own to float32."""
    for module in network.modules():
        name = type(module).__name__
        if name.endswith("Norm") and not isinstance(module, nn.LayerNorm):
            kind = kind_of(module)
            if kind is not None:
                module.forward = partial(counted, module, kind)


def counted(module: nn.Module, kind: NormKind, x: Float[Tensor, "*n d_model"]) -> Float[Tensor, "*n d_model"]:
    """A norm's output in the type of its input; gradients pass to the input."""
    return NormMap.of(module, kind, x.shape[-1], x.device)(x)
