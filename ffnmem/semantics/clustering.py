"""Clusters of a neuron's examples by what it read there, how many they amount to, and how sure that is.

Average linkage on cosines, cut where similarity is no larger than that of unrelated inputs. The bootstrap draws
examples (each from a sequence of its own) again with replacement and clusters each draw anew; average linkage of
repeated examples is that of the distinct ones with weights, which is how it is computed.
"""

from __future__ import annotations

from typing import no_type_check

import numpy as np
from jaxtyping import Float64, Int64
from numba import njit


# no_type_check keeps the tests' import hook from wrapping what numba has to compile.
@njit(nogil=True, cache=True)
@no_type_check
def linked(similarity, size, cut, out):
    """Labels of the average-linkage clusters whose mean similarity is at least ``cut``; −1 where size is 0.

    ``similarity`` is overwritten. Returns how many there are. Merging the closest pair first, with each row's nearest
    neighbour kept.
    """
    n = len(size)
    weight = size.astype(np.float64)
    best = np.full(n, -1, np.int64)
    near = np.full(n, -2.0)
    for i in range(n):
        out[i] = i if weight[i] > 0 else -1
        for j in range(n):
            if j != i and weight[j] > 0 and similarity[i, j] > near[i]:
                near[i], best[i] = similarity[i, j], j
    while True:
        i, top = -1, cut
        for r in range(n):
            if weight[r] > 0 and near[r] >= top and best[r] >= 0 and (i < 0 or near[r] > top):
                i, top = r, near[r]
        if i < 0:
            break
        j = best[i]
        total = weight[i] + weight[j]
        for k in range(n):
            if weight[k] > 0 and k != i and k != j:
                mixed = (weight[i] * similarity[i, k] + weight[j] * similarity[j, k]) / total
                similarity[i, k] = mixed
                similarity[k, i] = mixed
        weight[i], weight[j] = total, 0.0
        for k in range(n):
            if out[k] == j:
                out[k] = i
        for k in range(n):
            if weight[k] > 0 and (k == i or best[k] == i or best[k] == j):
                near[k], best[k] = -2.0, -1
                for q in range(n):
                    if q != k and weight[q] > 0 and similarity[k, q] > near[k]:
                        near[k], best[k] = similarity[k, q], q
            elif weight[k] > 0 and similarity[k, i] > near[k]:
                near[k], best[k] = similarity[k, i], i
    found = 0
    for r in range(n):
        if weight[r] > 0:
            for k in range(n):
                if out[k] == r:
                    out[k] = -2 - found
            found += 1
    for k in range(n):
        if out[k] < -1:
            out[k] = -2 - out[k]
    return found


@njit(nogil=True, cache=True)
@no_type_check
def effective(labels, found, weights):
    """exp of the entropy of the clusters' shares of the weights: their effective number (Hill number of order 1)."""
    share = np.zeros(found)
    total = 0.0
    for i in range(len(labels)):
        if labels[i] >= 0:
            share[labels[i]] += weights[i]
            total += weights[i]
    entropy = 0.0
    for s in share:
        if s > 0:
            entropy -= s / total * np.log(s / total)
    return np.exp(entropy)


@njit(nogil=True, cache=True)
@no_type_check
def weighted_cosine(similarity, rows, weights):
    """MS: the mean cosine of pairs of different ``rows``, weighted by the product of their activations; NaN without
    pairs. Of a bootstrap draw, weights are activations times how often each is drawn: one drawn twice is no pair with
    itself."""
    total, all_pairs = 0.0, 0.0
    for i in range(len(weights)):
        for j in range(i):
            pair = weights[i] * weights[j]
            total += pair * similarity[rows[i], rows[j]]
            all_pairs += pair
    return total / all_pairs if all_pairs > 0 else np.nan


@njit(nogil=True, cache=True)
@no_type_check
def null_clusters(background, picks, cut, labels, found, first, last):
    """Clusters of unrelated inputs for numbers of examples from ``first``, at least 2, to below ``last``.

    ``labels[n, d, :n]`` are those of the first n rows picked in draw d, ``found[n, d]`` how many there are.
    """
    for n in range(first, last):
        for d in range(picks.shape[0]):
            s = np.empty((n, n))
            for i in range(n):
                for j in range(n):
                    s[i, j] = background[picks[d, i], picks[d, j]]
            found[n, d] = linked(s, np.ones(n, np.int64), cut, labels[n, d, :n])


@njit(nogil=True, cache=True)
@no_type_check
def measure_block(
    similarity, weights, counts, cut, background, picks, multiplicity, null_labels, null_found, out, own, first, last
):
    """For the neurons ``first`` to ``last`` of a block: effective number and MS, their bootstrap and null draws.

    similarity ``[b, n, n]``, weights ``[b, n]`` (examples first, zeros behind), counts ``[b]`` examples, background
    ``[m, m]`` cosines of unrelated inputs, picks ``[draws, n]`` rows of it for the null, multiplicity
    ``[n + 1, draws, n]`` bootstrap counts by number of examples, and :func:`null_clusters` of the same picks.
    ``out`` ``[b, 2, 1 + 2·draws]``: value, bootstrap, null; NaN of a neuron of less than two examples. ``own``
    ``[b, n]``: the cluster of each example, −1 behind the last.
    """
    draws = picks.shape[0]
    for b in range(first, last):
        n = counts[b]
        own[b] = -1
        if n < 2:
            out[b] = np.nan
            own[b, :n] = 0
            continue
        s, w, everyone = similarity[b, :n, :n], weights[b, :n], np.arange(n)
        labels = np.empty(n, np.int64)
        found = linked(s.copy(), np.ones(n, np.int64), cut, labels)
        own[b, :n] = labels
        out[b, 0, 0] = effective(labels, found, w)
        out[b, 1, 0] = weighted_cosine(s, everyone, w)
        for d in range(draws):
            times = multiplicity[n, d, :n]
            found = linked(s.copy(), times, cut, labels)
            out[b, 0, 1 + d] = effective(labels, found, w * times)
            out[b, 1, 1 + d] = weighted_cosine(s, everyone, w * times)
            out[b, 0, 1 + draws + d] = effective(null_labels[n, d, :n], null_found[n, d], w)
            out[b, 1, 1 + draws + d] = weighted_cosine(background, picks[d], w)


@njit(nogil=True, cache=True)
@no_type_check
def connected(similarity, size, cut, out):
    """Labels of the connected components of the graph of cosines above ``cut``; −1 where size is 0. Returns how
    many there are."""
    n = len(size)
    out[:] = -1
    stack = np.empty(n, np.int64)
    found = 0
    for start in range(n):
        if size[start] == 0 or out[start] >= 0:
            continue
        out[start] = found
        stack[0], depth = start, 1
        while depth:
            depth -= 1
            i = stack[depth]
            for j in range(n):
                if size[j] > 0 and out[j] < 0 and similarity[i, j] > cut:
                    out[j] = found
                    stack[depth] = j
                    depth += 1
        found += 1
    return found


@njit(nogil=True, cache=True)
@no_type_check
def component_block(similarity, weights, counts, cuts, background, picks, multiplicity, out, first, last):
    """As :func:`measure_block` for the effective number of connected components; ``background`` ``[b, m, m]`` and
    ``cuts`` ``[b]`` are each neuron's own. ``out`` ``[b, 1 + 2·draws]``."""
    draws = picks.shape[0]
    for b in range(first, last):
        n = counts[b]
        if n < 2:
            out[b] = np.nan
            continue
        s, w, labels = similarity[b, :n, :n], weights[b, :n], np.empty(n, np.int64)
        whole = np.ones(n, np.int64)
        out[b, 0] = effective(labels, connected(s, whole, cuts[b], labels), w)
        for d in range(draws):
            times = multiplicity[n, d, :n]
            found = connected(s, times, cuts[b], labels)
            out[b, 1 + d] = effective(labels, found, w * times)
            null = np.empty((n, n), similarity.dtype)
            for i in range(n):
                for j in range(n):
                    null[i, j] = background[b, picks[d, i], picks[d, j]]
            found = connected(null, whole, cuts[b], labels)
            out[b, 1 + draws + d] = effective(labels, found, w)


def by_share(labels: Int64[np.ndarray, " n"], weights: Float64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
    """Cluster labels renumbered from 0 by falling share of the weights, ties by first example; −1 stays."""
    there = labels >= 0
    different, first, inverse = np.unique(labels[there], return_index=True, return_inverse=True)
    share = np.bincount(inverse, weights=weights[there], minlength=len(different))
    rank = np.empty(len(different), np.int64)
    rank[np.lexsort((first, -share))] = np.arange(len(different))
    renamed = np.full(len(labels), -1, np.int64)
    renamed[there] = rank[inverse]
    return renamed


def multiplicities(most: int, draws: int, seed: int) -> Int64[np.ndarray, "sizes draws most"]:
    """Bootstrap draws for every number of examples up to ``most``: how often each example is drawn."""
    found = np.zeros((most + 1, draws, most), np.int64)
    for n in range(1, most + 1):
        found[n, :, :n] = np.random.default_rng([seed, n]).multinomial(n, np.full(n, 1 / n), draws)
    return found


def null_picks(size: int, most: int, draws: int, seed: int) -> Int64[np.ndarray, "draws most"]:
    """Random rows of the background for each null draw; different ones, but where it has fewer rows than ``most``."""
    rng = np.random.default_rng([seed, 0, 1])
    return np.stack([np.resize(rng.permutation(size), most) for _ in range(draws)])
