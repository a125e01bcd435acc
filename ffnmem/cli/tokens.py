"""What commands ask of a model to name its memories in tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import ffnmem as fm

if TYPE_CHECKING:
    import pandas as pd

    from ..models import Model

PROMOTES = "value promotes"  # the column of its name
PROMOTED = 12  # more than a line of 120 columns holds


def promoted(model: Model, neurons: pd.DataFrame, k: int) -> dict[tuple[int, int], list[str]]:
    """The ``k`` tokens that each neuron's value promotes most, best first, by (layer, neuron)."""
    found: dict[tuple[int, int], list[str]] = {}
    for layer, rows in neurons.groupby("layer"):
        frame = fm.project(model, int(layer), rows["neuron"].tolist(), k=k, side="value")
        for row in frame[frame["sign"] == "promoted"].itertuples():
            found.setdefault((row.layer, row.neuron), []).append(row.token)
    return found
