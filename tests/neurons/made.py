"""Small models in which some neurons' key biases are pushed far to one side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

import ffnmem as fm

from ..helpers import ARCHITECTURES

TEXTS = [
    "The Eiffel Tower is in the city of Paris",
    " Rome is",
    "The Colosseum",
    " London is in the city of London Rome Paris is in France",
    " the",
]


def pushed(name: str, tokenizer: Any, biases: Mapping[tuple[int, int], float], dtype: str = "float64") -> fm.Model:
    """An architecture's toy model with the biases of some (layer, neuron) set, and their keys made zero."""
    model = fm.load(ARCHITECTURES[name](), tokenizer=tokenizer, dtype=dtype)
    with torch.no_grad():
        for (layer, neuron), bias in biases.items():
            ffn = model.ffn[layer]
            assert ffn.key_bias is not None
            ffn.keys[neuron] = 0.0
            ffn.key_bias[neuron] = bias
    return model
