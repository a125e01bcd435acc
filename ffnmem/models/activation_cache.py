"""What a capture holds under TransformerLens' names, and as its ``ActivationCache``.

Tensors have TransformerLens' shapes, ``[batch, pos, d_mlp]`` and ``[batch, pos, d_model]``. Names as in a cache of a
``TransformerBridge`` (TransformerLens 4).
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..core.errors import InputError, listed, quoted
from ..core.neuron_names import HOOKS, nearest, read_place
from .model import Model

TOKEN_IDS = "embed.hook_in"
"""The token ids themselves."""

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


def as_cache(places: dict[str, Tensor], model: Model) -> Any:
    """Tensors by TransformerLens' names as its ``ActivationCache`` around ``model.to_bridge()``."""
    from transformer_lens import ActivationCache

    return ActivationCache(places, model.to_bridge())
