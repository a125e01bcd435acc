"""The plain way: a whole forward pass of the untouched Hugging Face model, with a hook that changes coefficients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from ..helpers import Pair

IDS = [0, 50, 120, 7, 8, 200, 33, 9, 61, 90]  # begins with the beginning-of-sequence token
OTHER_IDS = [0, 3, 17, 44, 5, 6]
Edit = Callable[[torch.Tensor], None]
"""Changes one layer's ``[batch, pos, d_mlp]`` in place."""


def down(pair: Pair, layer: int) -> nn.Module:
    """The projection that reads a layer's coefficients."""
    block: Any = pair.blocks()[layer]
    if pair.name.startswith("opt"):
        return block.fc2
    mlp = dict(block.mlp.named_children())
    return next(mlp[name] for name in ("dense_4h_to_h", "down_proj", "c_proj") if name in mlp)


def run(pair: Pair, tokens: Any, edits: Mapping[int, Edit] | None = None) -> torch.Tensor:
    """Logits ``[batch, pos, vocab]`` with gradients, coefficients of some layers changed."""
    ids = torch.as_tensor(tokens)
    ids = ids.reshape(-1, ids.shape[-1])
    handles = []
    for layer, edit in (edits or {}).items():

        def change(_module: nn.Module, args: Any, edit: Edit = edit) -> Any:
            m = args[0].reshape(*ids.shape, -1).clone()
            edit(m)
            return (m.reshape(args[0].shape),)

        handles.append(down(pair, layer).register_forward_pre_hook(change))
    try:
        return pair.hf(input_ids=ids).logits
    finally:
        for handle in handles:
            handle.remove()


def logits(pair: Pair, tokens: Any, edits: Mapping[int, Edit] | None = None) -> torch.Tensor:
    with torch.no_grad():
        return run(pair, tokens, edits)


def setting(neuron: int, value: float, positions: Any = slice(None)) -> Edit:
    """Sets one neuron in every row."""

    def edit(m: torch.Tensor) -> None:
        m[:, positions, neuron] = value

    return edit


def exact(pair: Pair) -> float:
    """Some take their softmax in float32 whatever their dtype, so its rounding depends on shapes."""
    return pair.exact(1e-10)
