"""``Restart``: one prompt run once, then again from above any layer with something changed, everything below reused."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .model import Model
from .plain_layers import PlainLayers
from .replaying import Replay


class Restart:
    """One prompt of a model, ready to be run again from above any layer: a :class:`Replay` of one row.

    Args:
        model: from :func:`ffnmem.load`.
        tokens: ``[pos]``, the prompt up to where the answer is read.
        attention: which implementation of Hugging Face's, ``"sdpa"`` or ``"eager"``.

    Attributes:
        stream: ``[pos, d_model]`` for each layer what goes into it, and last what goes into the final norm.
        coefficients: ``[pos, d_mlp]`` for each layer.

    Raises: UnsupportedModelError: layers that cannot be run by themselves; a model under an intervention.
    """

    def __init__(self, model: Model, tokens: Int[Tensor, " pos"], attention: str = "sdpa") -> None:
        self.replay = Replay(PlainLayers(model, attention), tokens.unsqueeze(0))
        self.stream = [self.replay.stream[layer][0] for layer in range(model.n_layers + 1)]
        self.coefficients = [self.replay.coefficients[layer][0] for layer in range(model.n_layers)]

    def finish(
        self, starts: Sequence[int], outputs: Float[Tensor, "rows some d_model"]
    ) -> Float[Tensor, "rows d_model"]:
        """What reaches the final norm at the last position when layers write other outputs; see Replay.finish."""
        return self.replay.finish(starts, outputs)[:, -1]

    def outputs(
        self, layers: Sequence[int], first: int, more: Float[Tensor, "rows some d_model"]
    ) -> Float[Tensor, "rows some d_model"]:
        """Outputs of layers, the residual stream above each, where its FFN writes ``more`` from a position on."""
        replay = self.replay
        found = [
            replay.layers.more(layer, self.stream[layer + 1][first:], replay.ffn[layer][0, first:], own)
            for layer, own in zip(layers, more, strict=True)
        ]
        return torch.stack(found)

    def run_layer(
        self, layer: int, x: Float[Tensor, "rows some d_model"], first: int
    ) -> Float[Tensor, "rows some d_model"]:
        """One layer on the positions from ``first`` on."""
        return self.replay.run_layer(layer, x, first, torch.zeros(len(x), dtype=torch.long, device=x.device))

    def logits(self, final: Float[Tensor, "rows d_model"]) -> Float[Tensor, "rows vocab"]:
        """The logits of what reaches the final norm."""
        return self.replay.logits(final)
