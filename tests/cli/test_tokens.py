"""What commands ask of a model to name its memories."""

from __future__ import annotations

import pandas as pd

import ffnmem as fm
from ffnmem.cli.output import promoted


def test_promoted_is_the_projection(tiny: fm.Model) -> None:
    """Neurons of one layer are projected together; each must get its own tokens back."""
    neurons = pd.DataFrame({"layer": [1, 0, 1, 1], "neuron": [5, 7, 63, 0]})
    found = promoted(tiny, neurons, 3)
    assert set(found) == {(1, 5), (0, 7), (1, 63), (1, 0)}
    for (layer, neuron), tokens in found.items():
        frame = fm.project(tiny, layer, neuron, k=3, side="value")
        assert tokens == frame.loc[frame["sign"] == "promoted", "token"].tolist()
