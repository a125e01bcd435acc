"""The inner loops that gated neurons need besides :mod:`.kernels`: sign cases, linear parts, and lists that carry both.

As there, one thread sums a neuron over the tokens in order, and blocks of neurons are wide.
"""

from __future__ import annotations

from typing import no_type_check

import numba
import numpy as np

WIDTH = 1536
NONE = -1.0  # the magnitude of a case that a sequence is never in
_jit = numba.njit(cache=True, nogil=True, error_model="numpy")


@_jit
@no_type_check
def cases(
    gate: np.ndarray,
    linear: np.ndarray,
    coefficients: np.ndarray,
    mask: np.ndarray,
    pos: int,
    start: int,
    stop: int,
    counts: np.ndarray,
    case_sums: np.ndarray,
    sums: np.ndarray,
    span: np.ndarray,
    best: np.ndarray,
    best_at: np.ndarray,
) -> None:
    """Count, sum and compare by case.

    ``counts``, ``case_sums`` [4, d_mlp]: positions, Σ coefficient. ``sums`` [4, d_mlp]: Σ linear¹…⁴; ``span``: its
    range.
    ``best``, ``best_at`` [4, rows, d_mlp]: the largest magnitude of a coefficient of each sequence, NONE where there is
    none, and its first position.
    """
    # Four times the same, not a loop over cases: so it is compiled to vector instructions, and twice as fast.
    nothing, empty = np.float64(0), np.float32(NONE)
    for first in range(start, stop, WIDTH):
        last = min(first + WIDTH, stop)
        width = last - first
        c0, c1, c2, c3 = np.zeros(width), np.zeros(width), np.zeros(width), np.zeros(width)
        l1, l2, l3, l4 = np.zeros(width), np.zeros(width), np.zeros(width), np.zeros(width)
        n0, n1 = np.zeros(width, np.int32), np.zeros(width, np.int32)
        n2, n3 = np.zeros(width, np.int32), np.zeros(width, np.int32)
        least, most = span[0, first:last], span[1, first:last]
        for row in range(best.shape[1]):
            b0, b1 = best[0, row, first:last], best[1, row, first:last]
            b2, b3 = best[2, row, first:last], best[3, row, first:last]
            b0[:], b1[:], b2[:], b3[:] = empty, empty, empty, empty
            p0, p1 = best_at[0, row, first:last], best_at[1, row, first:last]
            p2, p3 = best_at[2, row, first:last], best_at[3, row, first:last]
            for p in range(pos):
                t, here = row * pos + p, np.int32(p)
                if not mask[t]:
                    continue
                g, u, m = gate[t, first:last], linear[t, first:last], coefficients[t, first:last]
                for j in range(width):
                    a = np.float64(u[j])
                    a2 = a * a
                    l1[j] += a
                    l2[j] += a2
                    l3[j] += a2 * a
                    l4[j] += a2 * a2
                for j in range(width):
                    c = np.float64(m[j])
                    c0[j] += c if (g[j] > 0) & (u[j] > 0) else nothing
                    c1[j] += c if (g[j] > 0) & ~(u[j] > 0) else nothing
                    c2[j] += c if ~(g[j] > 0) & (u[j] > 0) else nothing
                    c3[j] += c if ~(g[j] > 0) & ~(u[j] > 0) else nothing
                for j in range(width):
                    n0[j] += np.int32((g[j] > 0) & (u[j] > 0))
                    n1[j] += np.int32((g[j] > 0) & ~(u[j] > 0))
                    n2[j] += np.int32(~(g[j] > 0) & (u[j] > 0))
                    n3[j] += np.int32(~(g[j] > 0) & ~(u[j] > 0))
                for j in range(width):
                    least[j] = u[j] if u[j] < least[j] else least[j]
                    most[j] = u[j] if u[j] > most[j] else most[j]
                for j in range(width):
                    size = abs(m[j])
                    better = (g[j] > 0) & (u[j] > 0) & (size > b0[j])
                    b0[j] = size if better else b0[j]
                    p0[j] = here if better else p0[j]
                for j in range(width):
                    size = abs(m[j])
                    better = (g[j] > 0) & ~(u[j] > 0) & (size > b1[j])
                    b1[j] = size if better else b1[j]
                    p1[j] = here if better else p1[j]
                for j in range(width):
                    size = abs(m[j])
                    better = ~(g[j] > 0) & (u[j] > 0) & (size > b2[j])
                    b2[j] = size if better else b2[j]
                    p2[j] = here if better else p2[j]
                for j in range(width):
                    size = abs(m[j])
                    better = ~(g[j] > 0) & ~(u[j] > 0) & (size > b3[j])
                    b3[j] = size if better else b3[j]
                    p3[j] = here if better else p3[j]
        for k, total in enumerate((c0, c1, c2, c3)):
            case_sums[k, first:last] += total
        for k, total in enumerate((l1, l2, l3, l4)):
            sums[k, first:last] += total
        for k, number in enumerate((n0, n1, n2, n3)):
            counts[k, first:last] += number


@_jit
@no_type_check
def insert(
    kept: np.ndarray,
    places: np.ndarray,
    parts: np.ndarray,
    neurons: np.ndarray,
    values: np.ndarray,
    at: np.ndarray,
    brought: np.ndarray,
    sign: float,
) -> None:
    """As :func:`.kernels.insert`, with the gate and the linear part of each.

    ``parts`` [2, d_mlp, k], ``brought`` [2, n]. A ``sign`` of 0 stands for the magnitude.
    """
    size = kept.shape[1]
    for i in range(neurons.size):
        value, place, n = values[i], at[i], neurons[i]
        row, row_at = kept[n], places[n]
        strength = sign * value if sign != 0 else abs(value)
        slot = size
        while slot > 0:
            other = sign * row[slot - 1] if sign != 0 else abs(row[slot - 1])
            if not (strength > other or (strength == other and place < row_at[slot - 1])):
                break
            slot -= 1
        if slot < size:
            for j in range(size - 1, slot, -1):
                row[j] = row[j - 1]
                row_at[j] = row_at[j - 1]
                parts[0, n, j] = parts[0, n, j - 1]
                parts[1, n, j] = parts[1, n, j - 1]
            row[slot] = value
            row_at[slot] = place
            parts[0, n, slot] = brought[0, i]
            parts[1, n, slot] = brought[1, i]
