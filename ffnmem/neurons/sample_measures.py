"""What a neuron does at random positions: how often it fires, and how heavy its tails are."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import no_type_check

import numpy as np
import torch
from jaxtyping import Float, Float32, Float64, Int, Int64
from numba import njit
from torch import Tensor

from ..core.neuron_names import LayerName
from ..models.model import Model
from ..models.replaying import activation
from ..scanning.reduction import content_places
from ..scanning.state import sequence_of
from ..scanning.store import Store
from ..vocabulary.scoring import in_threads
from .inputs import sampled_sequences
from .measures import measure, measures_of
from .verdicts import Estimate, beside_shared, interval


# no_type_check keeps the tests' import hook from wrapping what numba has to compile. Each thread works on the neurons
# `first` to `last`; coefficients are float32, a row a neuron, and sums are taken in float64, each in one order.
@njit(nogil=True, cache=True)
@no_type_check
def power_sums(coefficients, sequences, first, last, sums):
    """By sequence, Σ(x − x̄)¹…⁴: ``sums`` [4, rows, sequences]. x̄ is the neuron's mean, so that nothing cancels."""
    n = coefficients.shape[1]
    for r in range(first, last):
        row = coefficients[r]
        mean = 0.0
        for i in range(n):
            mean += row[i]
        mean /= n
        sums[:, r] = 0.0
        for i in range(n):
            s = sequences[i]
            x = row[i] - mean
            square = x * x
            sums[0, r, s] += x
            sums[1, r, s] += square
            sums[2, r, s] += square * x
            sums[3, r, s] += square * square


# All is read from one random sample of a store's sequences, every neuron at every position of it. The null of each
# measure is the same of keys without any preferred direction, as long as the layer's and with its mean pre-activations.

POSITIONS = 16_384  # 128 sequences of 128: what a store samples by default
DRAWS = 200
CHANCE = 256  # random keys
BLOCK = 256  # neurons at once: two copies of 17 MB


@dataclass(frozen=True, eq=False)
class Sample:
    """Random positions of a store's text, whole sequences in ascending order. Made by :func:`token_sample`.

    ``places``: sequence and position in one integer, as :class:`ffnmem.neurons.inputs.Inputs` takes them.
    """

    places: Int64[np.ndarray, " n"]

    def __len__(self) -> int:
        return len(self.places)

    @cached_property
    def sequences(self) -> Int64[np.ndarray, " n"]:
        """The number of each position's sequence within the sample, from 0."""
        return np.unique(sequence_of(self.places), return_inverse=True)[1]

    @cached_property
    def lengths(self) -> Int64[np.ndarray, " sequences"]:
        return np.bincount(self.sequences)


def token_sample(store: Store, positions: int = POSITIONS, seed: int = 0) -> Sample:
    """The positions of the store's own random sequences, all of them or as many sequences as fit.

    ``positions``: at most so many, but for the last sequence. ``seed``: of which sequences fit.
    """
    found, total = {}, 0
    for sequence in sampled_sequences(store, np.random.default_rng([seed, 3])).tolist():
        places = content_places(store.sequences, store.settings.special, sequence)
        if total < positions and len(places):
            total += len(places)
            found[sequence] = places
    return Sample(np.concatenate([np.empty(0, np.int64), *(found[sequence] for sequence in sorted(found))]))


def sample_measures(
    model: Model,
    layer: LayerName,
    sample: Sample,
    inputs: Float32[np.ndarray, "n d_model"],
    *,
    sign: str = "positive",
    seed: int = 0,
    draws: int = DRAWS,
) -> dict[str, Estimate]:
    """The measures of a layer's neurons that read random positions, by name.

    The null is shared by the layer's neurons: random keys, each with one neuron's length and mean pre-activation.

    Args:
        sample: from :func:`token_sample`. inputs: what the layer's FFN reads there.
        sign: which side of the coefficient fires, "positive" or "negative".
        seed: of the bootstrap over sequences, and of the random keys.
        draws: of the bootstrap.

    Source: Phipson and Smyth 2010 for p.
    """
    index, factor = model.layer(layer), 1.0 if sign == "positive" else -1.0
    x = torch.from_numpy(inputs).to(model.device, model.dtype)
    n = len(sample.lengths)
    weights = np.random.default_rng([seed, 5]).multinomial(n, np.full(n, 1 / n), draws).T.astype(np.float64)
    chance, donors = random_keys(model, index, x.mean(dim=0), [seed, index])

    def measured(
        reading: KeyPairs, of: Int[Tensor, " n"], weights: Float64[np.ndarray, "sequences draws"]
    ) -> list[np.ndarray]:
        block = coefficients(model, index, x, reading, of) * factor
        return [one.compute(block, sample, weights) for one in measures_of("sample").values()]

    null = measured(chance, donors, weights[:, :0])
    neurons = torch.arange(model.ffn[index].d_mlp, device=model.device)
    parts = [measured(own_keys(model, index, block), block, weights) for block in torch.split(neurons, BLOCK)]
    estimates = {}
    for (name, one), by_chance, *found in zip(measures_of("sample").items(), null, *parts, strict=True):
        value, low, high = np.concatenate(found, axis=1)
        estimates[name] = beside_shared(value, low, high, by_chance[0], one.notable)
    return estimates


@measure("firing_rate", reads="sample", many=1)
def firing_rate(
    coefficients: Float32[np.ndarray, "rows n"], sample: Sample, weights: Float64[np.ndarray, "sequences draws"]
) -> Float64[np.ndarray, "3 rows"]:
    """The share of positions with a coefficient above 0, and its interval. Where a neuron never (always) fired, the far
    end is what independent positions would show with a chance of 2.5%.

    ``weights``: how often each draw of the bootstrap takes each sequence; without draws the ends are the value.
    """
    starts = np.cumsum(sample.lengths) - sample.lengths
    fired = np.add.reduceat(coefficients > 0, starts, axis=1, dtype=np.float64)
    rate = add_interval(fired.sum(1) / len(sample), (fired @ weights) / (sample.lengths.astype(np.float64) @ weights))
    far = 1 - 0.025 ** (1 / len(sample))
    return np.stack([rate[0], np.where(rate[0] == 1, 1 - far, rate[1]), np.where(rate[0] == 0, far, rate[2])])


@measure("kurtosis", reads="sample", many=-1)
def excess_kurtosis(
    coefficients: Float32[np.ndarray, "rows n"], sample: Sample, weights: Float64[np.ndarray, "sequences draws"]
) -> Float64[np.ndarray, "3 rows"]:
    """Excess kurtosis (of the population) of coefficients of either sign, and its interval; NaN without spread."""
    sums = np.empty((4, len(coefficients), len(sample.lengths)))
    in_threads(lambda a, b: power_sums(coefficients, sample.sequences, a, b, sums), len(coefficients))
    drawn = excess(sample.lengths.astype(np.float64) @ weights, *(part @ weights for part in sums))
    return add_interval(excess(len(sample), *sums.sum(2)), drawn)


KeyPairs = list[tuple[Float[Tensor, "keys d_model"], Float[Tensor, " keys"] | None]]
"""What some neurons compare their input with: their keys and biases, and if gated their gates and theirs too."""


def own_keys(model: Model, layer: int, neurons: Int[Tensor, " n"]) -> KeyPairs:
    """Those of a layer's neurons."""
    ffn = model.ffn[layer]
    pairs = [(ffn.keys, ffn.key_bias), (ffn.gates, ffn.gate_bias)]
    return [
        (rows.detach()[neurons], None if bias is None else bias.detach()[neurons])
        for rows, bias in pairs
        if rows is not None
    ]


def random_keys(
    model: Model, layer: int, mean: Float[Tensor, " d_model"], seed: list[int]
) -> tuple[KeyPairs, Int[Tensor, " keys"]]:
    """:data:`CHANCE` keys without a preferred direction, and gates likewise if the model is gated: each has the length,
    and with its bias at the mean input the product, of those of one of the layer's neurons; and which neuron's."""
    random = np.random.default_rng(seed)
    donors = torch.from_numpy(random.integers(model.ffn[layer].d_mlp, size=CHANCE)).to(model.device)
    return rotate_isotropic(own_keys(model, layer, donors), mean, random), donors


def rotate_isotropic(own: KeyPairs, mean: Float[Tensor, " d_model"], random: np.random.Generator) -> KeyPairs:
    """Keys without a preferred direction, each with the length and the product with the mean input of the one given."""
    found: KeyPairs = []
    for keys, bias in own:
        drawn = torch.from_numpy(random.standard_normal(tuple(keys.shape))).to(mean)
        product = keys @ mean if bias is None else keys @ mean + bias
        drawn = drawn * (keys.norm(dim=-1) / drawn.norm(dim=-1)).unsqueeze(-1)
        found.append((drawn, product - drawn @ mean))
    return found


@torch.inference_mode()
def coefficients(
    model: Model, layer: int, inputs: Float[Tensor, "n d_model"], reading: KeyPairs, neurons: Int[Tensor, " rows"]
) -> Float32[np.ndarray, "rows n"]:
    """act(k·x + b), or act(g·x)·(k·x), at all positions, a row a neuron, as the model's own numeric type gives them.

    ``neurons``: in whose places these keys stand. In a mixture of experts the router of that place counts too: a key is
    0 where a token is not routed to its expert.
    """
    act = activation(model.ffn[layer].activation, fused=model.dtype != torch.float64)
    mixture = model.ffn[layer].mixture
    factors = None if mixture is None else mixture.factors(inputs, neurons).T

    def product(which: int, keys: Tensor, bias: Tensor | None) -> Tensor:
        found, added = keys @ inputs.T, None if bias is None else bias.unsqueeze(-1)
        if mixture is not None and factors is not None:
            slope, added = mixture.line(which, found, factors, added)
            found = found * slope
        return found if added is None else found + added

    linear, *gate = [product(1 - place, *pair) for place, pair in enumerate(reading)]
    return (act(gate[0]) * linear if gate else act(linear)).to("cpu", torch.float32).numpy()


def add_interval(
    value: Float64[np.ndarray, " rows"], drawn: Float64[np.ndarray, "rows draws"]
) -> Float64[np.ndarray, "3 rows"]:
    """The value and its interval, which holds it; the value itself without draws or without a value."""
    if not drawn.shape[1]:
        return np.stack([value] * 3)
    low, high = interval(drawn)
    return np.stack([value, np.fmin(low, value), np.fmax(high, value)]) + 0 * value


def excess(
    n: float | Float64[np.ndarray, " draws"],
    s1: Float64[np.ndarray, "..."],
    s2: Float64[np.ndarray, "..."],
    s3: Float64[np.ndarray, "..."],
    s4: Float64[np.ndarray, "..."],
) -> Float64[np.ndarray, "..."]:
    """Excess kurtosis (of the population) from sums of powers of deviations; NaN without spread."""
    mean = s1 / n
    second = s2 / n - mean**2
    fourth = s4 / n - 4 * mean * s3 / n + 6 * mean**2 * s2 / n - 3 * mean**4
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(second > 0, fourth / second**2 - 3, np.nan)
