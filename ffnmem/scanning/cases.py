"""The four sign cases of a gated neuron: the signs of its gate's pre-activation and of its linear part.

A gated neuron's coefficient is act(gate·x)·(key·x). Where the activation keeps the sign of what it is given (SiLU,
GELU), the coefficient is positive if both signs agree: the largest coefficients then mix two cases that mean different
things, and so do the smallest (Gerstner and Schütze 2025).
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int64

from ..core.choices import CASES as CASES

COLUMNS = ("gate_pos_linear_pos", "gate_pos_linear_neg", "gate_neg_linear_pos", "gate_neg_linear_neg")
"""What the names of the cases' statistics end in."""

PARTS = ("gate", "linear")
"""Of an example: the gate's pre-activation and the linear part, which the activation leaves as it is."""


def case_index(gate: Float[np.ndarray, "*shape"], linear: Float[np.ndarray, "*shape"]) -> Int64[np.ndarray, "*shape"]:
    """Which of :data:`CASES` each pair of numbers is."""
    return 2 * at_or_below(gate).astype(np.int64) + at_or_below(linear)


def at_or_below(values: Float[np.ndarray, "*shape"]) -> Bool[np.ndarray, "*shape"]:
    return ~(values > 0)


def case_names(gate: Float[np.ndarray, " n"], linear: Float[np.ndarray, " n"]) -> list[str]:
    """The case of each pair of numbers in words."""
    return [CASES[index] for index in case_index(gate, linear).tolist()]


def with_parts(frame: pd.DataFrame, parts: Float[np.ndarray, "2 rows"]) -> pd.DataFrame:
    """Examples with the columns gate, linear and case behind the others."""
    gate, linear = parts.astype(np.float64)
    return frame.assign(gate=gate, linear=linear, case=pd.Series(case_names(gate, linear), frame.index, str))
