"""An architecture without a description of ours is read by what TransformerLens calls its parts; here it is tried."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..core.errors import HookError, UnsupportedModelError
from .hooks import OnTensor, keeper, listening
from .layout import inner
from .model import AGREE, PROBE, Model
from .replaying import PlainLayers, activation

HALF = 0.02  # of the largest number: rounding of half precision, and less than a multiplier that somebody would use


def check_undescribed(model: Model) -> None:
    """Raise UnsupportedModelError, saying which part is otherwise, unless a model is the sum that its layout says.

    One pass over a few tokens: every FFN is computed again from keys, gates and values, every layer from what its
    attention and FFN write, and the logits from the final norm.
    """
    PlainLayers(model)  # whose modules must be found
    try:
        found = ProbePass(model)
    except RuntimeError as error:
        raise UnsupportedModelError(f"{model.name} ({model.architecture}) does not run: {error}") from None
    for layer in range(model.n_layers):
        ffn, x = model.ffn[layer], found["ffn_in", layer]
        pre = product(x, ffn.activated, ffn.activated_bias)
        linear = product(x, ffn.keys, ffn.key_bias) if ffn.gated else None
        m = activation(ffn.activation, fused=False)(pre)
        m = m if linear is None else m * linear
        found.check(m, found["coefficients", layer], f"the coefficients of layer {layer} are not those of its keys")
        added = [
            model.layout.through(norm, found[name, layer])
            for name, norm in (
                ("attention", model.layout.blocks[layer].attention_post),
                ("ffn", model.layout.blocks[layer].post),
            )
        ]
        above = found["stream", layer + 1]
        total = found["stream", layer] + added[0] + added[1]
        found.check(total, above, f"the output of layer {layer} is not the sum of its input, its attention and its FFN")
    position = found["position", 0] if model.layout.position_embedding is not None else None
    if position is not None:
        begin = found["embedding", 0] + position
        found.check(begin, found["stream", 0], "its first layer reads no sum of embeddings and positions")
    with torch.no_grad():
        logits = model.hf_model(input_ids=found.tokens, use_cache=False).logits
    found.check(model.logits_of(found["final", 0]), logits, "its logits are not the final norm times the unembedding")


def product(x: Float[Tensor, "*n d_model"], keys: Tensor, bias: Tensor | None) -> Float[Tensor, "*n d_mlp"]:
    return torch.nn.functional.linear(x, keys.detach(), None if bias is None else bias.detach())


class ProbePass:
    """What passed in one forward pass over a few tokens, by name and layer."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.tokens = torch.arange(min(PROBE, model.d_vocab), device=model.device).unsqueeze(0)
        self.found: dict[tuple[str, int], Tensor] = {}
        layout = model.layout
        before: list[tuple[nn.Module, OnTensor]] = [(layout.final_norm, self.keeper("stream", model.n_layers))]
        after = [(layout.final_norm, self.keeper("final", 0)), (layout.embedding, self.keeper("embedding", 0))]
        if layout.position_embedding is not None:
            after.append((layout.position_embedding, self.keeper("position", 0)))
        for layer, block in enumerate(layout.blocks):
            before += [
                (block.whole, self.keeper("stream", layer)),
                (inner(block.project_in), self.keeper("ffn_in", layer)),
                (inner(block.project_out), self.keeper("coefficients", layer)),
            ]
            after += [
                (block.attention_out, self.keeper("attention", layer)),
                (block.project_out, self.keeper("ffn", layer)),
            ]
        with listening(before, after):
            model.body(self.tokens)

    def keeper(self, name: str, layer: int) -> OnTensor:
        return keeper(self.found, (name, layer), lambda tensor: tensor.reshape(1, -1, tensor.shape[-1]).clone())

    def __getitem__(self, key: tuple[str, int]) -> Tensor:
        if key not in self.found:
            raise HookError(f"{self.model.name} ({self.model.architecture}): {key[0]} of layer {key[1]} did not run")
        return self.found[key]

    def check(self, expected: Tensor, found: Tensor, what: str) -> None:
        allowed = AGREE.get(self.model.dtype, HALF)
        off = float((expected - found).detach().abs().max() / found.detach().abs().max().clamp(min=1e-30))
        if not off <= allowed:
            raise UnsupportedModelError(
                f"{self.model.name} ({self.model.architecture}) is no architecture that ffnmem describes, and read by "
                f"the names of its parts {what} (off by {off:.1g})"
            )
