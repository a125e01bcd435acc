"""How alike a neuron's examples are: the effective number of meanings, of Foote's clusters, and MS, block by block."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from jaxtyping import Float32, Float64, Int64

from ..models import Model
from ..vocabulary.scoring import in_threads
from .background import Background, normalised
from .clustering import by_share, component_block, measure_block, multiplicities, null_clusters, null_picks
from .estimates import Estimate, interval, p_values
from .firing import MOST, Firing
from .inputs import Inputs
from .trigger import spread_around

BLOCK = 64  # neurons at once
FOOTE_ABOVE = 0.75  # of the largest coefficient (Foote 2024)
FOOTE_CUT = 3.0  # standard deviations above the mean cosine of random inputs in the neuron's own space
FOOTE_NULL = 192  # random inputs that say what that is
Read = Callable[[Int64[np.ndarray, " n"]], Float32[np.ndarray, "n d_model"]]


class Draws:
    """The random numbers that every neuron's intervals and nulls share."""

    def __init__(self, draws: int, seed: int, pairs: int) -> None:
        self.draws, self.seed, self.pairs = draws, seed, pairs
        self.multiplicity = multiplicities(MOST, draws, seed)
        self.picks = null_picks(pairs, MOST, draws, seed)
        # With replacement: few inputs stand for all, and without it draws would be more alike than samples of all are.
        self.few = np.random.default_rng([seed, 0, 2]).integers(min(FOOTE_NULL, pairs), size=(draws, MOST))

    def rows(self, neurons: Int64[np.ndarray, " b"]) -> Int64[np.ndarray, "b m"]:
        """Random inputs for each neuron, its own, so that no few of them speak for a whole layer."""
        few = min(FOOTE_NULL, self.pairs)
        return np.stack([np.random.default_rng([self.seed, 11, n]).permutation(self.pairs)[:few] for n in neurons])


@dataclass(frozen=True, eq=False)
class Alike:
    """How alike the examples of some neurons are.

    Attributes:
        estimates: ``meanings``, ``clusters`` (Foote's), ``ms``.
        labels: ``[n, MOST]`` the meaning of each example, 0 the one of the largest share; −1 behind the last.
    """

    estimates: dict[str, Estimate]
    labels: Int64[np.ndarray, "n most"]


def compare(model: Model, found: Firing, inputs: Inputs, background: Background, seed: int, draws: int) -> Alike:
    """How alike the examples of some neurons of a layer are.

    Args:
        model: the one scanned. found: where the neurons fire. inputs: what the layer's FFN read there.
        background: the layer's. seed, draws: of bootstrap and null.
    """
    keys = reading_keys(model, found.layer, found.neurons)
    shared = Draws(draws, seed, len(background.units))
    return alike(found, lambda places: inputs.at(found.layer, places), keys, background, shared)


def reading_keys(model: Model, layer: int, neurons: Int64[np.ndarray, " n"]) -> Float32[np.ndarray, "n keys d_model"]:
    """What some neurons compare their input with: the key of each, of a gated one its gate and its key."""
    ffn = model.ffn[layer]
    parts = [ffn.keys] if ffn.gates is None else [ffn.gates, ffn.keys]
    return np.stack([part[neurons].detach().float().cpu().numpy() for part in parts], axis=1)


def alike(
    found: Firing, read: Read, keys: Float32[np.ndarray, "n keys d_model"], background: Background, draws: Draws
) -> Alike:
    """Compare the examples of each neuron of a layer's firing; ``keys`` are those neurons', see :func:`reading_keys`.

    Memory is that of one block whatever the number of neurons.
    """
    n = len(found.neurons)
    labels = np.full(found.places.shape, -1, np.int64)
    meanings, ms, clusters = (np.full((n, 1 + 2 * draws.draws), np.nan) for _ in range(3))
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
        inputs[places >= 0] = read(places[places >= 0])
        units = background.unit(inputs.reshape(-1, inputs.shape[-1])).reshape(inputs.shape)
        out = np.empty((len(counts), 2, 1 + 2 * draws.draws))
        similarity = pairwise(units)
        in_threads(partial(measure_block, similarity, weights, counts, *fixed, out, labels[block]), len(counts))
        meanings[block], ms[block] = out[:, 0], out[:, 1]
        clusters[block] = foote(inputs, weights, keys[block], background.rows[draws.rows(found.neurons[block])], draws)
    estimates = {
        "meanings": numbered(meanings, draws.draws),
        "clusters": numbered(clusters, draws.draws),
        "ms": estimate(ms, draws.draws, "greater"),
    }
    for row, weights in zip(labels, found.strengths, strict=True):
        row[:] = by_share(row, weights)
    return Alike(estimates, labels)


def numbered(found: Float64[np.ndarray, "n draws2"], draws: int) -> Estimate:
    """An effective number; drawing examples again loses clusters, so the interval is around the value as
    :func:`ffnmem.semantics.trigger.spread_around` has it."""
    plain = estimate(found, draws, "less")
    low, high = spread_around(plain.value, found[:, 1 : 1 + draws])
    return replace(plain, low=low, high=high)


def estimate(found: Float64[np.ndarray, "n draws2"], draws: int, direction: str) -> Estimate:
    """From the value, its bootstrap draws and its null draws, side by side."""
    value, again, null = found[:, 0], found[:, 1 : 1 + draws], found[:, 1 + draws :]
    return Estimate(value, *interval(again), null.mean(axis=1), p_values(value, null, direction))


def foote(
    inputs: Float32[np.ndarray, "b most d_model"],
    weights: np.ndarray,
    keys: Float32[np.ndarray, "b keys d_model"],
    rows: Float32[np.ndarray, "b m d_model"],
    draws: Draws,
) -> np.ndarray:
    """Foote's clusters: inputs times the key, dimension by dimension; examples above FOOTE_ABOVE of the largest
    coefficient; components of the graph of cosines above what random inputs have in that space. NaN without a pair of
    random inputs.

    A gated neuron's coefficient is a product of what gate and key read, so two of its examples are alike as far as both
    read the same dimensions: the mean of the two cosines, for examples and random inputs alike. That is the cosine of
    the two embeddings joined, each of length 1; turning the key round changes nothing."""
    out = np.full((len(keys), 1 + 2 * draws.draws), np.nan)
    if rows.shape[1] < 2:
        return out
    counts = (weights >= FOOTE_ABOVE * weights[:, :1]).sum(1) * (weights[:, 0] > 0)
    similarity, random = read_alike(inputs, keys), read_alike(rows, keys)
    upper = random[:, *np.triu_indices(rows.shape[1], 1)].astype(np.float64)
    cuts = upper.mean(1) + FOOTE_CUT * upper.std(1)
    fixed = (cuts, random, draws.few, draws.multiplicity, out)
    in_threads(partial(component_block, similarity, weights, counts, *fixed), len(keys))
    return out


def read_alike(
    inputs: Float32[np.ndarray, "b n d_model"], keys: Float32[np.ndarray, "b keys d_model"]
) -> Float32[np.ndarray, "b n n"]:
    """The cosines of all pairs of a neuron's inputs times its key, averaged over its keys."""
    found = [pairwise(normalised(inputs * keys[:, which, None])) for which in range(keys.shape[1])]
    return found[0] if len(found) == 1 else (sum(found[1:], start=found[0]) / np.float32(len(found)))


def pairwise(units: Float32[np.ndarray, "b n d_model"]) -> Float32[np.ndarray, "b n n"]:
    """The cosines of all pairs within each neuron."""
    x = torch.from_numpy(units)
    return torch.bmm(x, x.transpose(1, 2)).numpy()
