"""An architecture without a description of ours is read by what TransformerLens calls its parts; here it is tried."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..core.errors import UnsupportedModelError
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
    who = f"{model.name} ({model.architecture})"
    tokens = torch.arange(min(PROBE, model.d_vocab), device=model.device).unsqueeze(0)
    try:
        seen = record_pass(model, tokens, who)
        with torch.no_grad():
            logits = model.hf_model(input_ids=tokens, use_cache=False).logits
    except RuntimeError as error:
        raise UnsupportedModelError(f"{who} does not run: {error}") from None

    def check(expected: Tensor, found: Tensor, what: str) -> None:
        off = float((expected - found).detach().abs().max() / found.detach().abs().max().clamp(min=1e-30))
        if not off <= AGREE.get(model.dtype, HALF):
            raise UnsupportedModelError(
                f"{who} is no architecture that ffnmem describes, and read by the names of its parts {what} (off by "
                f"{off:.1g})"
            )

    for layer, (ffn, block) in enumerate(zip(model.ffn, model.layout.blocks, strict=True)):
        x = seen["ffn_in", layer]
        m = activation(ffn.activation, fused=False)(product(x, ffn.activated, ffn.activated_bias))
        m = m * product(x, ffn.keys, ffn.key_bias) if ffn.gated else m
        check(m, seen["coefficients", layer], f"the coefficients of layer {layer} are not those of its keys")
        total = seen["stream", layer] + model.layout.through(block.attention_post, seen["attention", layer])
        total = total + model.layout.through(block.post, seen["ffn", layer])
        sums = f"the output of layer {layer} is not the sum of its input, its attention and its FFN"
        check(total, seen["stream", layer + 1], sums)
    if model.layout.position_embedding is not None:
        begin = seen["embedding", 0] + seen["position", 0]
        check(begin, seen["stream", 0], "its first layer reads no sum of embeddings and positions")
    check(model.logits_of(seen["final", 0]), logits, "its logits are not the final norm times the unembedding")


def product(x: Float[Tensor, "*n d_model"], keys: Tensor, bias: Tensor | None) -> Float[Tensor, "*n d_mlp"]:
    return torch.nn.functional.linear(x, keys.detach(), None if bias is None else bias.detach())


def record_pass(model: Model, tokens: Int[Tensor, "1 pos"], who: str) -> dict[tuple[str, int], Tensor]:
    """What passes in one forward pass, by name and layer; raises UnsupportedModelError for a part that does not run."""
    layout, seen = model.layout, dict[tuple[str, int], Tensor]()
    read: list[tuple[str, int, nn.Module]] = [("stream", model.n_layers, layout.final_norm)]
    written = [("final", 0, layout.final_norm), ("embedding", 0, layout.embedding)]
    if layout.position_embedding is not None:
        written.append(("position", 0, layout.position_embedding))
    for layer, block in enumerate(layout.blocks):
        read += [("stream", layer, block.whole), ("ffn_in", layer, inner(block.project_in))]
        read += [("coefficients", layer, inner(block.project_out))]
        written += [("attention", layer, block.attention_out), ("ffn", layer, block.project_out)]

    def keep(parts: list[tuple[str, int, nn.Module]]) -> list[tuple[nn.Module, OnTensor]]:
        def flat(x: Tensor) -> Tensor:
            return x.reshape(1, -1, x.shape[-1]).clone()

        return [(module, keeper(seen, (name, layer), flat)) for name, layer, module in parts]

    with listening(keep(read), keep(written)):
        model.body(tokens)
    for name, layer, _ in read + written:
        if (name, layer) not in seen:
            raise UnsupportedModelError(f"{who}: {name} of layer {layer} did not run")
    return seen
