"""Edits of small models with random factors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
import torch
from torch import Tensor

import ffnmem as fm
from ffnmem.editing import Edit, EditedLayer
from ffnmem.facts import Fact

EIFFEL = Fact("Eiffel Tower", "landmark.city", "The {} is in the city of", "Paris", "Rome", id="eiffel")
COLOSSEUM = Fact("Colosseum", "landmark.city", "The {} is in the city of", "Rome", "London", id="colosseum")


def change(model: fm.Model, layer: int, rank: int = 1, seed: int = 0, size: float = 0.3) -> EditedLayer:
    generator = torch.Generator().manual_seed(seed * 97 + layer)
    left = size * torch.randn(rank, model.d_mlp, generator=generator, dtype=torch.float64)
    return EditedLayer(layer, left, torch.randn(rank, model.d_model, generator=generator, dtype=torch.float64))


def made(
    model: fm.Model, layers: Sequence[int] = (1,), rank: int = 1, seed: int = 0, fact: Fact = EIFFEL, **more: Any
) -> Edit:
    """An edit of a fact as an editor would make it, with other ranks in other layers."""
    changes = [change(model, layer, rank + i, seed) for i, layer in enumerate(layers)]
    numbers = pd.DataFrame({"k_u": [0.7 + seed], "steps": [20], "stopped": [True], "loss": [float("nan")]})
    settings = {"layer": list(layers), "clamp": 4.0, "contexts": ["{}", "I know that {}"], **more}
    return Edit.of(
        model,
        changes,
        method="rome",
        facts=[fact],
        targets=[str(fact.target_new)],
        settings=settings,
        numbers=numbers,
    )


def weights(model: fm.Model) -> dict[str, Tensor]:
    """A copy of every parameter."""
    return {name: p.detach().clone() for name, p in model.hf_model.named_parameters()}


def same_bits(model: fm.Model, before: dict[str, Tensor]) -> bool:
    """Whether every parameter has the bits that it had; −0 is not 0 here."""
    now = weights(model)
    views = [
        (now[name].contiguous().view(torch.uint8), old.contiguous().view(torch.uint8)) for name, old in before.items()
    ]
    return now.keys() == before.keys() and all(torch.equal(a, b) for a, b in views)


def logits(model: fm.Model, tokens: Tensor) -> Tensor:
    found = fm.capture(model, tokens, logits=True).logits
    assert found is not None
    return found
