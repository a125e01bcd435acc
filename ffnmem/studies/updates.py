"""How few sub-updates mᵢvᵢ make up an FFN's output: counted by what is left of the output, and by weight |mᵢ|·‖vᵢ‖."""

from __future__ import annotations

from typing import no_type_check

import numpy as np
from jaxtyping import Float, Float64, Int64
from numba import njit

from ..vocabulary.kernels import LANES, dot
from ..vocabulary.scoring import in_threads

SHARES = (0.5, 0.8, 0.95)


# no_type_check keeps the tests' import hook from wrapping what numba has to compile.
@njit(nogil=True, cache=True)
@no_type_check
def explain(order, coefficients, values, outputs, shares, first, last, needed):
    """For the rows ``first`` to ``last``, subtract sub-updates in order until what is left is small enough.

    ``needed[r, s]`` becomes the smallest k with 1 − ‖y − y_k‖²/‖y‖² ≥ shares[s]. One vector of d_model numbers is all
    that is kept.
    """
    width = values.shape[1]
    left = np.empty(width, np.float64)
    lanes = np.empty(LANES, np.float64)
    for r in range(first, last):
        for j in range(width):
            left[j] = outputs[r, j]
        whole = dot(left, left, lanes)
        found = 0
        square = whole
        for k in range(order.shape[1] + 1):
            while found < shares.shape[0] and square <= (1.0 - shares[found]) * whole:
                needed[r, found] = k
                found += 1
            if found == shares.shape[0] or k == order.shape[1]:
                break
            neuron = order[r, k]
            m = coefficients[r, neuron]
            value = values[neuron]
            for j in range(width):
                left[j] -= m * value[j]
            square = dot(left, left, lanes)
        for s in range(found, shares.shape[0]):
            needed[r, s] = order.shape[1]


def updates_needed(
    coefficients: Float[np.ndarray, "rows d_mlp"],
    values: Float[np.ndarray, "d_mlp d_model"],
    shares: tuple[float, ...] = SHARES,
) -> tuple[Int64[np.ndarray, "rows shares"], Int64[np.ndarray, "rows shares"]]:
    """How many of the largest sub-updates it takes to explain each share of an FFN's output, without its bias.

    Args:
        coefficients: m, of one layer at some positions. values: v. shares: ascending, between 0 and 1.

    Returns:
        by output: the smallest k with 1 − ‖y − y_k‖²/‖y‖² ≥ share, where y = Σᵢ mᵢvᵢ and y_k is the sum of the k
        sub-updates of the largest |mᵢ|·‖vᵢ‖; by weight: the smallest k whose weights are that share of Σᵢ |mᵢ|·‖vᵢ‖.
        An output of zero needs none. ``[rows, d_mlp, d_model]`` never exists: the memory is that of the arguments.

    Source: Geva et al. 2022 (2203.14680), §3.2: dominant sub-updates by |mᵢ|·‖vᵢ‖.
    """
    m, v = (np.ascontiguousarray(array, np.float64) for array in (coefficients, values))
    weights = np.abs(m) * np.sqrt((v * v).sum(axis=-1))
    order = np.argsort(-weights, axis=-1, kind="stable")
    wanted = np.array(shares, np.float64)
    by_output = np.zeros((len(m), len(shares)), np.int64)
    outputs = m @ v
    in_threads(lambda first, last: explain(order, m, v, outputs, wanted, first, last, by_output), len(m))
    return by_output, weights_needed(np.take_along_axis(weights, order, axis=-1), wanted)


def needed_at_random(
    coefficients: Float[np.ndarray, "rows d_mlp"],
    values: Float[np.ndarray, "d_mlp d_model"],
    shares: tuple[float, ...] = SHARES,
) -> Int64[np.ndarray, "rows shares"]:
    """How many sub-updates it takes in random order: the smallest k of which the expected share is large enough.

    What is left of y after k of n sub-updates u, drawn without replacement, has the expected square
    j/(n(n−1))·((j−1)·‖y‖² + (n−j)·Σ‖uᵢ‖²), with j = n − k. Memory: ``[rows, d_mlp]``.
    """
    m, v = (np.asarray(array, np.float64) for array in (coefficients, values))
    n = m.shape[1]
    whole = ((m @ v) ** 2).sum(axis=-1, keepdims=True)
    squares = (m * m) @ (v * v).sum(axis=-1)[:, np.newaxis]
    j = np.arange(n, -1, -1.0)
    left = j * ((j - 1) * whole + (n - j) * squares) / max(n * (n - 1), 1)
    left[:, 0] = whole[:, 0]  # of a single sub-update too
    return np.stack([(left <= (1 - share) * whole).argmax(axis=-1) for share in shares], axis=-1)


def weights_needed(
    falling: Float64[np.ndarray, "rows d_mlp"], shares: Float64[np.ndarray, " shares"]
) -> Int64[np.ndarray, "rows shares"]:
    """The smallest number of the largest weights, here in falling order, that sum to each share of all."""
    sums = np.cumsum(falling, axis=-1)
    wanted = shares * sums[:, -1:]
    return np.stack([(sums < wanted[:, s : s + 1]).sum(axis=-1) + 1 for s in range(len(shares))], axis=-1) * (
        sums[:, -1:] > 0
    )
