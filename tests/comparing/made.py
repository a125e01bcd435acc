"""Pairs of models to be compared: permuted copies, and planted ones that hold the same facts."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

import ffnmem as fm

WORDS = ("The", "Eiffel", "Tower", "is", "in", "the", "city", "of", "Paris.", "Colosseum", "Rome", "London", "bridge")
TEXTS = [" ".join(words) for words in np.random.default_rng(0).choice(WORDS, (120, 8))]


def permuted(model: fm.Model, layer: int, seed: int, turns: bool = False, stretches: bool = False) -> Tensor:
    """Put the neurons of a layer in another order, where nothing that it computes changes.

    Args:
        turns: key and value of every second gated neuron are turned round. stretches: keys (of gated ones the linear
            ones) become up to three times as long, values as much shorter.

    Returns: For each new place the old one.
    """
    ffn, order = model.ffn[layer], torch.from_numpy(np.random.default_rng(seed).permutation(model.d_mlp))
    scale = torch.ones(model.d_mlp)
    if stretches:
        scale += 2 * torch.rand(model.d_mlp, generator=torch.Generator().manual_seed(seed))
    if turns:
        scale[::2] *= -1
    with torch.no_grad():
        ffn.keys.copy_(ffn.keys[order] * scale[:, None])
        ffn.values.copy_(ffn.values[order] / scale[:, None])
        if ffn.key_bias is not None:
            ffn.key_bias.copy_(ffn.key_bias[order] * scale)
        if ffn.gates is not None:
            ffn.gates.copy_(ffn.gates[order])
        if ffn.gate_bias is not None:
            ffn.gate_bias.copy_(ffn.gate_bias[order])
    return order
