"""What a pass leaves behind of each batch: every layer's coefficients reduced into the state, then dropped."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Bool, Float, Float32, Float64, Int32, Int64, UInt64
from torch import Tensor

from ..core.choices import CASES
from ..corpus.batches import Batch, Sequences
from ..corpus.excerpts import Page
from . import exact_sums, kernels
from .state import EXTREMES, GateState, LayerState, Ranking, ScanState, joined_range, place_of, strengths

# Which sequences and positions are the random sample: a function of the seed and their numbers, known before the pass.
#
# Every sequence has a priority, a hash of the seed and its number; the sample is the sequences of the lowest
# priorities (a reservoir that needs no state). It does not depend on shards, batches or the order of reading. All
# neurons share it, so each neuron's examples are uniformly random, and a float32 run of a few sequences gives them all
# exactly.

SEQUENCES, DRAWS, PLACES = 1, 2, 3  # independent streams of one seed


@dataclass(frozen=True, eq=False)
class RandomSample:
    """The sample of a corpus, in ascending order of sequences.

    Attributes:
        sequences: uniformly random sequences, each as likely as any other.
        draws: sequences of the random positions, likelier the more tokens they have, each at most once.
        places: per draw, a random number in [0, 1) that picks one of its positions.
    """

    sequences: Int64[np.ndarray, " sample"]
    draws: Int64[np.ndarray, " draws"]
    places: Float64[np.ndarray, " draws"]


def choose(sequences: Sequences, seed: int, sample: int, draws: int) -> RandomSample:
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
    return RandomSample(uniform.numbers(), draw, uniforms(seed, PLACES, draw))


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


# What a batch of gated neurons has besides: sign cases and linear parts.


@dataclass(eq=False)
class GatedBatch:
    """One layer of a batch of gated neurons.

    Attributes:
        gate, linear, coefficients: ``[tokens, d_mlp]`` in float32: the gate's pre-activation, the linear part, and the
            activation of the one times the other.
        mask: which tokens are content. pos: tokens a row.
        best, best_at: by case, row and neuron, the largest magnitude of a coefficient and its position; filled by
            :meth:`reduce`.
    """

    gate: Float32[np.ndarray, "tokens d_mlp"]
    linear: Float32[np.ndarray, "tokens d_mlp"]
    coefficients: Float32[np.ndarray, "tokens d_mlp"]
    mask: Bool[np.ndarray, " tokens"]
    pos: int

    def __post_init__(self) -> None:
        tokens, width = self.coefficients.shape
        shape = (len(CASES), tokens // self.pos, width)
        self.best: Float32[np.ndarray, "4 rows d_mlp"] = np.empty(shape, np.float32)
        self.best_at: Int32[np.ndarray, "4 rows d_mlp"] = np.zeros(shape, np.int32)
        self.case_sums, self.sums = np.zeros((len(CASES), width)), np.zeros((4, width))

    def reduce(self, start: int, stop: int, state: GateState) -> None:
        """Count and sum some neurons; the sums are added by :meth:`finish`."""
        kernels.cases(
            *(self.gate, self.linear, self.coefficients, self.mask, self.pos, start, stop),
            *(state.case_counts, self.case_sums, self.sums, state.linear_range, self.best, self.best_at),
        )

    def look(self) -> None:
        """Fill ``best`` alone."""
        width = self.coefficients.shape[1]
        counts, span = np.zeros((len(CASES), width), np.int64), np.zeros((2, width), np.float32)
        kernels.cases(
            *(self.gate, self.linear, self.coefficients, self.mask, self.pos, 0, width),
            *(counts, self.case_sums, self.sums, span, self.best, self.best_at),
        )

    def finish(self, state: GateState, where: str) -> None:
        """Add the sums of all neurons. Raises InputError if they are NaN or infinite."""
        exact_sums.add(state.linear_sums, self.sums, where)
        exact_sums.add(state.case_sums, self.case_sums, where)
        state.linear_range += np.float32(0)  # no −0, as where ranges are joined

    def parts(
        self, tokens: Int64[np.ndarray, "*places"], neurons: Int64[np.ndarray, "*places"]
    ) -> Float32[np.ndarray, "2 ..."]:
        """Gate and linear part of some neurons at some tokens."""
        return np.stack([self.gate[tokens, neurons], self.linear[tokens, neurons]])


@dataclass(frozen=True, eq=False)
class BatchPlan:
    """A batch as the reduction sees it: where content is, and what each content token belongs to.

    Attributes:
        mask: ``[rows·pos]``, True at content (no BOS, pads or special tokens).
        segments: runs of content in one row and one position bucket: first token, end, bucket.
        chosen: frequent tokens: token, its index among the frequent ones.
        sampled: rows that are in the random sample: row, index in the sample.
        drawn: rows with a random position: row, index of the draw, position.
    """

    batch: Batch
    mask: Bool[np.ndarray, " tokens"]
    segments: Int64[np.ndarray, "segments 3"]
    chosen: Int64[np.ndarray, "chosen 2"]
    sampled: Int64[np.ndarray, "sampled 2"]
    drawn: Int64[np.ndarray, "drawn 3"]

    @property
    def shape(self) -> tuple[int, int]:
        rows, pos = self.batch.tokens.shape
        return rows, pos


class Planner:
    """Makes the plan of each batch of a scan."""

    def __init__(self, state: ScanState, sample: RandomSample) -> None:
        settings = state.settings
        order = np.argsort(np.array(settings.frequent, np.int64), kind="stable")
        self.frequent, self.frequent_index = np.array(settings.frequent, np.int64)[order], order
        self.sample = sample
        self.buckets = np.array([p.bit_length() for p in range(settings.context)], np.int64)

    def plan(self, page: Page) -> BatchPlan:
        pos = page.batch.tokens.shape[1]
        tokens, bucket = page.places, self.buckets[page.positions]
        return BatchPlan(
            batch=page.batch,
            mask=page.mask,
            segments=runs(tokens, (tokens // pos) * 64 + bucket, bucket),
            chosen=self.among_frequent(page.tokens, tokens),
            sampled=common(page.batch.sequences, self.sample.sequences),
            drawn=self.positions(page.batch, rearrange(page.mask, "(rows pos) -> rows pos", pos=pos)),
        )

    def among_frequent(self, ids: Int64[np.ndarray, " n"], tokens: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, "m 2"]:
        if not len(self.frequent):
            return np.empty((0, 2), np.int64)
        slot = np.minimum(np.searchsorted(self.frequent, ids), len(self.frequent) - 1)
        hit = self.frequent[slot] == ids
        return np.stack([tokens[hit], self.frequent_index[slot[hit]]], axis=1)

    def positions(self, batch: Batch, content: Bool[np.ndarray, "rows pos"]) -> Int64[np.ndarray, "n 3"]:
        found = []
        for row, draw in common(batch.sequences, self.sample.draws):
            places = np.flatnonzero(content[row])
            if len(places):
                found.append((row, draw, places[int(self.sample.places[draw] * len(places))]))
        return np.array(found, np.int64).reshape(-1, 3)


def runs(
    tokens: Int64[np.ndarray, " n"], key: Int64[np.ndarray, " n"], bucket: Int64[np.ndarray, " n"]
) -> Int64[np.ndarray, "m 3"]:
    """Runs of consecutive tokens of one key, as first, end and bucket."""
    if not len(tokens):
        return np.empty((0, 3), np.int64)
    begins = np.flatnonzero(np.concatenate([[True], (np.diff(key) != 0) | (np.diff(tokens) != 1)]))
    ends = np.concatenate([begins[1:], [len(tokens)]])
    return np.stack([tokens[begins], tokens[ends - 1] + 1, bucket[begins]], axis=1)


def common(numbers: Int64[np.ndarray, " n"], chosen: Int64[np.ndarray, " m"]) -> Int64[np.ndarray, "k 2"]:
    """Where ``numbers`` are among ``chosen`` (ascending): index in each."""
    slot = np.minimum(np.searchsorted(chosen, numbers), max(len(chosen) - 1, 0))
    hit = chosen[slot] == numbers if len(chosen) else np.zeros(len(numbers), bool)
    return np.stack([np.flatnonzero(hit), slot[hit]], axis=1).astype(np.int64)


DENSE = 32  # where more than one in so many neurons may enter, a row is read as a whole


class Reducer:
    """Adds batches to a state. Neurons are shared out among threads; results do not depend on how many."""

    def __init__(self, state: ScanState, planner: Planner, workers: Workers) -> None:
        self.state, self.planner, self.workers = state, planner, workers

    def begin(self, page: Page) -> BatchPlan:
        """Count a page; its layers follow by :meth:`layer`."""
        plan, state = self.planner.plan(page), self.state
        state.n_sequences += len(page.batch.sequences)
        state.tokens += int(plan.mask.sum())
        np.add.at(state.bucket_counts, plan.segments[:, 2], plan.segments[:, 1] - plan.segments[:, 0])
        np.add.at(state.token_counts, plan.chosen[:, 1], 1)
        state.draw_positions[plan.drawn[:, 1]] = plan.drawn[:, 2]
        return plan

    def layer(
        self,
        plan: BatchPlan,
        layer: int,
        pre: Float[Tensor, "tokens d_mlp"],
        coefficients: Float[Tensor, "tokens d_mlp"],
        linear: Float[Tensor, "tokens d_mlp"] | None = None,
    ) -> None:
        """Reduce one layer of a batch into the state. Raises InputError if its numbers are NaN or infinite.

        ``linear``: the linear parts of gated neurons, whose ``pre`` are their gates'.
        """
        state, where = self.state.layers[layer], f"layer {layer}"
        x, m = as_float32(pre), as_float32(coefficients)
        gated = gated_batch(plan, x, m, linear)
        width = m.shape[1]
        sums, buckets = np.zeros((8, width)), np.zeros((len(state.bucket_sums), width))
        tokens = np.zeros((len(state.token_sums), width))
        rows, pos = plan.shape
        high, low = np.empty((rows, width), np.float32), np.empty((rows, width), np.float32)

        def block(start: int, stop: int) -> None:
            kernels.moments(x, m, plan.segments, start, stop, sums, state.counts, state.pre_range, buckets)
            kernels.extremes(m, plan.mask, pos, start, stop, high, low)
            kernels.grouped(m, plan.chosen, start, stop, tokens)
            kernels.histogram(m.view(np.int32), plan.mask, start, stop, state.histogram)
            if gated is not None and state.gate is not None:
                gated.reduce(start, stop, state.gate)

        self.workers(block, width)
        exact_sums.add(state.sums, sums, where)
        exact_sums.add_small(state.bucket_sums, buckets, where)
        exact_sums.add_small(state.token_sums, tokens, where)
        state.range[:] = joined_range(state.range, np.stack([low.min(0), high.max(0)]))
        state.pre_range += np.float32(0)  # as joined_range does: no −0
        if gated is not None and state.gate is not None:
            gated.finish(state.gate, where)
        for side, extreme in extremes_of(high, low, gated).items():
            self.keep(state.ranking(side), side, extreme, plan, m, gated)
        if not self.state.settings.rescored:
            observe_sample(state, plan, m, high, low, gated)

    def keep(
        self,
        ranking: Ranking,
        side: str,
        extreme: Float32[np.ndarray, "rows d_mlp"],
        plan: BatchPlan,
        m: Float32[np.ndarray, "tokens d_mlp"],
        gated: GatedBatch | None,
    ) -> None:
        """Let the batch's sequences compete for the kept ones of a side; only those that may enter are looked at.
        Gates and linear parts are noted where they are exact."""
        is_case = side not in EXTREMES

        def enter(rows: np.ndarray, neurons: np.ndarray, at: np.ndarray) -> None:
            tokens = rows * plan.shape[1] + at
            if gated is None or self.state.settings.rescored:
                brought = np.full((len(ranking.parts), len(rows)), np.nan, np.float32)
            else:
                brought = gated.parts(tokens, neurons)
            values = m[tokens, neurons] if is_case else extreme[rows, neurons]
            places = place_of(plan.batch.sequences[rows], at)
            kernels.insert(ranking.value, ranking.at, ranking.parts, neurons, values, places, brought, ranking.sign)

        there = extreme > 0 if is_case else np.isfinite(extreme)
        may_enter = there & (strengths(extreme, ranking.sign) >= strengths(ranking.value[:, -1], ranking.sign))
        # Of a case the positions are known already.
        dense = np.zeros(len(extreme), bool) if is_case else may_enter.sum(1) > extreme.shape[1] // DENSE
        many = np.flatnonzero(dense)
        whole = self.places(plan, m, many, extreme)
        for index, row in enumerate(many.tolist()):
            neurons = np.flatnonzero(may_enter[row])
            enter(np.full(len(neurons), row), neurons, whole[index, neurons].astype(np.int64))
        rows, neurons = np.nonzero(may_enter & ~dense[:, None])
        enter(rows, neurons, positions(plan, m, gated, side, rows, neurons, extreme[rows, neurons]))

    def places(
        self,
        plan: BatchPlan,
        m: Float32[np.ndarray, "tokens d_mlp"],
        rows: Int64[np.ndarray, " some"],
        extreme: Float32[np.ndarray, "rows d_mlp"],
    ) -> Int32[np.ndarray, "some d_mlp"]:
        """Where the extremes of whole rows stand."""
        found = np.zeros((len(rows), m.shape[1]), np.int32)

        def block(start: int, stop: int) -> None:
            kernels.places_in_rows(m, plan.mask, plan.shape[1], rows, start, stop, extreme, found)

        if len(rows):
            self.workers(block, m.shape[1])
        return found


def gated_batch(
    plan: BatchPlan,
    x: Float32[np.ndarray, "tokens d_mlp"],
    m: Float32[np.ndarray, "tokens d_mlp"],
    linear: Float[Tensor, "tokens d_mlp"] | None,
) -> GatedBatch | None:
    """A layer of a batch with its linear parts, if it has any."""
    return None if linear is None else GatedBatch(x, as_float32(linear), m, plan.mask, plan.shape[1])


def extremes_of(
    high: Float32[np.ndarray, "rows d_mlp"], low: Float32[np.ndarray, "rows d_mlp"], gated: GatedBatch | None
) -> dict[str, Float32[np.ndarray, "rows d_mlp"]]:
    """By side, the most extreme coefficient of each row, of a case its magnitude."""
    return {"high": high, "low": low} | ({} if gated is None else dict(zip(CASES, gated.best, strict=True)))


def positions(
    plan: BatchPlan,
    m: Float32[np.ndarray, "tokens d_mlp"],
    gated: GatedBatch | None,
    side: str,
    rows: Int64[np.ndarray, " n"],
    neurons: Int64[np.ndarray, " n"],
    extreme: Float32[np.ndarray, " n"],
) -> Int64[np.ndarray, " n"]:
    """Where the extremes of a side stand, as :func:`extremes_of` has them."""
    if gated is None or side in EXTREMES:
        return kernels.positions_of(m, plan.mask, plan.shape[1], rows, neurons, extreme)
    return gated.best_at[CASES.index(side), rows, neurons].astype(np.int64)


def observe_sample(
    state: LayerState,
    plan: BatchPlan,
    m: Float32[np.ndarray, "tokens d_mlp"],
    high: Float32[np.ndarray, "rows d_mlp"],
    low: Float32[np.ndarray, "rows d_mlp"],
    gated: GatedBatch | None = None,
) -> None:
    """Keep what the random sample asks for, from float32 coefficients and each row's extremes."""
    pos, width = plan.shape[1], m.shape[1]
    sampled = plan.sampled[np.isfinite(high[plan.sampled[:, 0], 0])]  # a row without content has no extremes
    rows, slots = sampled[:, 0].copy(), sampled[:, 1]
    neurons = np.arange(width)
    for side, extreme, value, at in (
        (0, high, state.sample_high, state.sample_high_at),
        (1, low, state.sample_low, state.sample_low_at),
    ):
        found = np.zeros((len(rows), width), np.int32)
        kernels.places_in_rows(m, plan.mask, pos, rows, 0, width, extreme, found)
        value[slots], at[slots] = extreme[rows], found
        if gated is not None and state.gate is not None:
            tokens, columns = np.broadcast_arrays(rows[:, None] * pos + found, neurons)
            state.gate.sample_parts[side][:, slots] = gated.parts(tokens, columns)
    for row, slot, position in plan.drawn:
        state.draw[slot] = m[row * pos + position]
        if gated is not None and state.gate is not None:
            state.gate.draw_parts[:, slot] = gated.parts(np.full(width, row * pos + position), neurons)


def as_float32(tensor: Float[Tensor, "tokens d_mlp"]) -> Float32[np.ndarray, "tokens d_mlp"]:
    return tensor.to("cpu", torch.float32).contiguous().numpy()


class Workers:
    """Threads that each take a share of the neurons; to be closed."""

    def __init__(self, count: int | None = None) -> None:
        self.count = min(count or available_cores(), 16)
        self.pool = ThreadPoolExecutor(self.count) if self.count > 1 else None

    def __call__(self, run: Callable[[int, int], None], width: int) -> None:
        """Call ``run(start, stop)`` for every share of ``width`` neurons and wait."""
        if self.pool is None:
            run(0, width)
            return
        bounds = np.linspace(0, width, self.count + 1).astype(int).tolist()
        for future in [self.pool.submit(run, a, b) for a, b in itertools.pairwise(bounds) if a < b]:
            future.result()

    def close(self) -> None:
        if self.pool is not None:
            self.pool.shutdown()


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
