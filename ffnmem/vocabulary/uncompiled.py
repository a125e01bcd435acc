"""The inner loops of :mod:`ffnmem.vocabulary.kernels` in NumPy, to the last bit, for little work, which importing
numba would outlast.

Each has the arguments and the results of the compiled loop of its name. Sums are taken in the same order, and NumPy
rounds every product and every sum by itself, as the compiled ones do. It is told to be as silent as they are about what
overflows; callers look for that.
"""

from __future__ import annotations

from typing import no_type_check

import numpy as np
from jaxtyping import Float, Float64

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
