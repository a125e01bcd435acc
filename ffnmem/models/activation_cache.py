"""What a capture holds under TransformerLens' names: taken from its ``ActivationCache``, and given as one.

Tensors have TransformerLens' shapes, ``[batch, pos, d_mlp]`` and ``[batch, pos, d_model]``. Names as in a cache of a
``TransformerBridge`` (TransformerLens 4).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from ..core.errors import InputError, InputTypeError, listed, quoted
from ..core.neuron_names import HOOKS, nearest, read_place
from .model import AGREE, HALF, Model

TOKEN_IDS = "embed.hook_in"
"""The token ids themselves, by which a cache is known to be of a prompt."""

OF_MODEL = {
    "embedding": "hook_embed",
    "position": "hook_pos_embed",
    "final_in": "ln_final.hook_in",
    "final_out": "ln_final.hook_out",
}
Key = tuple[str, int]
"""A part of a capture and its layer, −1 for one of the whole model."""


def hook_name(part: str, layer: int = -1) -> str:
    """TransformerLens' name: ``blocks.3.mlp.hook_post``."""
    return OF_MODEL[part] if layer < 0 else f"blocks.{layer}.{HOOKS[part]}"


def part_of(name: str, n_layers: int) -> Key:
    """The part and the layer that a hook name means; raises InputError, with the names there are, for another."""
    for part, hook in OF_MODEL.items():
        if name == hook:
            return part, -1
    found = read_place(name)
    if found is not None and found[1] < n_layers:
        return found
    names = [*OF_MODEL.values(), *(f"blocks.0.{hook}" for hook in HOOKS.values())]
    near = "" if found else nearest(name)
    raise InputError(
        f"{quoted(name)} is no place of this capture by TransformerLens' names{near}: there are "
        f"{listed(names, len(names))}, and those of layers up to {n_layers - 1}"
    )


def wanted(model: Model, layers: Iterable[int], everything: bool, logits: bool) -> Iterator[tuple[Key, str]]:
    """What a capture of some layers needs, and the name of each in a cache."""
    parts = ["pre", "coefficients", "ffn_in", "ffn_out", *(["linear"] if model.gated else [])]
    for layer in layers:
        for part in parts:
            yield (part, layer), hook_name(part, layer)
    if everything:
        for layer in range(model.n_layers):
            yield ("attention", layer), hook_name("attention", layer)
        if model.layout.position_embedding is None:  # what enters the first layer is scaled or normed in some models
            yield ("embedding", -1), hook_name("resid_pre", 0)
        else:
            yield ("embedding", -1), hook_name("embedding")
            yield ("position", -1), hook_name("position")
        yield ("final_in", -1), hook_name("final_in")
    if everything or logits:
        yield ("final_out", -1), hook_name("final_out")


def read_cache(
    model: Model,
    cache: Any,
    tokens: Int[Tensor, "batch pos"],
    mask: Bool[Tensor, "batch pos"],
    layers: Sequence[int],
    *,
    everything: bool,
    logits: bool,
) -> dict[Key, Tensor]:
    """The parts of a capture of some tokens, from an ActivationCache (or a dict) of a pass over them; pads are zeroed.

    Raises InputError: a cache that lacks some, naming all of them; of another shape, other tokens or another model.
    """
    if not (hasattr(cache, "__getitem__") and hasattr(cache, "keys")):
        raise InputTypeError(f"a cache is an ActivationCache or a dict of tensors, not {type(cache).__name__}")
    names = dict(wanted(model, layers, everything, logits))
    lacking = [name for name in names.values() if name not in cache]
    if lacking:
        raise InputError(
            f"the cache lacks {listed(lacking, 6)}: take it with bridge.run_with_cache(tokens) without a names_filter"
        )
    found: dict[Key, Tensor] = {}
    for key, name in names.items():
        value = cache[name].detach().to(model.device)
        if key[0] == "position" and value.ndim == 3 and value.shape[0] == 1:
            value = value.expand(tokens.shape[0], -1, -1)  # positions come as a batch of one
        if value.shape[:2] != tokens.shape:
            raise InputError(
                f"the cache's {name} is {list(value.shape)}, but the prompt is {list(tokens.shape)} [batch, pos]: "
                "give the prompt that the cache is of"
            )
        if value.dtype != model.dtype:
            raise InputError(f"the cache's {name} is {value.dtype}, but {model.name} runs in {model.dtype}")
        found[key] = value
    check_tokens_of(model, cache, found, tokens)
    for layer in layers:
        ffn = model.ffn[layer]
        m, bias = found["coefficients", layer], ffn.value_bias
        check_near(
            model, m @ ffn.values.detach() + (0 if bias is None else bias.detach()), found["ffn_out", layer], layer
        )
    return found if bool(mask.all()) else {key: v.masked_fill(~mask.unsqueeze(-1), 0) for key, v in found.items()}


def check_tokens_of(model: Model, cache: Any, found: Mapping[Key, Tensor], tokens: Tensor) -> None:
    """Raise InputError unless a cache is of these tokens: by their ids in it, or else by their embeddings."""
    if TOKEN_IDS in cache:
        ids = cache[TOKEN_IDS].to(tokens.device)
        same = ids.numel() == tokens.numel() and torch.equal(ids.reshape(tokens.shape).long(), tokens)
    elif ("position", -1) in found:  # then what was read is the embedding itself
        with torch.no_grad():
            same = torch.equal(found["embedding", -1], model.embedding.detach()[tokens])
    else:
        raise InputError(f"the cache lacks {TOKEN_IDS}, by which its tokens are known: take it without a names_filter")
    if not same:
        raise InputError("the cache is of other tokens than the prompt: give the prompt that it is of")


def check_near(model: Model, expected: Tensor, found: Tensor, layer: int) -> None:
    off = float((expected - found).abs().max() / found.abs().max().clamp(min=1e-30))
    if not off <= AGREE.get(model.dtype, HALF):
        raise InputError(
            f"the cache's {hook_name('ffn_out', layer)} is not what its coefficients give with the values of "
            f"{model.name} (off by {off:.1g}): it is of another model, of one changed since, or was changed by hooks"
        )


def as_cache(places: dict[str, Tensor], model: Model) -> Any:
    """Tensors by TransformerLens' names as its ``ActivationCache`` around ``model.to_bridge()``."""
    from transformer_lens import ActivationCache

    return ActivationCache(places, model.to_bridge())
