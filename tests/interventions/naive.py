"""The plain way: a whole forward pass with hooks that change coefficients in place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import nn

import ffnmem as fm

from ..helpers import Pair

IDS = [0, 50, 120, 7, 8, 200, 33, 9, 61, 90]  # begins with the beginning-of-sequence token
Edit = Callable[[torch.Tensor], Any]
"""Changes one layer's ``[batch, pos, d_mlp]`` in place."""


def run(model: fm.Model, tokens: Any, edits: Mapping[int, Edit] | None = None) -> torch.Tensor:
    """Logits ``[batch, pos, vocab]`` with gradients, coefficients of some layers changed."""
    ids = torch.as_tensor(tokens)
    ids = ids.reshape(-1, ids.shape[-1])

    def hook(edit: Edit, _module: nn.Module, args: Any) -> Any:
        m = args[0].reshape(*ids.shape, -1).clone()
        edit(m)
        return (m.reshape(args[0].shape), *args[1:])

    with ExitStack() as hooks:
        for layer, edit in (edits or {}).items():
            hooks.callback(model.ffn[layer].project_out.register_forward_pre_hook(partial(hook, edit)).remove)
        found: torch.Tensor = model.hf_model(input_ids=ids).logits
    return found


def logits(model: fm.Model, tokens: Any, edits: Mapping[int, Edit] | None = None) -> torch.Tensor:
    with torch.no_grad():
        return run(model, tokens, edits)


def exact(pair: Pair) -> float:
    """Some take their softmax in float32 whatever their dtype, so its rounding depends on shapes."""
    return pair.exact(1e-10)
