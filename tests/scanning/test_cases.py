"""Sign cases: their names, and that they are those of exact numbers after a half-precision pass."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ffnmem.core.types import CASES
from ffnmem.scanning.state import case_names

from ..helpers import allclose
from .gated import gated_store

NEURONS = [0, 17, 63]


def test_names_say_the_signs_and_zero_is_not_above() -> None:
    gate, linear = np.array([1.0, 1.0, 0.0, -0.0]), np.array([2.0, 0.0, 1e-30, -3.0])
    assert case_names(gate, linear) == list(CASES)


def test_after_a_bfloat16_pass_examples_are_exact(tmp_path: Path) -> None:
    """Gate and linear part of the half-precision pass would be shown as exact, or in another case than theirs."""
    half = gated_store("gemma2", tmp_path / "half", dtype="bfloat16")
    full = gated_store("gemma2", tmp_path / "full")
    agree = total = 0
    for neuron in NEURONS:
        a, b = half.examples(1, neuron), full.examples(1, neuron)
        for kind in CASES:
            mine, theirs = (frame[frame["kind"] == kind].set_index("sequence") for frame in (a, b))
            assert (mine["case"] == kind).all()
            assert (mine["coefficient"].abs().diff().dropna() <= 0).all()
            both = mine.index.intersection(theirs.index)
            agree, total = agree + len(both), total + len(theirs)
            for name in ("coefficient", "gate", "linear", "position"):
                assert allclose(mine.loc[both, name], theirs.loc[both, name], 1e-5)
        mine, theirs = (frame[frame["kind"].isin(["quantile", "random"])] for frame in (a, b))
        for name in ("gate", "linear"):
            assert allclose(mine[name], theirs[name], 1e-5)
    assert agree >= 0.9 * total
