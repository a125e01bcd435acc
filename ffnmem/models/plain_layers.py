"""``PlainLayers``: a model's layers as plain modules around its own weights, to be run one at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from .bare_body import fuse_gelu, plain_modules, twin
from .layout import inner
from .model import Model


@dataclass(frozen=True)
class Parts:
    """The plain modules of one layer."""

    attention_norm: nn.Module
    attention: nn.Module
    norm: nn.Module
    project_in: nn.Module
    project_out: nn.Module


class PlainLayers:
    """The layers of a model, without its bridge; changes of its weights in place are seen, hooks on it are not.

    Args:
        model: from :func:`ffnmem.load`.
        attention: which implementation of Hugging Face's, ``"sdpa"`` or ``"eager"``; they differ where an architecture
            takes its softmax in float32.

    Attributes:
        body: Hugging Face's decoder, from embeddings to final norm.
        parts: the modules of each layer.
        attention: the implementation in use.

    Raises: UnsupportedModelError: a model under an intervention.
    """

    def __init__(self, model: Model, attention: str = "sdpa") -> None:
        self.model = model
        network, self.attention = twin(model, model.dtype, attention)
        names = {id(module): path for path, module in plain_modules(network, model.bridge.original_model)}
        found = dict(network.named_modules())

        def plain(module: nn.Module) -> nn.Module:
            return found[names[id(inner(module))]]

        self.body: Any = network.base_model
        self.parts = [
            Parts(*map(plain, (b.attention_norm, b.attention, b.norm, b.project_in, b.project_out)))
            for b in model.layout.blocks
        ]
        fused = model.dtype != torch.float64
        if fused:
            fuse_gelu(network)
        self.activation = activation(model.ffn[0].activation, fused)
        self.final_norm = plain(model.layout.final_norm)

    def __len__(self) -> int:
        return len(self.parts)

    def coefficients(self, layer: int, x: Float[Tensor, "*rows d_model"]) -> Float[Tensor, "*rows d_mlp"]:
        """A layer's coefficients for what its FFN reads from the residual stream."""
        part = self.parts[layer]
        found: Tensor = self.activation(part.project_in(part.norm(x)))
        return found

    def logits(self, final: Float[Tensor, "*rows d_model"]) -> Float[Tensor, "*rows vocab"]:
        """The logits of what reaches the final norm."""
        return self.model.logits_of(self.final_norm(final))


def activation(name: str, fused: bool) -> nn.Module:
    """Hugging Face's activation of a name; a GELU of seven steps as torch's of one, if ``fused``."""
    from transformers.activations import ACT2FN

    holder = nn.Sequential(ACT2FN[name])
    if fused:
        fuse_gelu(holder)
    return holder
