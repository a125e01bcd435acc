"""How far a matrix product's scores may be off: bounds that hold whatever the order of its sums.

For a sum of n products in arithmetic of unit roundoff u, in any order, with or without fused operations:
|computed − exact| ≤ γₙ Σ|vᵢeᵢ| ≤ γₙ ‖v‖‖e‖, γₙ = nu/(1 − nu) (Higham 2002, Accuracy and Stability, §3.1 and §4.2).
Rounding the factors themselves adds |v̂·ê − v·e| ≤ ‖v̂ − v‖‖e‖ + ‖v̂‖‖ê − e‖, whose norms are measured, not assumed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

UNIT_BFLOAT16 = 2.0**-8
UNIT_TF32 = 2.0**-11
UNIT_FLOAT32 = 2.0**-24
UNIT_FLOAT64 = 2.0**-53
UNIT_LOOSE = 2.0**-22
"""For matrix units, which accumulate in float32 but may cut off where float32 would round."""
TINY_FLOAT32 = 2.0**-125
TINY_FLOAT64 = 2.0**-1021
"""More than a factor or a product can lose by underflow, flushed to zero or not."""

Norms = Float64[np.ndarray, " rows"]


@dataclass(frozen=True)
class Largest:
    """Largest norms over the vocabulary: of the embeddings, of the rounded ones, and of the difference."""

    exact: float
    rounded: float
    residual: float


@dataclass(frozen=True)
class Arithmetic:
    """How a product computes.

    Attributes:
        unit: unit roundoff of its sums.
        hidden: unit roundoff that it applies to float32 factors unasked (TF32, or float32 by way of bfloat16).
        output: unit roundoff of a result that is narrower than the sums.
        result: unit roundoff of the canonical score, which is what is compared.
        tiny: what a factor or a product may lose by underflow.
    """

    unit: float
    hidden: float = 0.0
    output: float = 0.0
    result: float = UNIT_FLOAT32
    tiny: float = TINY_FLOAT32


def gamma(n: int, unit: float) -> float:
    """γₙ = nu/(1 − nu); infinite where that means nothing."""
    return n * unit / (1 - n * unit) if n * unit < 0.5 else float("inf")


def product_error(
    arithmetic: Arithmetic, width: int, exact: Norms, rounded: Norms, residual: Norms, largest: Largest
) -> Norms:
    """Bound on |score − canonical score| over all tokens, before the score is stored; one number a row.

    Args:
        arithmetic: of the product. width: d_model.
        exact, rounded, residual: ‖v‖, ‖v̂‖ and ‖v − v̂‖ of each row, v̂ what the product was given.
        largest: the same over the tokens.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        factors = residual * largest.exact + rounded * largest.residual
        hidden = (2 * arithmetic.hidden + arithmetic.hidden**2) * rounded * largest.rounded
        # Sums of factors that were rounded once more may be that much longer.
        sums = gamma(width, arithmetic.unit) * (1 + arithmetic.hidden) ** 2 * rounded * largest.rounded
        canonical = (gamma(width, UNIT_FLOAT64) + 2 * arithmetic.result) * exact * largest.exact
        # What is lost where factors or products are too small for the arithmetic.
        tiny = 2 * width * arithmetic.tiny * (1 + rounded + largest.rounded)
        # The norms and this sum are rounded too, each by far less than a part in a million.
        return (factors + hidden + sums + canonical) * (1 + 1e-6) + tiny


def slack(arithmetic: Arithmetic, error: Norms, extreme: Norms) -> Norms:
    """How far below the k-th stored score a token may lie and still be one of the k best: twice the whole bound.

    Args:
        error: of :func:`product_error`. extreme: the largest \\|stored score\\| of each row.

    If at least k tokens are stored as t or more, k have canonical scores of t − b or more; a token at least that good
    is stored as t − 2b or more.
    """
    return 2 * (error + arithmetic.output / (1 - arithmetic.output) * extreme)
