"""The inner loops of :mod:`ffnmem.vocabulary.kernels` in NumPy, to the last bit, for little work, which importing
numba would outlast.

Each has the arguments and the results of the compiled loop of its name. Sums are taken in the same order, and NumPy
rounds every product and every sum by itself, as the compiled ones do. It is told to be as silent as they are about what
overflows; callers look for that.
"""

from __future__ import annotations

from typing import Any, no_type_check

import numpy as np
from jaxtyping import Float, Float64, Int

SIGN16, REST16 = np.int16(15), np.int16(0x7FFF)
SIGN32, REST32 = np.int32(31), np.int32(0x7FFFFFFF)
SIGN64, REST64 = np.int64(63), np.int64(0x7FFFFFFFFFFFFFFF)
LANES = 64


@np.errstate(over="ignore", invalid="ignore")
def dots(
    vectors: Float[np.ndarray, "*count width"], rows: Float[np.ndarray, "count width"]
) -> Float64[np.ndarray, " count"]:
    """:func:`ffnmem.vocabulary.kernels.dot` of a vector, or of one each, with some rows."""
    count, width = rows.shape
    lanes = np.zeros((count, LANES))
    for start in range(0, width, LANES):
        one, other = (part[..., start : start + LANES].astype(np.float64) for part in (vectors, rows))
        lanes[:, : other.shape[1]] += one * other
    half = LANES // 2
    while half:
        lanes[:, :half] += lanes[:, half : 2 * half]
        half //= 2
    return lanes[:, 0]


@no_type_check
def chunk_ends(bits, sign, rest, chunk, first, last, high, low):
    keys = keys_of(bits[first:last], sign, rest)
    starts = np.arange(0, bits.shape[1], chunk)
    high[first:last] = np.maximum.reduceat(keys, starts, axis=1)
    low[first:last] = np.minimum.reduceat(keys, starts, axis=1)


@no_type_check
def collect(bits, sign, rest, chunk, first, last, high, low, least, most, ids, counts):
    """Without the chunks, which save nothing here."""
    room = ids.shape[2]
    keys = keys_of(bits[first:last], sign, rest)
    for row, own in enumerate(keys, first):
        for end, hit in enumerate((own >= least[row], own <= most[row])):
            found = np.flatnonzero(hit)
            ids[row, end, : min(len(found), room)] = found[:room]
            counts[row, end] = len(found) if len(found) <= room else -1


def keys_of(bits: Int[np.ndarray, "rows columns"], sign: Any, rest: Any) -> Int[np.ndarray, "rows columns"]:
    """Floats' bits as integers that sort as they do."""
    return bits ^ ((bits >> sign) & rest)


@np.errstate(over="ignore", invalid="ignore")
@no_type_check
def rank(vectors, tokens, first, last, candidates, counts, ids, scores):
    k = ids.shape[2]
    for row in range(first, last):
        if counts[row].min() < k:
            continue
        for end, direction in enumerate((-1.0, 1.0)):
            asked = candidates[row, end, : counts[row, end]]
            found = (direction * dots(vectors[row], tokens[asked])).astype(scores.dtype)  # sorts the best first
            order = np.argsort(found, kind="stable")[:k]
            ids[row, end], scores[row, end] = asked[order], found[order] * scores.dtype.type(direction)


@np.errstate(over="ignore", invalid="ignore")
@no_type_check
def score_rows(vectors, tokens, first, last, scores):
    if len(tokens) < last - first:
        for place, token in enumerate(tokens):
            scores[first:last, place] = dots(token, vectors[first:last])
        return
    for row in range(first, last):
        scores[row] = dots(vectors[row], tokens)


@no_type_check
def norms(rows, first, last, found):
    found[first:last] = np.sqrt(dots(rows[first:last], rows[first:last]))
