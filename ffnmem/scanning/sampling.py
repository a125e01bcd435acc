"""Which sequences and positions are the random sample: a function of the seed and their numbers, known before the pass.

Every sequence has a priority, a hash of the seed and its number; the sample is the sequences of the lowest
priorities (a
reservoir that needs no state). It does not depend on shards, batches or the order of reading. All neurons share it, so
each neuron's examples are uniformly random, and a float32 run of a few sequences gives them all exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64, UInt64

from ..corpus import Sequences

SEQUENCES, DRAWS, PLACES = 1, 2, 3  # independent streams of one seed


@dataclass(frozen=True, eq=False)
class Sample:
    """The sample of a corpus, in ascending order of sequences.

    Attributes:
        sequences: uniformly random sequences, each as likely as any other.
        draws: sequences of the random positions, likelier the more tokens they have, each at most once.
        places: per draw, a random number in [0, 1) that picks one of its positions.
    """

    sequences: Int64[np.ndarray, " sample"]
    draws: Int64[np.ndarray, " draws"]
    places: Float64[np.ndarray, " draws"]


def choose(sequences: Sequences, seed: int, sample: int, draws: int) -> Sample:
    """The sample of a corpus; all of it where it has fewer sequences than asked for."""
    uniform = Lowest(sample)
    weighted = Lowest(draws)
    for unit in sequences.units:
        numbers = np.arange(unit.first_sequence, unit.first_sequence + unit.n_sequences)
        uniform.offer(uniforms(seed, SEQUENCES, numbers), numbers)
        # Exponential races: the lowest of −ln(u)/w are a sample weighted by w (Efraimidis and Spirakis 2006).
        content = sequences.lengths(unit) - sequences.lead
        weighted.offer(-np.log1p(-uniforms(seed, DRAWS, numbers)) / content, numbers)
    draw = weighted.numbers()
    return Sample(uniform.numbers(), draw, uniforms(seed, PLACES, draw))


class Lowest:
    """The numbers of the k lowest priorities offered, ties by number."""

    def __init__(self, k: int) -> None:
        self.k = k
        self.priority = np.empty(0)
        self.number = np.empty(0, np.int64)

    def offer(self, priority: Float64[np.ndarray, " n"], number: Int64[np.ndarray, " n"]) -> None:
        together = np.concatenate([self.priority, priority])
        numbers = np.concatenate([self.number, number])
        best = np.lexsort((numbers, together))[: self.k]
        self.priority, self.number = together[best], numbers[best]

    def numbers(self) -> Int64[np.ndarray, " n"]:
        return np.sort(self.number)


def uniforms(seed: int, stream: int, numbers: Int64[np.ndarray, " n"]) -> Float64[np.ndarray, " n"]:
    """A random number in [0, 1) for each number: SplitMix64's finaliser on seed, stream and number (Steele et al.
    2014)."""
    key = mix(np.array([seed], np.uint64) * np.uint64(4) + np.uint64(stream))
    return (mix(numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + key) >> np.uint64(11)) * 2.0**-53


def mix(x: UInt64[np.ndarray, " n"]) -> UInt64[np.ndarray, " n"]:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
