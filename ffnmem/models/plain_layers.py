"""``PlainLayers``: a model's layers as plain modules around its own weights, to be run one at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from .layer_pass import Counterparts, Projections, fuse_gelu, network_around
from .model import Model


@dataclass(frozen=True)
class Parts:
    """The plain modules of one layer; norms are None where it has none."""

    whole: nn.Module
    attention_norm: nn.Module | None
    attention: nn.Module
    attention_out: nn.Module
    attention_post: nn.Module | None
    norm: nn.Module | None
    post: nn.Module | None
    projections: Projections

    @property
    def project_out(self) -> nn.Module:
        """The down projection."""
        return self.projections.out


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
        network, self.attention = network_around(model, model.dtype, attention)
        plain = Counterparts(model, network)
        self.body: Any = network.base_model
        self.parts = [
            Parts(
                whole=plain(b.whole),
                attention_norm=plain.maybe(b.attention_norm),
                attention=plain(b.attention),
                attention_out=plain(b.attention_out),
                attention_post=plain.maybe(b.attention_post),
                norm=plain.maybe(b.norm),
                post=plain.maybe(b.post),
                projections=plain.projections(layer),
            )
            for layer, b in enumerate(model.layout.blocks)
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
        pre, linear = part.projections.pre(x if part.norm is None else part.norm(x))
        found: Tensor = self.activation(pre)
        return found if linear is None else found * linear

    def added(self, layer: int, part: str, written: Float[Tensor, "*rows d_model"]) -> Float[Tensor, "*rows d_model"]:
        """What is added to the residual stream of what a part ("attention" or "ffn") writes."""
        parts = self.parts[layer]
        return self.model.layout.through(parts.attention_post if part == "attention" else parts.post, written)

    def more(
        self,
        layer: int,
        output: Float[Tensor, "*rows d_model"],
        written: Float[Tensor, "*rows d_model"],
        more: Float[Tensor, "*rows d_model"],
    ) -> Float[Tensor, "*rows d_model"]:
        """A layer's output, the residual stream above it, where its FFN writes ``more`` than ``written``."""
        if self.parts[layer].post is None and self.model.layout.write_scale == 1.0:
            return output + more
        return output + (self.added(layer, "ffn", written + more) - self.added(layer, "ffn", written))

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
