"""What a neuron does at random positions: how often it fires, how heavy its tails are, how much one token explains."""

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
from ..scanning.state import place_of
from ..scanning.store import Store
from ..vocabulary.scoring import in_threads
from .verdicts import Estimate, beside_shared, interval

# The inner loops of :mod:`ffnmem.neurons.sample_measures`: sums by sequence, and the token that explains a neuron best.
#
# Each works on the neurons `first` to `last`, holds no lock and writes nowhere else, so that threads can share the
# work. Coefficients are float32, a row a neuron; sums are taken in float64, each by one thread in one order.


# no_type_check keeps the tests' import hook from wrapping what numba has to compile.
@njit(nogil=True, cache=True)
@no_type_check
def sequence_sums(coefficients, sequences, first, last, sums):
    """By sequence, how many coefficients are above 0, and Σ(x − x̄)¹…⁴: ``sums`` [5, rows, sequences].

    x̄ is the neuron's mean, so that nothing cancels.
    """
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
            if row[i] > 0:
                sums[0, r, s] += 1.0
            sums[1, r, s] += x
            sums[2, r, s] += square
            sums[3, r, s] += square * x
            sums[4, r, s] += square * square


@njit(nogil=True, cache=True)
@no_type_check
def explained(coefficients, first, last, order, starts, counts, sequences, groups, least, errors):
    """Squared deviations that one token leaves, and all of them, by sequence: ``errors`` [2, rows, sequences].

    The positions of type t are ``order[starts[t]:starts[t + 1]]``; ``counts`` [types, groups] says how often it occurs
    in each group of sequences. For each group, a type and its means are chosen on all the others: the one that takes
    off the most squared deviations, ties by type.
    """
    n, n_types, n_groups, n_sequences = coefficients.shape[1], counts.shape[0], counts.shape[1], len(groups)
    size = np.full(n_groups, float(n))  # positions that a choice is made on: all but the group's
    held = np.zeros(n_sequences)
    for i in range(n):
        held[sequences[i]] += 1.0
    for s in range(n_sequences):
        size[groups[s]] -= held[s]
    total, best, inside, outside = np.empty(n_groups), np.empty(n_groups), np.empty(n_groups), np.empty(n_groups)
    pick, part = np.empty(n_groups, np.int64), np.empty(n_groups)
    s1, s2 = np.empty(n_sequences), np.empty(n_sequences)
    for r in range(first, last):
        row = coefficients[r]
        s1[:] = 0.0
        s2[:] = 0.0
        for i in range(n):
            x = np.float64(row[i])
            s1[sequences[i]] += x
            s2[sequences[i]] += x * x
        total[:] = s1.sum()
        for s in range(n_sequences):
            total[groups[s]] -= s1[s]
        best[:] = 0.0
        pick[:] = -1
        for t in range(n_types):
            part[:] = 0.0
            occurs = starts[t + 1] - starts[t]
            for j in range(starts[t], starts[t + 1]):
                part[groups[sequences[order[j]]]] += row[order[j]]
            whole = part.sum()
            for g in range(n_groups):
                here = np.float64(occurs - counts[t, g])
                if here < least or here >= size[g]:
                    continue
                mass = whole - part[g]
                away = mass - here * total[g] / size[g]
                gain = away * away * size[g] / (here * (size[g] - here))
                if gain > best[g] * (1 + 1e-9):
                    best[g], pick[g] = gain, t
                    inside[g] = mass / here
                    outside[g] = (total[g] - mass) / (size[g] - here)
        for s in range(n_sequences):
            g = groups[s]
            mean = total[g] / size[g] if size[g] > 0 else np.nan
            rest = outside[g] if pick[g] >= 0 else mean
            errors[1, r, s] = s2[s] - 2 * mean * s1[s] + held[s] * mean * mean
            errors[0, r, s] = s2[s] - 2 * rest * s1[s] + held[s] * rest * rest
        for g in range(n_groups):
            if pick[g] < 0:
                continue
            for j in range(starts[pick[g]], starts[pick[g] + 1]):
                s = sequences[order[j]]
                if groups[s] == g:
                    x = np.float64(row[order[j]])
                    errors[0, r, s] += (x - inside[g]) ** 2 - (x - outside[g]) ** 2


# What a neuron does at random positions: how often it fires, how heavy its tails are, how much one token explains.
#
# All of it is read from one random sample of a store's sequences, every neuron at every position of it. The null of
# each measure is the same of keys without any preferred direction, as long as the layer's and with its mean
# pre-activations.

POSITIONS = 16_384  # 128 sequences of 128: what a store samples by default
GROUPS = 8
DRAWS = 200
CHANCE = 256  # random keys
BLOCK = 256  # neurons at once: two copies of 17 MB
LEAST = 3  # occurrences in what a token is chosen on


@dataclass(frozen=True, eq=False)
class Types:
    """Positions by token: those of the t-th token are ``order[starts[t]:starts[t + 1]]``; only tokens that occur
    often enough. ``counts``: how often each occurs in each group of sequences."""

    order: Int64[np.ndarray, " m"]
    starts: Int64[np.ndarray, " ends"]
    counts: Int64[np.ndarray, "types groups"]


@dataclass(frozen=True, eq=False)
class Sample:
    """Random positions of a store's text, whole sequences in ascending order. Made by :func:`token_sample`.

    Attributes:
        places: sequence and position in one integer, as :class:`ffnmem.neurons.inputs.Inputs` takes them.
        tokens: the token at each. previous: the one in front of it, BOS included; −1 where there is none.
        sequences: the number of its sequence within the sample, 0 to ``n_sequences`` − 1.
    """

    places: Int64[np.ndarray, " n"]
    tokens: Int64[np.ndarray, " n"]
    previous: Int64[np.ndarray, " n"]
    sequences: Int64[np.ndarray, " n"]

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def n_sequences(self) -> int:
        return int(self.sequences.max()) + 1 if len(self) else 0

    @cached_property
    def groups(self) -> Int64[np.ndarray, " sequences"]:
        """The group of each sequence. Neighbours, which may be of one document, share theirs."""
        return np.arange(self.n_sequences) * min(GROUPS, self.n_sequences) // max(self.n_sequences, 1)

    @cached_property
    def lengths(self) -> Int64[np.ndarray, " sequences"]:
        return np.bincount(self.sequences, minlength=self.n_sequences)

    @cached_property
    def types(self) -> dict[str, Types]:
        """The positions by current ("unigram") and by previous token ("previous")."""
        return {"unigram": self.by(self.tokens), "previous": self.by(self.previous)}

    def by(self, tokens: Int64[np.ndarray, " n"]) -> Types:
        order = np.argsort(tokens, kind="stable")
        order = order[tokens[order] >= 0]
        _, inverse, counts = np.unique(tokens[order], return_inverse=True, return_counts=True)
        often = counts >= LEAST
        order = order[often[inverse]]
        starts = np.concatenate([[0], np.cumsum(counts[often])])
        n_groups = int(self.groups[-1]) + 1 if self.n_sequences else 0
        table = np.zeros((int(often.sum()), n_groups), np.int64)
        which = np.repeat(np.arange(len(table)), counts[often])
        np.add.at(table, (which, self.groups[self.sequences[order]]), 1)
        return Types(order, starts.astype(np.int64), table)


MEASURES = {"firing_rate": "less", "kurtosis": "greater", "unigram": "greater", "previous": "greater"}


def token_sample(store: Store, positions: int = POSITIONS, seed: int = 0) -> Sample:
    """The positions of the store's own random sequences, all of them or as many sequences as fit.

    ``positions``: at most so many, but for the last sequence. ``seed``: of which sequences fit.
    """
    lead, special = store.sequences.lead, list(store.settings.special)
    drawn = np.random.default_rng([seed, 3]).permutation(store.state.shared["sequences"])
    found, total = [], 0
    for sequence in drawn[(drawn >= 0) & (drawn < store.sequences.n_sequences)].tolist():
        tokens = store.sequences.sequence_tokens(sequence).astype(np.int64)
        at = lead + np.flatnonzero(~np.isin(tokens[lead:], special))
        if total < positions and len(at):
            total += len(at)
            found.append((sequence, tokens, at))
    found.sort(key=lambda part: part[0])
    empty = np.empty(0, np.int64)
    return Sample(
        np.concatenate([empty, *(place_of(np.int64(sequence), at) for sequence, _, at in found)]),
        np.concatenate([empty, *(tokens[at] for _, tokens, at in found)]),
        np.concatenate([empty, *(np.where(at > 0, tokens[at - 1], -1) for _, tokens, at in found)]),
        np.repeat(np.arange(len(found)), [len(at) for _, _, at in found]).astype(np.int64),
    )


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
    """Firing rate, kurtosis, and what one token explains, of a layer's neurons.

    What "the token is t" explains is 1 − (β·var_true + (1 − β)·var_false)/var, β how often it holds. The token is
    chosen, and its means are taken, on seven of eight groups of sequences, and scored on the eighth, so that a choice
    among thousands earns nothing by itself: by chance it is about 0, or below.

    Args:
        sample: from :func:`token_sample`. inputs: what the layer's FFN reads there.
        sign: which side of the coefficient fires, "positive" or "negative"; the other side counts as 0, except to the
            kurtosis.
        seed: of the bootstrap over sequences, whose choice of tokens is kept, and of the random keys.
        draws: of the bootstrap.

    Returns:
        By name: firing_rate, the share of positions with a coefficient of the sign (p is of one as small); kurtosis,
        excess, of the coefficient of either sign; unigram, previous: the share of the coefficient's variance, on that
        side, that the best single token explains (p of these is of one as large). NaN where the coefficient does not
        vary. Where a neuron never (always) fired, the other end of its rate is what independent positions would show
        with a chance of 2.5%. The null is shared by the layer's neurons: random keys, each with one neuron's length and
        mean pre-activation.

    Source: the explained share, Gurnee et al. 2024 (2401.12181), §4.1; Phipson and Smyth 2010 for p.
    """
    index, factor = model.layer(layer), 1.0 if sign == "positive" else -1.0
    x = torch.from_numpy(inputs).to(model.device, model.dtype)
    again = np.random.default_rng([seed, 5]).multinomial(
        sample.n_sequences, np.full(sample.n_sequences, 1 / sample.n_sequences), draws
    )
    chance = random_keys(model, index, x.mean(dim=0), [seed, index])
    by_chance = of_rows(coefficients(model, index, x, chance) * factor, sample, again[:0])
    parts = []
    for block in torch.split(torch.arange(model.ffn[index].d_mlp, device=model.device), BLOCK):
        own = coefficients(model, index, x, own_keys(model, index, block))
        parts.append(of_rows(own * factor, sample, again))
    estimates = {}
    for place, (name, direction) in enumerate(MEASURES.items()):
        value, low, high = (np.concatenate([part[place, end] for part in parts]) for end in range(3))
        estimates[name] = beside_shared(value, low, high, by_chance[place, 0], direction)
    return estimates


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


def random_keys(model: Model, layer: int, mean: Float[Tensor, " d_model"], seed: list[int]) -> KeyPairs:
    """:data:`CHANCE` keys without a preferred direction, and gates likewise if the model is gated: each has the length,
    and with its bias at the mean input the product, of those of one of the layer's neurons."""
    random = np.random.default_rng(seed)
    donors = torch.from_numpy(random.integers(model.ffn[layer].d_mlp, size=CHANCE)).to(model.device)
    return turned_anyhow(own_keys(model, layer, donors), mean, random)


def turned_anyhow(own: KeyPairs, mean: Float[Tensor, " d_model"], random: np.random.Generator) -> KeyPairs:
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
    model: Model, layer: int, inputs: Float[Tensor, "n d_model"], reading: KeyPairs
) -> Float32[np.ndarray, "rows n"]:
    """act(k·x + b), or act(g·x)·(k·x), at all positions, a row a neuron, as the model's own numeric type gives them."""
    act = activation(model.ffn[layer].activation, fused=model.dtype != torch.float64)
    linear, *gate = [
        keys @ inputs.T if bias is None else keys @ inputs.T + bias.unsqueeze(-1) for keys, bias in reading
    ]
    return (act(gate[0]) * linear if gate else act(linear)).to("cpu", torch.float32).numpy()


def of_rows(
    coefficients: Float32[np.ndarray, "rows n"], sample: Sample, again: Int64[np.ndarray, "draws sequences"]
) -> Float64[np.ndarray, "4 3 rows"]:
    """Value, low and high of the :data:`MEASURES` of each row of coefficients.

    ``again``: how often each draw of the bootstrap takes each sequence; without draws, low and high are the value.
    """
    rows, weights = len(coefficients), again.T.astype(np.float64)
    sums = np.empty((5, rows, sample.n_sequences))
    in_threads(lambda a, b: sequence_sums(coefficients, sample.sequences, a, b, sums), rows)
    found = np.empty((4, 3, rows))
    lengths = sample.lengths.astype(np.float64)
    found[0] = with_interval(sums[0].sum(1) / len(sample), (sums[0] @ weights) / (lengths @ weights))
    found[0, 1:] = rate_ends(found[0], len(sample))
    found[1] = with_interval(
        excess(len(sample), *sums[1:].sum(2)), excess(lengths @ weights, *(s @ weights for s in sums[1:]))
    )
    side = np.maximum(coefficients, 0)
    for place, types in enumerate(sample.types.values(), start=2):
        errors = np.empty((2, rows, sample.n_sequences))
        arrays = (types.order, types.starts, types.counts, sample.sequences, sample.groups, LEAST, errors)
        in_threads(lambda a, b, arrays=arrays: explained(side, a, b, *arrays), rows)  # type: ignore[misc]
        shares = [share_explained(*(e.sum(1) for e in errors)), share_explained(*(e @ weights for e in errors))]
        found[place] = with_interval(*shares)
    return found


def with_interval(
    value: Float64[np.ndarray, " rows"], drawn: Float64[np.ndarray, "rows draws"]
) -> Float64[np.ndarray, "3 rows"]:
    """The value and its interval, which holds it; the value itself without draws or without a value."""
    if not drawn.shape[1]:
        return np.stack([value] * 3)
    low, high = interval(drawn)
    return np.stack([value, np.fmin(low, value), np.fmax(high, value)]) + 0 * value


def rate_ends(rate: Float64[np.ndarray, "3 rows"], n: int) -> Float64[np.ndarray, "2 rows"]:
    """The ends of a rate's interval; of 0 or 1 the far one is exact for n independent positions."""
    far = 1 - 0.025 ** (1 / n)
    return np.stack([np.where(rate[0] == 1, 1 - far, rate[1]), np.where(rate[0] == 0, far, rate[2])])


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


def share_explained(left: Float64[np.ndarray, "..."], all_: Float64[np.ndarray, "..."]) -> Float64[np.ndarray, "..."]:
    """1 − what is left of the squared deviations; NaN where there are none."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(all_ > 0, 1 - left / all_, np.nan)
