"""The inner loops of a scan on the CPU: one pass over a batch's coefficients, neuron blocks side by side."""

from __future__ import annotations

from typing import no_type_check

import numba
import numpy as np

from .state import BINS, OFFSET, SIDE

# Each neuron is summed by one thread over the tokens in order, so the sums do not depend on the number of threads.
# Blocks are wide (whole cache lines of many neurons a token) because tokens lie a page apart in memory.

WIDTH = 1536  # neurons a block: its float64 accumulators fit a second-level cache, and its rows few pages
HIST_WIDTH = 1536
# Every kernel is marked no_type_check: a run-time checker's wrapper around it would be compiled in its place.
_jit = numba.njit(cache=True, nogil=True, error_model="numpy")


@_jit
@no_type_check
def moments(
    pre: np.ndarray,
    coefficients: np.ndarray,
    segments: np.ndarray,
    start: int,
    stop: int,
    sums: np.ndarray,
    counts: np.ndarray,
    pre_range: np.ndarray,
    bucket_sums: np.ndarray,
) -> None:
    """Power sums, firings, zeros, the range of pre, and coefficient sums by position bucket.

    ``segments`` [n, 3]: runs of content tokens (first, end, position bucket). ``sums`` [8, d_mlp]: Σ pre¹…⁴, Σ
    coefficient¹…⁴.
    """
    for first in range(start, stop, WIDTH):
        last = min(first + WIDTH, stop)
        width = last - first
        p1, p2, p3, p4 = np.zeros(width), np.zeros(width), np.zeros(width), np.zeros(width)
        c1, c2, c3, c4 = np.zeros(width), np.zeros(width), np.zeros(width), np.zeros(width)
        fired, zeros = np.zeros(width, np.int32), np.zeros(width, np.int32)
        least, most = pre_range[0, first:last], pre_range[1, first:last]
        part = np.zeros(width)
        for s in range(segments.shape[0]):
            part[:] = 0.0
            for t in range(segments[s, 0], segments[s, 1]):
                x, c = pre[t, first:last], coefficients[t, first:last]
                for j in range(width):
                    a = np.float64(x[j])
                    a2 = a * a
                    p1[j] += a
                    p2[j] += a2
                    p3[j] += a2 * a
                    p4[j] += a2 * a2
                for j in range(width):
                    m = np.float64(c[j])
                    m2 = m * m
                    part[j] += m
                    c2[j] += m2
                    c3[j] += m2 * m
                    c4[j] += m2 * m2
                for j in range(width):
                    fired[j] += np.int32(x[j] > 0)
                    zeros[j] += np.int32(c[j] == 0)
                for j in range(width):
                    least[j] = x[j] if x[j] < least[j] else least[j]
                    most[j] = x[j] if x[j] > most[j] else most[j]
            bucket = bucket_sums[np.uint32(segments[s, 2]), first:last]
            for j in range(width):
                bucket[j] += part[j]
                c1[j] += part[j]
        for k, total in enumerate((p1, p2, p3, p4, c1, c2, c3, c4)):
            sums[k, first:last] += total
        counts[0, first:last] += fired
        counts[1, first:last] += zeros


@_jit
@no_type_check
def extremes(
    coefficients: np.ndarray, mask: np.ndarray, pos: int, start: int, stop: int, high: np.ndarray, low: np.ndarray
) -> None:
    """The largest and the smallest coefficient of each sequence: ``high``, ``low`` [rows, d_mlp]; ∓∞ without
    content."""
    for first in range(start, stop, WIDTH):
        last = min(first + WIDTH, stop)
        for row in range(high.shape[0]):
            most, least = high[row, first:last], low[row, first:last]
            most[:] = -np.inf
            least[:] = np.inf
            for t in range(row * pos, (row + 1) * pos):
                if mask[t]:
                    c = coefficients[t, first:last]
                    for j in range(last - first):
                        most[j] = c[j] if c[j] > most[j] else most[j]
                        least[j] = c[j] if c[j] < least[j] else least[j]


@_jit
@no_type_check
def grouped(coefficients: np.ndarray, chosen: np.ndarray, start: int, stop: int, sums: np.ndarray) -> None:
    """Coefficient sums by token: ``chosen`` [n, 2] lists (row of coefficients, row of sums)."""
    for first in range(start, stop, WIDTH):
        last = min(first + WIDTH, stop)
        for i in range(chosen.shape[0]):
            c, total = coefficients[chosen[i, 0], first:last], sums[np.uint32(chosen[i, 1]), first:last]
            for j in range(last - first):
                total[j] += np.float64(c[j])


@_jit
@no_type_check
def histogram(bits: np.ndarray, mask: np.ndarray, start: int, stop: int, counts: np.ndarray) -> None:
    """Counts by bin, added to ``counts`` [d_mlp, BINS]; ``bits`` are float32 coefficients seen as int32."""
    for first in range(start, stop, HIST_WIDTH):
        last = min(first + HIST_WIDTH, stop)
        width = last - first
        index = np.empty(HIST_WIDTH, np.uint8)
        flat = np.zeros(HIST_WIDTH * BINS, np.int32)
        for t in range(bits.shape[0]):
            if mask[t]:
                row = bits[t, first:last]
                for j in range(width):
                    magnitude = ((row[j] & np.int32(0x7FFFFFFF)) >> np.int32(21)) - np.int32(OFFSET)
                    magnitude = min(max(magnitude, np.int32(0)), np.int32(SIDE - 1))
                    index[j] = np.uint8(np.int32(SIDE - 1) - magnitude if row[j] < 0 else np.int32(SIDE) + magnitude)
                for j in range(width):
                    flat[np.uint32(j * BINS) + np.uint32(index[j])] += np.int32(1)
        for j in range(width):
            total = counts[first + j]
            for b in range(BINS):
                total[b] += flat[j * BINS + b]


@_jit
@no_type_check
def positions_of(
    coefficients: np.ndarray, mask: np.ndarray, pos: int, rows: np.ndarray, neurons: np.ndarray, values: np.ndarray
) -> np.ndarray:
    """The first position of each (row, neuron) whose coefficient is ``values``."""
    found = np.zeros(rows.size, np.int64)
    for i in range(rows.size):
        for p in range(pos):
            t = rows[i] * pos + p
            if mask[t] and coefficients[t, neurons[i]] == values[i]:
                found[i] = p
                break
    return found


@_jit
@no_type_check
def places_in_rows(
    coefficients: np.ndarray,
    mask: np.ndarray,
    pos: int,
    rows: np.ndarray,
    start: int,
    stop: int,
    values: np.ndarray,
    found: np.ndarray,
) -> None:
    """:func:`positions_of` for every neuron of some rows, quicker where most are wanted.

    ``values`` [all rows, d_mlp] has the coefficients to find, ``found`` [some rows, d_mlp] gets their first positions.
    """
    for first in range(start, stop, WIDTH):
        last = min(first + WIDTH, stop)
        for i in range(rows.size):
            value, at = values[rows[i], first:last], found[i, first:last]
            for p in range(pos - 1, -1, -1):
                t = rows[i] * pos + p
                if mask[t]:
                    c = coefficients[t, first:last]
                    position = np.int32(p)
                    for j in range(last - first):
                        at[j] = position if c[j] == value[j] else at[j]


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
    """Insert (value, place) pairs into each neuron's sorted list, in place, and what each brings.

    ``kept`` and ``places`` [d_mlp, k]: best first by sign·value (a ``sign`` of 0 stands for the magnitude), ties by
    lower place (sequence, then position). ``parts`` [0 or 2, d_mlp, k], ``brought`` [0 or 2, n]: of gated neurons the
    gate and the linear part of each.
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
            row[slot] = value
            row_at[slot] = place
            for p in range(parts.shape[0]):
                for j in range(size - 1, slot, -1):
                    parts[p, n, j] = parts[p, n, j - 1]
                parts[p, n, slot] = brought[p, i]


# What gated neurons need besides: sign cases and linear parts.

NONE = -1.0  # the magnitude of a case that a sequence is never in


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
