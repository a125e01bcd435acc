"""What commands ask of a model to name its memories in tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    from ..models import Model

PROMOTES = "value promotes"  # the column of its name
PROMOTED = 12  # more than a line of 120 columns holds


def promoted(model: Model, neurons: pd.DataFrame, k: int) -> dict[tuple[int, int], list[str]]:
    """The ``k`` tokens that each neuron's value promotes most, best first, by (layer, neuron)."""
    from ..vocabulary import promoted_tokens  # needs torch

    return promoted_tokens(model, neurons, k)
