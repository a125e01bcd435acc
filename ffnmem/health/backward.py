"""One pass over a batch, forward and back: what every neuron did, and the gradient of the loss at its coefficient."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from ..errors import HookError
from ..models import Model
from ..models.layer_pass import check_same
from ..models.norms import at_least_float32
from ..models.plain_layers import PlainLayers
from ..models.scoring import LOGITS

OnLayer = Callable[[int, Tensor, Tensor, Tensor | None], None]
OnGradient = Callable[[int, Tensor], None]


@dataclass(eq=False)
class Tape:
    """What one forward pass leaves behind for the way back.

    Attributes:
        before: by layer, pre-activations and linear parts of an FFN that is at work.
        coefficients: by layer, part of the graph. ran: how many FFNs did.
    """

    before: dict[int, tuple[Tensor, Tensor | None]] = field(default_factory=dict)
    coefficients: list[Tensor] = field(default_factory=list)
    ran: int = 0


class Passes:
    """Passes over a model's layers by themselves, outside of its bridge; only coefficients carry gradients.

    Args:
        model: from :func:`ffnmem.load`.

    Raises:
        UnsupportedModelError: hooks or an intervention change what the layers compute.
    """

    def __init__(self, model: Model) -> None:
        check_same(model)
        self.model, self.layers = model, PlainLayers(model)

    def run(
        self,
        tokens: Int[Tensor, "rows pos"],
        on_layer: OnLayer,
        on_gradient: OnGradient | None = None,
        scored: Bool[Tensor, "rows pos"] | None = None,
    ) -> float:
        """Run one batch.

        Args:
            tokens: right-padded.
            on_layer: ``on_layer(layer, pre, coefficients, linear)``, told of each layer as it runs; each is
                ``[rows·pos, d_mlp]``, and ``linear`` None for classic FFNs.
            on_gradient: ``on_gradient(layer, ∂L/∂m)``, ``[rows·pos, d_mlp]``, of the loss L summed over the batch.
                None: no way back.
            scored: where the next token counts in the loss.

        Returns:
            L in nats: the sum of −log p of the next token over the places in ``scored``; 0 without the way back.
        """
        tape, back = Tape(), on_gradient is not None and scored is not None
        handles = [handle for layer in range(len(self.layers)) for handle in self.listen(layer, tape, on_layer, back)]
        try:
            with torch.set_grad_enabled(back):
                final = self.layers.body(input_ids=tokens, use_cache=False)[0]
        finally:
            for handle in handles:
                handle.remove()
        if tape.ran != len(self.layers):
            raise HookError(f"{tape.ran} of {len(self.layers)} FFN layers ran in this pass")
        if on_gradient is None or scored is None:
            return 0.0
        slope, loss = self.loss_gradient(final.detach(), tokens, scored)
        for layer, gradient in enumerate(torch.autograd.grad(final, tape.coefficients, slope)):
            on_gradient(layer, flat(gradient))
        return loss

    def listen(self, layer: int, tape: Tape, on_layer: OnLayer, back: bool) -> list[Any]:
        """Hooks on one layer's projections."""
        projections = self.layers.parts[layer].projections

        def receive(_module: Any, args: tuple[Tensor, ...]) -> None:
            coefficients, (pre, linear) = args[0], tape.before.pop(layer)
            tape.ran += 1
            with torch.no_grad():
                on_layer(layer, flat(pre), flat(coefficients), None if linear is None else flat(linear))
            if back:
                if not coefficients.requires_grad:  # the first layer's: the graph begins here
                    coefficients.requires_grad_()
                tape.coefficients.append(coefficients)

        return [
            *projections.listen(lambda pre, linear: tape.before.__setitem__(layer, (pre, linear))),
            projections.out.register_forward_pre_hook(receive),
        ]

    def loss_gradient(
        self,
        final: Float[Tensor, "rows pos d_model"],
        tokens: Int[Tensor, "rows pos"],
        scored: Bool[Tensor, "rows pos"],
    ) -> tuple[Float[Tensor, "rows pos d_model"], float]:
        """∂L/∂(the final norm's output), and L; a few positions' logits at once, so that memory stays small."""
        gradient = torch.zeros_like(final)
        rows, at = scored.nonzero(as_tuple=True)
        loss = 0.0
        at_once = max(1, LOGITS // self.model.d_vocab)
        for start in range(0, len(rows), at_once):
            some_rows, some = rows[start : start + at_once], at[start : start + at_once]
            x = final[some_rows, some].requires_grad_()
            with torch.enable_grad():
                logits = at_least_float32(self.model.logits_of(x))
                each = F.cross_entropy(logits, tokens[some_rows, some + 1], reduction="none")
                (gradient[some_rows, some],) = torch.autograd.grad(each.sum(), x)
            loss += float(each.detach().double().sum())
        return gradient, loss


def flat(tensor: Tensor) -> Tensor:
    """``[rows·pos, d_mlp]``, also where an architecture (OPT) has flattened it before."""
    return tensor if tensor.ndim == 2 else rearrange(tensor, "rows pos d_mlp -> (rows pos) d_mlp")


def scored_places(content: Bool[Tensor, "rows pos"]) -> Bool[Tensor, "rows pos"]:
    """Where the next token is content, so that its prediction is in the loss."""
    return torch.cat([content[:, 1:], torch.zeros_like(content[:, :1])], dim=1)


def answering(content: Bool[Tensor, "rows pos"], scored: Bool[Tensor, "rows pos"]) -> Bool[Tensor, "rows pos"]:
    """Content that is followed by a scored prediction, its own included; elsewhere the gradient is 0 by construction.

    A sequence's last position predicts nothing: counting it would make neurons look weaker the shorter the texts are.
    """
    return content & (scored.flip(1).cumsum(1).flip(1) > 0)
