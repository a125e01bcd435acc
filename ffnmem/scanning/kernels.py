"""The inner loops of a scan on the CPU: one pass over a batch's coefficients, neuron blocks side by side."""

from __future__ import annotations

from typing import Any, no_type_check

import numba
import numpy as np

from .state import BINS, OFFSET, POSITION_BITS, SIDE

# Each neuron is summed by one thread over the tokens in order, so the sums do not depend on the number of threads.
#
# Neurons are read in strips, so narrow that all that is summed of one stays in the first-level cache, and TOGETHER
# tokens of a strip at a time: they are copied side by side, and what is summed is loaded and stored once for all of
# them. Copies and sums are flat arrays of a fixed stride, so that the compiler makes vector instructions of the loops
# over neurons: it sees that nothing overlaps, and selects need no branch.

WIDTH = 128  # neurons a strip
TOGETHER = 8  # tokens; a power of two, so that from this position on they are of one position bucket
CELLS = TOGETHER * WIDTH
# Every kernel is marked no_type_check: a run-time checker's wrapper around it would be compiled in its place.
# "contract": a product and a sum may be rounded once.
_part: Any = numba.njit(nogil=True, error_model="numpy", fastmath={"contract"})  # cached with the kernel it is part of
_jit: Any = numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})

LEAST, MOST = np.int32(OFFSET << 21), np.int32((OFFSET + SIDE - 1) << 21)  # the magnitudes of a side's outer bins
FULL = (1 << 16) - 1  # of a strip's counts by bin
NONE = 0.0  # the magnitude of a case that a sequence is never in

# The loops over a group of tokens of a strip: x are pre-activations, u linear parts, m coefficients.


@_part
@no_type_check
def load(rows, t, n, first, width, tile):
    """Copy n tokens; the first once more in place of those that there are not, which changes no extreme."""
    for k in range(TOGETHER):
        row = rows[t + k if k < n else t, first : first + width]
        for j in range(width):
            tile[k * WIDTH + j] = row[j]


@_part
@no_type_check
def clear(tile, n):
    """Zeros in place of the tokens that there are not, which changes no sum."""
    for i in range(n * WIDTH, CELLS):
        tile[np.uint32(i)] = 0


@_part
@no_type_check
def extremes(m, best, at, here):
    for j in range(WIDTH):
        high = m[j]
        low = high
        for k in range(1, TOGETHER):
            c = m[k * WIDTH + j]
            high = c if c > high else high
            low = c if c < low else low
        more, less = high > best[j], low < best[WIDTH + j]
        best[j] = high if more else best[j]
        at[j] = here if more else at[j]
        best[WIDTH + j] = low if less else best[WIDTH + j]
        at[WIDTH + j] = here if less else at[WIDTH + j]


@_part
@no_type_check
def case_extremes(x, u, m, best, at, here):
    # Magnitudes, where the linear part is not above 0 with a minus: so two cases are a largest and a smallest one.
    for j in range(WIDTH):
        b0 = b1 = b2 = b3 = np.float32(NONE)
        for k in range(TOGETHER):
            size = abs(m[k * WIDTH + j])
            size = size if u[k * WIDTH + j] > 0 else -size
            opened = size if x[k * WIDTH + j] > 0 else np.float32(NONE)
            shut = np.float32(NONE) if x[k * WIDTH + j] > 0 else size
            b0 = opened if opened > b0 else b0
            b1 = opened if opened < b1 else b1
            b2 = shut if shut > b2 else b2
            b3 = shut if shut < b3 else b3
        b1, b3 = -b1, -b3
        better = b0 > best[j]
        best[j] = b0 if better else best[j]
        at[j] = here if better else at[j]
        better = b1 > best[WIDTH + j]
        best[WIDTH + j] = b1 if better else best[WIDTH + j]
        at[WIDTH + j] = here if better else at[WIDTH + j]
        better = b2 > best[2 * WIDTH + j]
        best[2 * WIDTH + j] = b2 if better else best[2 * WIDTH + j]
        at[2 * WIDTH + j] = here if better else at[2 * WIDTH + j]
        better = b3 > best[3 * WIDTH + j]
        best[3 * WIDTH + j] = b3 if better else best[3 * WIDTH + j]
        at[3 * WIDTH + j] = here if better else at[3 * WIDTH + j]


@_part
@no_type_check
def ranges(x, span):
    for j in range(WIDTH):
        least, most = span[j], span[WIDTH + j]
        for k in range(TOGETHER):
            a = x[k * WIDTH + j]
            least = a if a < least else least
            most = a if a > most else most
        span[j], span[WIDTH + j] = least, most


@_part
@no_type_check
def powers(x, first, others):
    for j in range(WIDTH):
        s1, s2, s3, s4 = first[j], others[j], others[WIDTH + j], others[2 * WIDTH + j]
        for k in range(TOGETHER):
            a = np.float64(x[k * WIDTH + j])
            a2 = a * a
            s1 += a
            s2 += a2
            s3 += a2 * a
            s4 += a2 * a2
        first[j], others[j], others[WIDTH + j], others[2 * WIDTH + j] = s1, s2, s3, s4


@_part
@no_type_check
def positives(x, numbers):
    for j in range(WIDTH):
        number = numbers[j]
        for k in range(TOGETHER):
            number += np.int32(x[k * WIDTH + j] > 0)
        numbers[j] = number


@_part
@no_type_check
def zeros(m, numbers):
    for j in range(WIDTH):
        number = numbers[j]
        for k in range(TOGETHER):
            number += np.int32(m[k * WIDTH + j] == 0)
        numbers[j] = number


@_part
@no_type_check
def bins(bits, index):
    for j in range(CELLS):
        # int32 at every step: of int64, which sums of int32 are widened to, half as many fit a vector
        size = np.int32(bits[j] & np.int32(0x7FFFFFFF))
        size = size if size > LEAST else LEAST
        size = size if size < MOST else MOST
        size = np.int32(np.int32(size >> np.int32(21)) - np.int32(OFFSET))
        index[j] = np.uint8(np.int32(np.int32(SIDE) + np.int32(size ^ np.int32(bits[j] >> np.int32(31)))))


@_part
@no_type_check
def count(index, n, counted):
    for k in range(n):
        for j in range(WIDTH):
            counted[np.uint32(j * BINS) + np.uint32(index[k * WIDTH + j])] += np.uint16(1)


@_part
@no_type_check
def case_sums(x, u, m, sums, both):
    for j in range(WIDTH):
        c0, c1, c2, c3 = sums[j], sums[WIDTH + j], sums[2 * WIDTH + j], sums[3 * WIDTH + j]
        for k in range(TOGETHER):
            c = np.float64(m[k * WIDTH + j])
            opened = x[k * WIDTH + j] > 0
            positive = u[k * WIDTH + j] > 0
            its_opened = c if opened else 0.0
            its_shut = 0.0 if opened else c
            c0 = c0 + its_opened if positive else c0
            c2 = c2 + its_shut if positive else c2
            c1 = c1 if positive else c1 + its_opened
            c3 = c3 if positive else c3 + its_shut
        sums[j], sums[WIDTH + j], sums[2 * WIDTH + j], sums[3 * WIDTH + j] = c0, c1, c2, c3
    for j in range(WIDTH):
        number = both[j]
        for k in range(TOGETHER):
            number += np.int32((x[k * WIDTH + j] > 0) & (u[k * WIDTH + j] > 0))
        both[j] = number


# A batch.


@_part
@no_type_check
def holds(pre, coefficients, linear, t, case, neuron, value):
    c = coefficients[t, neuron]
    if case < 0:
        return c == value
    if linear is not None:
        opened, positive = pre[t, neuron] > 0, linear[t, neuron] > 0
        return abs(c) == value and opened == (case < 2) and positive == (case % 2 == 0)
    return False


@_part
@no_type_check
def place(pre, coefficients, linear, mask, start, pos, begin, case, neuron, value):
    """The first position from ``begin`` on of a sequence's coefficient; with a case (not −1), of its magnitude
    there."""
    for p in range(begin, pos):
        if mask[start + p] and holds(pre, coefficients, linear, start + p, case, neuron, value):
            return p
    return -1


@_part
@no_type_check
def strength(value, sign):
    return sign * value if sign != 0 else abs(value)


@_part
@no_type_check
def sign_of(side):
    """Of the lists of the largest and of the smallest coefficients; 0 of those of a case, ordered by magnitude."""
    return np.float32(1) if side == 0 else np.float32(-1) if side == 1 else np.float32(0)


@_part
@no_type_check
def insert(kept, places, parts, value, at, gate, part, sign):
    """Insert a value and its place into one neuron's sorted list, in place, if it is among the best.

    ``kept`` and ``places`` [k]: best first by sign·value (a ``sign`` of 0 stands for the magnitude), ties by lower
    place (sequence, then position). ``parts`` [0 or 2, k]: of gated neurons, ``gate`` and linear ``part`` of each.
    """
    slot, its = kept.size - 1, strength(value, sign)
    while slot >= 0:
        other = strength(kept[slot], sign)
        if other > its or (other == its and places[slot] <= at):
            break
        if slot < kept.size - 1:  # the last one goes
            kept[slot + 1] = kept[slot]
            places[slot + 1] = places[slot]
            for p in range(parts.shape[0]):
                parts[p, slot + 1] = parts[p, slot]
        slot -= 1
    if slot < kept.size - 1:
        kept[slot + 1] = value
        places[slot + 1] = at
        if parts.shape[0]:
            parts[0, slot + 1] = gate
            parts[1, slot + 1] = part


@_part
@no_type_check
def weakest(lists, first, width, least):
    """What a sequence must reach to be kept, by side."""
    for side in range(len(lists)):
        kept, sign = lists[side][0], sign_of(side)
        last = kept.shape[1] - 1
        for j in range(width):
            least[side * WIDTH + j] = strength(kept[first + j, last], sign)


@_part
@no_type_check
def compete(pre, coefficients, linear, row, pos, first, width, sequences, best, at, least, lists):
    """Let a row's extremes compete for the kept ones, if there are any, while the row is in the cache."""
    if lists is None:
        return
    for side in range(len(lists)):
        kept, places, parts = lists[side]
        sign, last = sign_of(side), kept.shape[1] - 1
        for j in range(width):
            value, cell = best[side * WIDTH + j], side * WIDTH + j
            if strength(value, sign) < least[cell] or not (value > 0 if side >= 2 else np.isfinite(value)):
                continue
            n, p = first + j, at[cell]
            # No mask: a group of tokens lies in one run of content, and the first that has the value is in it.
            while not holds(pre, coefficients, linear, row * pos + p, side - 2, n, value):
                p += np.int32(1)
            at[cell] = p
            t, gate, part = row * pos + p, np.float32(0), np.float32(0)
            if linear is not None:
                value, gate, part = coefficients[t, n], pre[t, n], linear[t, n]
            insert(kept[n], places[n], parts[:, n], value, (sequences[row] << POSITION_BITS) | p, gate, part, sign)
            least[cell] = strength(kept[n, last], sign)


@_part
@no_type_check
def tell(best, at, row, first, width, all_best, all_at):
    """What was found of a row, to where it is kept."""
    for side in range(all_best.shape[0]):
        found, found_at = all_best[side, row, first : first + width], all_at[side, row, first : first + width]
        its, its_at = best[side * WIDTH : (side + 1) * WIDTH], at[side * WIDTH : (side + 1) * WIDTH]
        for j in range(width):
            found[j] = its[j]
            found_at[j] = its_at[j]


@_part
@no_type_check
def forget(best, at):
    best[:WIDTH].fill(-np.inf)
    best[WIDTH : 2 * WIDTH].fill(np.inf)
    best[2 * WIDTH :].fill(NONE)
    at.fill(0)


@_part
@no_type_check
def add_to(total, its, first, width):
    for j in range(width):
        total[first + j] += its[j]


@_part
@no_type_check
def joined(span, its, first, width):
    for j in range(width):
        span[0, first + j] = min(span[0, first + j], its[j])
        span[1, first + j] = max(span[1, first + j], its[WIDTH + j])


@_part
@no_type_check
def bucket_of(position):
    bucket = 0
    while position >> bucket:
        bucket += 1
    return bucket


@_part
@no_type_check
def empty_counts(counted, first, width, histogram):
    for j in range(width):
        total, its = histogram[first + j], counted[j * BINS : (j + 1) * BINS]
        for b in range(BINS):
            total[b] += its[b]
    counted.fill(0)


@_jit
@no_type_check
def reduce(
    pre: np.ndarray,
    coefficients: np.ndarray,
    linear: Any,
    groups: np.ndarray,
    pos: int,
    start: int,
    stop: int,
    best: np.ndarray,
    at: np.ndarray,
    sequences: np.ndarray,
    lists: Any,
    sums: Any,
    counts: Any,
    span: Any,
    histogram: Any,
    bucket_sums: Any,
) -> None:
    """The most extreme coefficients of each sequence, the lists of kept ones, sums, counts and ranges; or with
    ``lists`` or ``sums`` None not these.

    ``groups`` [n, 2]: first token and number (up to TOGETHER) of consecutive content tokens of a row, in the order of
    the text, none of which goes over a position that is a multiple of TOGETHER. ``linear``: the linear parts of gated
    neurons, whose ``pre`` are their gates', or None.

    ``best``, ``at`` [2 or 6, rows, d_mlp], changed in rows with content: the largest and the smallest coefficient and,
    of gated neurons, the largest magnitude of each sign case, NONE where there is none; and a position from which on
    the first that has it is the one.
    ``lists``: of each of these, what is kept: values and places (of ``sequences`` [rows], see :func:`insert`)
    [d_mlp, k], gates and linear parts there [0 or 2, d_mlp, k]; or None.
    ``sums`` [8 or 16, d_mlp]: Σ pre¹…⁴, Σ coefficient¹…⁴, of gated neurons Σ linear¹…⁴ and Σ coefficient by case.
    ``counts`` [2 or 6, d_mlp]: firings, zeros, and of gated neurons tokens by case. ``span`` [2 or 4, d_mlp]: the range
    of pre, and of linear parts. ``histogram`` [d_mlp, BINS]. ``bucket_sums`` [buckets, d_mlp]: Σ coefficient.
    """
    x, m, u = np.zeros(CELLS, np.float32), np.zeros(CELLS, np.float32), np.zeros(CELLS, np.float32)
    index, counted = np.empty(CELLS, np.uint8), np.zeros(WIDTH * BINS, np.uint16)
    its_best, its_at = np.empty(best.shape[0] * WIDTH, np.float32), np.empty(best.shape[0] * WIDTH, np.int32)
    least = np.empty(best.shape[0] * WIDTH, np.float32)
    # Of pre, linear parts, coefficients: their sum (of coefficients by bucket), and those of the powers.
    mixed = 0 if bucket_sums is None else bucket_sums.shape[0]  # a row for groups of several buckets, then left out
    x1, u1, m1 = np.empty(WIDTH), np.empty(WIDTH), np.empty((mixed + 1, WIDTH))
    x_powers, u_powers = np.empty(3 * WIDTH), np.empty(3 * WIDTH)
    m_powers, of_cases = np.empty(3 * WIDTH), np.empty(4 * WIDTH)
    x_span, u_span = np.empty(2 * WIDTH, np.float32), np.empty(2 * WIDTH, np.float32)
    fired, zero = np.empty(WIDTH, np.int32), np.empty(WIDTH, np.int32)
    upper, both = np.empty(WIDTH, np.int32), np.empty(WIDTH, np.int32)
    for first in range(start, stop, WIDTH):
        width = min(WIDTH, stop - first)
        row, tokens, padding, uncounted = -1, 0, 0, 0
        if lists is not None:
            weakest(lists, first, width, least)
        if sums is not None:
            for its in (x1, u1, m1.reshape(-1), x_powers, u_powers, m_powers, of_cases):
                its.fill(0)
            for its in (fired, zero, upper, both):
                its.fill(0)
            for its in (x_span, u_span):
                its[:WIDTH].fill(np.inf)
                its[WIDTH:].fill(-np.inf)
        for g in range(groups.shape[0]):
            t, n = groups[g, 0], groups[g, 1]
            if t // pos != row:
                if row >= 0:
                    compete(
                        pre, coefficients, linear, row, pos, first, width, sequences, its_best, its_at, least, lists
                    )
                    tell(its_best, its_at, row, first, width, best, at)
                forget(its_best, its_at)
                row = t // pos
            here = np.int32(t - row * pos)
            load(coefficients, t, n, first, width, m)
            extremes(m, its_best, its_at, here)
            if linear is not None:
                load(pre, t, n, first, width, x)
                load(linear, t, n, first, width, u)
                case_extremes(x, u, m, its_best[2 * WIDTH :], its_at[2 * WIDTH :], here)
            if sums is None:
                continue
            if linear is None:
                load(pre, t, n, first, width, x)
            else:
                ranges(u, u_span)
            ranges(x, x_span)
            if n < TOGETHER:
                clear(x, n)
                clear(m, n)
                clear(u, n)
            if linear is not None:
                powers(u, u1, u_powers)
                positives(u, upper)
                case_sums(x, u, m, of_cases, both)
            powers(x, x1, x_powers)
            positives(x, fired)
            if here >= TOGETHER:
                powers(m, m1[bucket_of(here)], m_powers)
            else:
                powers(m, m1[mixed], m_powers)
                for k in range(n):
                    total = m1[bucket_of(here + k)]
                    for j in range(WIDTH):
                        total[j] += np.float64(m[k * WIDTH + j])
            zeros(m, zero)
            bins(m.view(np.int32), index)
            if uncounted + n > FULL:
                empty_counts(counted, first, width, histogram)
                uncounted = 0
            count(index, n, counted)
            uncounted += n
            tokens += n
            padding += TOGETHER - n
        if row >= 0:
            compete(pre, coefficients, linear, row, pos, first, width, sequences, its_best, its_at, least, lists)
            tell(its_best, its_at, row, first, width, best, at)
        if sums is not None:
            empty_counts(counted, first, width, histogram)
            for bucket in range(mixed):
                add_to(bucket_sums[bucket], m1[bucket], first, width)
                add_to(sums[4], m1[bucket], first, width)
            add_to(sums[0], x1, first, width)
            for power in range(3):
                add_to(sums[1 + power], x_powers[power * WIDTH :], first, width)
                add_to(sums[5 + power], m_powers[power * WIDTH :], first, width)
            joined(span[:2], x_span, first, width)
            for j in range(width):
                counts[0, first + j] += fired[j]
                counts[1, first + j] += zero[j] - padding
            if linear is not None:
                add_to(sums[8], u1, first, width)
                for power in range(3):
                    add_to(sums[9 + power], u_powers[power * WIDTH :], first, width)
                for case in range(4):
                    add_to(sums[12 + case], of_cases[case * WIDTH :], first, width)
                joined(span[2:], u_span, first, width)
                for j in range(width):
                    counts[2, first + j] += both[j]
                    counts[3, first + j] += fired[j] - both[j]
                    counts[4, first + j] += upper[j] - both[j]
                    counts[5, first + j] += tokens - fired[j] - upper[j] + both[j]


@_jit
@no_type_check
def places(
    pre: np.ndarray,
    coefficients: np.ndarray,
    linear: Any,
    mask: np.ndarray,
    pos: int,
    best: np.ndarray,
    at: np.ndarray,
    case: int,
    rows: np.ndarray,
    neurons: np.ndarray,
) -> np.ndarray:
    """Where the extremes of one side [rows, d_mlp] stand, as :func:`reduce` found them, of each (row, neuron)."""
    found = np.empty(rows.size, np.int64)
    for i in range(rows.size):
        row, n = rows[i], neurons[i]
        found[i] = place(pre, coefficients, linear, mask, row * pos, pos, at[row, n], case, n, best[row, n])
    return found


@_jit
@no_type_check
def sample(
    pre: np.ndarray,
    coefficients: np.ndarray,
    linear: Any,
    pos: int,
    start: int,
    stop: int,
    best: np.ndarray,
    at: np.ndarray,
    sampled: np.ndarray,
    values: np.ndarray,
    places: np.ndarray,
    parts: Any,
) -> None:
    """Note the extremes of one side [rows, d_mlp], as :func:`reduce` found them, of sampled rows.

    ``sampled`` [n, 2] lists (row, row of the sample); ``values``, ``places`` [sample, d_mlp] are filled, of gated
    neurons ``parts`` [2, sample, d_mlp], gates and linear parts there. Of a row without content all stays as it is.
    """
    for i in range(sampled.shape[0]):
        row, slot = sampled[i, 0], sampled[i, 1]
        for n in range(start, stop):
            value, p = best[row, n], at[row, n]
            if not np.isfinite(value):  # no content, or NaN throughout, which is refused when sums are added
                continue
            while coefficients[row * pos + p, n] != value:  # no mask: see compete
                p += np.int32(1)
            values[slot, n] = value
            places[slot, n] = p
            if linear is not None:
                parts[0, slot, n] = pre[row * pos + p, n]
                parts[1, slot, n] = linear[row * pos + p, n]


GROUPED = 1536  # neurons a block: whole cache lines of many, as tokens lie a page apart in memory


@_jit
@no_type_check
def grouped(coefficients: np.ndarray, chosen: np.ndarray, start: int, stop: int, sums: np.ndarray) -> None:
    """Coefficient sums by token: ``chosen`` [n, 2] lists (row of coefficients, row of sums)."""
    for first in range(start, stop, GROUPED):
        last = min(first + GROUPED, stop)
        for i in range(chosen.shape[0]):
            c, total = coefficients[chosen[i, 0], first:last], sums[np.uint32(chosen[i, 1]), first:last]
            for j in range(last - first):
                total[j] += np.float64(c[j])
