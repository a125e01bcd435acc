"""How alike a neuron's examples are: their clusters, the effective number of meanings, and how sure that is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import no_type_check

import numpy as np
import torch
from jaxtyping import Float32, Float64, Int64
from numba import njit

from ..vocabulary.scoring import in_threads
from .inputs import MOST, Background, Firing, Inputs
from .measures import MEASURES, measure, measures_of
from .verdicts import Estimate, interval, p_values, spread_around

# Clusters of a neuron's examples by what it read there, how many they amount to, and how sure that is.
#
# Average linkage on cosines, cut where similarity is no larger than that of unrelated inputs. The bootstrap draws
# examples (each from a sequence of its own) again with replacement and clusters each draw anew; average linkage of
# repeated examples is that of the distinct ones with weights, which is how it is computed.


# no_type_check keeps the tests' import hook from wrapping what numba has to compile.
@njit(nogil=True, cache=True)
@no_type_check
def link_examples(similarity, size, cut, out):
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
            found[n, d] = link_examples(s, np.ones(n, np.int64), cut, labels[n, d, :n])


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
        found = link_examples(s.copy(), np.ones(n, np.int64), cut, labels)
        own[b, :n] = labels
        out[b, 0, 0] = effective(labels, found, w)
        out[b, 1, 0] = weighted_cosine(s, everyone, w)
        for d in range(draws):
            times = multiplicity[n, d, :n]
            found = link_examples(s.copy(), times, cut, labels)
            out[b, 0, 1 + d] = effective(labels, found, w * times)
            out[b, 1, 1 + d] = weighted_cosine(s, everyone, w * times)
            out[b, 0, 1 + draws + d] = effective(null_labels[n, d, :n], null_found[n, d], w)
            out[b, 1, 1 + draws + d] = weighted_cosine(background, picks[d], w)


def order_by_share(labels: Int64[np.ndarray, " n"], weights: Float64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
    """Cluster labels renumbered from 0 by falling share of the weights, ties by first example; −1 stays."""
    there = labels >= 0
    different, first, inverse = np.unique(labels[there], return_index=True, return_inverse=True)
    share = np.bincount(inverse, weights=weights[there], minlength=len(different))
    rank = np.empty(len(different), np.int64)
    rank[np.lexsort((first, -share))] = np.arange(len(different))
    renamed = np.full(len(labels), -1, np.int64)
    renamed[there] = rank[inverse]
    return renamed


def draw_multiplicities(most: int, draws: int, seed: int) -> Int64[np.ndarray, "sizes draws most"]:
    """Bootstrap draws for every number of examples up to ``most``: how often each example is drawn."""
    found = np.zeros((most + 1, draws, most), np.int64)
    for n in range(1, most + 1):
        found[n, :, :n] = np.random.default_rng([seed, n]).multinomial(n, np.full(n, 1 / n), draws)
    return found


def draw_null_rows(size: int, most: int, draws: int, seed: int) -> Int64[np.ndarray, "draws most"]:
    """Random rows of the background for each null draw; different ones, but where it has fewer rows than ``most``."""
    rng = np.random.default_rng([seed, 0, 1])
    return np.stack([np.resize(rng.permutation(size), most) for _ in range(draws)])


# How alike a neuron's examples are: the effective number of meanings, and MS, block by block.

BLOCK = 64  # neurons at once
Read = Callable[[Int64[np.ndarray, " n"]], Float32[np.ndarray, "n d_model"]]


class Draws:
    """The random numbers that every neuron's intervals and nulls share."""

    def __init__(self, draws: int, seed: int, pairs: int) -> None:
        self.draws = draws
        self.multiplicity = draw_multiplicities(MOST, draws, seed)
        self.picks = draw_null_rows(pairs, MOST, draws, seed)


@dataclass(frozen=True, eq=False)
class Sorted:
    """Examples sorted into meanings.

    Attributes:
        meanings, ms: ``[n, 1 + 2·draws]`` the value, its bootstrap draws, its null draws.
        labels: ``[n, MOST]`` the meaning of each example, 0 the one of the largest share; −1 behind the last.
    """

    meanings: Float64[np.ndarray, "n draws2"]
    ms: Float64[np.ndarray, "n draws2"]
    labels: Int64[np.ndarray, "n most"]


@dataclass(frozen=True, eq=False)
class Examples:
    """The examples of some neurons of a layer, as measures that read them take them.

    Attributes:
        firing: where the neurons fire. read: gives what the layer's FFN read at places.
        background: the layer's. draws: shared ones.
    """

    firing: Firing
    read: Read
    background: Background
    draws: Draws

    @cached_property
    def sorted(self) -> Sorted:
        """The examples of each neuron compared with each other. Memory is that of one block, however many neurons."""
        found, background, draws = self.firing, self.background, self.draws
        n = len(found.neurons)
        labels = np.full(found.places.shape, -1, np.int64)
        meanings, ms = (np.full((n, 1 + 2 * draws.draws), np.nan) for _ in range(2))
        cosines, cut = background.cosines, background.cut
        null_labels = np.full((MOST + 1, draws.draws, MOST), -1, np.int64)
        null_found = np.zeros((MOST + 1, draws.draws), np.int64)
        for examples in np.unique(found.counts[found.counts > 1]).tolist():
            null_clusters(cosines, draws.picks, cut, null_labels, null_found, examples, examples + 1)
        fixed = (cut, cosines, draws.picks, draws.multiplicity, null_labels, null_found)
        for start in range(0, n, BLOCK):
            block = slice(start, start + BLOCK)
            places, weights, counts = found.places[block], found.strengths[block], found.counts[block]
            inputs = np.zeros((*places.shape, len(background.mean)), np.float32)
            inputs[places >= 0] = self.read(places[places >= 0])
            units = background.unit(inputs.reshape(-1, inputs.shape[-1])).reshape(inputs.shape)
            out = np.empty((len(counts), 2, 1 + 2 * draws.draws))
            similarity = pairwise(units)
            in_threads(partial(measure_block, similarity, weights, counts, *fixed, out, labels[block]), len(counts))
            meanings[block], ms[block] = out[:, 0], out[:, 1]
        for row, weights in zip(labels, found.strengths, strict=True):
            row[:] = order_by_share(row, weights)
        return Sorted(meanings, ms, labels)

    def estimates(self, *names: str) -> dict[str, Estimate]:
        """The measures of these names."""
        return {name: MEASURES[name].compute(self) for name in names}


@measure("meanings", reads="examples", many=1)
def count_meanings(examples: Examples) -> Estimate:
    """The effective number of groups of alike examples."""
    return estimate_number(examples.sorted.meanings, examples.draws.draws, examples.firing.counts)


@measure("ms", reads="examples", many=-1)
def mean_similarity(examples: Examples) -> Estimate:
    """MS, see :func:`weighted_cosine`."""
    return estimate_measure(examples.sorted.ms, examples.draws.draws, "greater")


@dataclass(frozen=True, eq=False)
class Alike:
    """What the examples of some neurons say: the measures that read them, by name; the meaning of each example, see
    :class:`Sorted`."""

    estimates: dict[str, Estimate]
    labels: Int64[np.ndarray, "n most"]


def compare(found: Firing, inputs: Inputs, background: Background, seed: int, draws: int) -> Alike:
    """Measure what the examples of some neurons of a layer say.

    Args:
        found: where the neurons fire. inputs: what the layer's FFN read there. background: the layer's.
        draws: of bootstrap and null each.
    """
    shared = Draws(draws, seed, len(background.units))
    examples = Examples(found, partial(inputs.at, found.layer), background, shared)
    return Alike(examples.estimates(*measures_of("examples")), examples.sorted.labels)


def estimate_number(found: Float64[np.ndarray, "n draws2"], draws: int, examples: Int64[np.ndarray, " n"]) -> Estimate:
    """An effective number; drawing examples again loses clusters, so the interval is around the value as
    :func:`ffnmem.neurons.verdicts.spread_around` has it."""
    plain = estimate_measure(found, draws, "less")
    low, high = spread_around(plain.value, found[:, 1 : 1 + draws], examples)
    return replace(plain, low=low, high=high)


def estimate_measure(found: Float64[np.ndarray, "n draws2"], draws: int, direction: str) -> Estimate:
    """From the value, its bootstrap draws and its null draws, side by side."""
    value, again, null = found[:, 0], found[:, 1 : 1 + draws], found[:, 1 + draws :]
    return Estimate(value, *interval(again), null.mean(axis=1), p_values(value, null, direction))


def pairwise(units: Float32[np.ndarray, "b n d_model"]) -> Float32[np.ndarray, "b n n"]:
    """The cosines of all pairs within each neuron."""
    x = torch.from_numpy(units)
    return torch.bmm(x, x.transpose(1, 2)).numpy()
