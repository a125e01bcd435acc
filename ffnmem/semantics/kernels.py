"""The inner loops of roles on the CPU: power sums of cosines, and how often neurons fire by group.

Each works on the rows or neurons ``first`` to ``last``, holds no lock and writes nowhere else, so that threads can
share the work; every number is summed by one thread, so sums do not depend on how many there are.
"""

from __future__ import annotations

from typing import no_type_check

import numpy as np
from numba import njit

WIDTH = 1536  # neurons a block, as in the scan's kernels: tokens lie a page apart in memory


# no_type_check keeps the tests' import hook from wrapping what numba has to compile. Sums may be taken in any order,
# which lets compilers use vector instructions; they are taken in float64, so it does not show.
@njit(nogil=True, cache=True, fastmath={"reassoc", "nsz", "contract"})
@no_type_check
def power_sums(scores: np.ndarray, shifts: np.ndarray, first: int, last: int, sums: np.ndarray) -> None:
    """Add Σ(x − shift)¹…⁴ of each row of ``scores`` [rows, n] to ``sums`` [rows, 4], in float64."""
    for r in range(first, last):
        row, shift = scores[r], shifts[r]
        s1 = s2 = s3 = s4 = 0.0
        for j in range(row.shape[0]):
            x = np.float64(row[j]) - shift
            square = x * x
            s1 += x
            s2 += square
            s3 += square * x
            s4 += square * square
        sums[r, 0] += s1
        sums[r, 1] += s2
        sums[r, 2] += s3
        sums[r, 3] += s4


@njit(nogil=True, cache=True)
@no_type_check
def count_active(coefficients: np.ndarray, pairs: np.ndarray, first: int, last: int, counts: np.ndarray) -> None:
    """Count coefficients above 0: ``pairs`` [n, 2] lists (row of ``coefficients``, row of ``counts``)."""
    for start in range(first, last, WIDTH):
        stop = min(start + WIDTH, last)
        for i in range(pairs.shape[0]):
            c, total = coefficients[pairs[i, 0], start:stop], counts[pairs[i, 1], start:stop]
            for j in range(stop - start):
                total[j] += np.int32(c[j] > 0)
