"""The inner loops, compiled: the ends of score rows, the candidates behind them, and the canonical dot product.

Each works on the rows ``first`` to ``last`` of its arrays, holds no lock and writes to no row outside, so that threads
can share a block. Numba compiles them once and keeps the result on disk. For little work,
:mod:`ffnmem.vocabulary.uncompiled` does the same without it.
"""

from __future__ import annotations

from typing import no_type_check

import numpy as np
from numba import njit

from .uncompiled import LANES


# no_type_check keeps the tests' import hook from wrapping what numba has to compile.
@njit(nogil=True, cache=True)
@no_type_check
def chunk_ends(bits, sign, rest, chunk, first, last, high, low):
    """The highest and the lowest *key* of every chunk of columns.

    A key is a float's bits as a signed integer, those below the sign flipped for negative numbers: it sorts as the
    float does, and integers have a maximum that compilers turn into vector instructions.
    """
    columns = bits.shape[1]
    for r in range(first, last):
        row = bits[r]
        for c in range(high.shape[1]):
            part = row[c * chunk : min((c + 1) * chunk, columns)]
            top = part[0]
            top = top ^ ((top >> sign) & rest)
            bottom = top
            for j in range(part.shape[0]):
                key = part[j]
                key = key ^ ((key >> sign) & rest)
                top = max(top, key)
                bottom = min(bottom, key)
            high[r, c] = top
            low[r, c] = bottom


@njit(nogil=True, cache=True)
@no_type_check
def collect(bits, sign, rest, chunk, first, last, high, low, least, most, ids, counts):
    """Columns, in order, whose key is at least ``least[r]`` (end 0) or at most ``most[r]`` (end 1).

    Only chunks whose ends reach that far are read again. ``counts[r, end]`` is −1 where ``ids[r, end]`` is too short.
    """
    columns, room = bits.shape[1], ids.shape[2]
    for r in range(first, last):
        row = bits[r]
        found = 0
        lost = 0
        for c in range(high.shape[1]):  # both ends written out: a loop over them takes a fifth longer
            if high[r, c] >= least[r]:
                for j in range(c * chunk, min((c + 1) * chunk, columns)):
                    key = row[j] ^ ((row[j] >> sign) & rest)
                    if key >= least[r]:
                        if found < room:
                            ids[r, 0, found] = j
                        found += 1
            if low[r, c] <= most[r]:
                for j in range(c * chunk, min((c + 1) * chunk, columns)):
                    key = row[j] ^ ((row[j] >> sign) & rest)
                    if key <= most[r]:
                        if lost < room:
                            ids[r, 1, lost] = j
                        lost += 1
        counts[r, 0] = found if found <= room else -1
        counts[r, 1] = lost if lost <= room else -1


@njit(nogil=True, cache=True)
@no_type_check
def dot(vector, row, lanes):
    """The canonical dot product: float64, 64 lanes summed in order, then the lanes pairwise.

    One fixed order on every machine and for every block. Of float32 factors each product is exact, so that only the
    sums round, far below float32; compilers may use fused operations or not without a difference.
    """
    width = vector.shape[0]
    whole = width - width % LANES
    for lane in range(LANES):
        lanes[lane] = 0.0
    for start in range(0, whole, LANES):
        a = vector[start : start + LANES]
        b = row[start : start + LANES]
        for lane in range(LANES):
            lanes[lane] += a[lane] * np.float64(b[lane])
    for i in range(whole, width):
        lanes[i - whole] += vector[i] * np.float64(row[i])
    half = LANES // 2
    while half:
        for lane in range(half):
            lanes[lane] += lanes[lane + half]
        half //= 2
    return lanes[0]


@njit(nogil=True, cache=True)
@no_type_check
def rank(vectors, tokens, first, last, candidates, counts, ids, scores):
    """The best of each row's candidates by canonical score, ties in the candidates' order, which is that of the ids.

    ``candidates`` and ``counts`` as :func:`collect` leaves them; rows with fewer than k candidates are left alone.
    """
    k = ids.shape[2]
    lanes = np.empty(LANES, np.float64)
    found = np.empty(candidates.shape[2], scores.dtype)
    for r in range(first, last):
        if counts[r, 0] < k or counts[r, 1] < k:
            continue
        vector = vectors[r].astype(np.float64)
        for end in range(2):
            count = counts[r, end]
            for j in range(count):
                score = dot(vector, tokens[candidates[r, end, j]], lanes)
                found[j] = -score if end == 0 else score  # rounds to the scores' type, and sorts the best first
            order = np.argsort(found[:count], kind="mergesort")
            for j in range(k):
                ids[r, end, j] = candidates[r, end, order[j]]
                scores[r, end, j] = -found[order[j]] if end == 0 else found[order[j]]


@njit(nogil=True, cache=True)
@no_type_check
def score_rows(vectors, tokens, first, last, scores):
    """Canonical scores of every token for some vectors; they round to the type of ``scores``."""
    lanes = np.empty(LANES, np.float64)
    for r in range(first, last):
        vector = vectors[r].astype(np.float64)
        for t in range(tokens.shape[0]):
            scores[r, t] = dot(vector, tokens[t], lanes)


@njit(nogil=True, cache=True)
@no_type_check
def norms(rows, first, last, found):
    """Euclidean norms in float64."""
    lanes = np.empty(LANES, np.float64)
    for r in range(first, last):
        vector = rows[r].astype(np.float64)
        found[r] = np.sqrt(dot(vector, vector, lanes))
