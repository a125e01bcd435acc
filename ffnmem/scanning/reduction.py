"""What a pass leaves behind of each batch: every layer's coefficients reduced into the state, then dropped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Bool, Float, Float32, Float64, Int32, Int64, UInt64
from torch import Tensor

from ..core.threads import Threads
from ..corpus.batches import Batch, Sequences
from ..corpus.excerpts import Page
from ..corpus.passes import Observer
from . import exact_sums, kernels
from .state import EXTREMES, NO_VALUE, SIDES, SPAN, LayerState, ScanState, join_ranges, place_of

# Which sequences and positions are the random sample: a function of the seed and their numbers, known before the pass.
#
# Every sequence has a priority, a hash of the seed and its number; the sample is the sequences of the lowest
# priorities (a reservoir that needs no state). It does not depend on shards, batches or the order of reading. All
# neurons share it, so each neuron's examples are uniformly random, and a float32 run of a few sequences gives them all
# exactly.

READ, SEQUENCES, DRAWS, PLACES = range(4)  # independent streams of one seed
INPUTS = 4096  # random positions at which the FFNs' inputs are kept


@dataclass(frozen=True, eq=False)
class RandomSample:
    """The sample of a corpus, in ascending order of sequences.

    Attributes:
        sequences: uniformly random sequences, each as likely as any other.
        draws: sequences of the random positions, likelier the more tokens they have, each at most once.
        places: per draw, a random number in [0, 1) that picks one of its positions.
        inputs: places in the uniformly random sequences at which the FFNs' inputs are kept, in random order.
    """

    sequences: Int64[np.ndarray, " sample"]
    draws: Int64[np.ndarray, " draws"]
    places: Float64[np.ndarray, " draws"]
    inputs: Int64[np.ndarray, " inputs"]


def choose(sequences: Sequences, special: Sequence[int], seed: int, sample: int, draws: int) -> RandomSample:
    """The sample of a corpus; all of it where it has fewer sequences than asked for."""
    uniform = Lowest(sample)
    weighted = Lowest(draws)
    for unit in sequences.units:
        numbers = np.arange(unit.first_sequence, unit.first_sequence + unit.n_sequences)
        uniform.offer(uniforms(seed, SEQUENCES, numbers), numbers)
        # Exponential races: the lowest of −ln(u)/w are a sample weighted by w (Efraimidis and Spirakis 2006).
        content = sequences.lengths(unit) - sequences.lead
        weighted.offer(-np.log1p(-uniforms(seed, DRAWS, numbers)) / content, numbers)
    drawn, draw = uniform.numbers(), weighted.numbers()
    return RandomSample(drawn, draw, uniforms(seed, PLACES, draw), random_places(sequences, special, drawn, seed))


def content_places(sequences: Sequences, special: Sequence[int], number: int) -> Int64[np.ndarray, " n"]:
    """The places of a sequence, without BOS and special tokens."""
    tokens, lead = sequences.sequence_tokens(number), sequences.lead
    return place_of(np.int64(number), lead + np.flatnonzero(~np.isin(tokens[lead:], special)).astype(np.int64))


def random_places(
    sequences: Sequences, special: Sequence[int], numbers: Int64[np.ndarray, " sample"], seed: int
) -> Int64[np.ndarray, " n"]:
    """Some places of some sequences, without BOS and special tokens, in random order: the same wherever drawn."""
    found = [content_places(sequences, special, number) for number in numbers.tolist()]
    places = np.concatenate([np.empty(0, np.int64), *found])
    return places[np.argsort(uniforms(seed, READ, places), kind="stable")[:INPUTS]]


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


@dataclass(frozen=True, eq=False)
class BatchPlan:
    """A batch as the reduction sees it: where content is, and what each content token belongs to.

    Attributes:
        mask: ``[rows·pos]``, True at content (no BOS, pads or special tokens). places: the tokens where it is.
        buckets: the position bucket of each content token.
        chosen: frequent tokens: token, its index among the frequent ones.
        sampled: rows that are in the random sample: row, index in the sample.
        drawn: rows with a random position: row, index of the draw, position.
        read: cells whose FFN inputs are kept: cell, index among those.
        routed: by layer, which experts each token is routed to; shared ones, which all are, are left out.
    """

    batch: Batch
    mask: Bool[np.ndarray, " tokens"]
    places: Int64[np.ndarray, " content"]
    buckets: Int64[np.ndarray, " content"]
    chosen: Int64[np.ndarray, "chosen 2"]
    sampled: Int64[np.ndarray, "sampled 2"]
    drawn: Int64[np.ndarray, "drawn 3"]
    read: Int64[np.ndarray, "read 2"]
    routed: dict[int, Bool[np.ndarray, "tokens experts"]] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, int]:
        rows, pos = self.batch.tokens.shape
        return rows, pos

    def shares(self, layer: int, experts: Int32[np.ndarray, " d_mlp"]) -> list[Share]:
        """What counts for the neurons of each expert of a layer: the tokens that are routed to it, as its coefficients
        elsewhere were never computed. ``experts``: whose each neuron is, ascending."""
        routed, pos, found = self.routed.get(layer), self.shape[1], []
        ends = np.searchsorted(experts, np.arange(experts[-1] + 2))
        for expert, (first, last) in enumerate(pairwise(ends.tolist())):
            mask = self.mask if routed is None or expert >= routed.shape[1] else self.mask & routed[:, expert]
            inside = mask[self.places]
            tokens = self.places[inside]
            key = (tokens // pos) * (-(-pos // kernels.TOGETHER)) + tokens % pos // kernels.TOGETHER
            chosen = self.chosen[mask[self.chosen[:, 0]], 1]
            found.append(Share(expert, first, last, mask, runs(tokens, key), self.buckets[inside], chosen))
        return found


@dataclass(frozen=True, eq=False)
class Share:
    """The content tokens that count for the neurons of one expert, or of a dense layer.

    Attributes:
        expert, first, last: which, and its neurons.
        mask: ``[rows·pos]``, True at these tokens.
        groups: runs of them as :func:`ffnmem.scanning.kernels.reduce` takes them: first token, number.
        buckets: the position bucket of each. chosen: of those that are frequent tokens, the index among them.
    """

    expert: int
    first: int
    last: int
    mask: Bool[np.ndarray, " tokens"]
    groups: Int64[np.ndarray, "groups 2"]
    buckets: Int64[np.ndarray, " n"]
    chosen: Int64[np.ndarray, " m"]

    def within(self, start: int, stop: int) -> tuple[int, int]:
        """Those of its neurons that are some of the layer's; empty where the second is not the larger."""
        return max(start, self.first), min(stop, self.last)


class Planner:
    """Makes the plan of each batch of a scan."""

    def __init__(self, state: ScanState, sample: RandomSample) -> None:
        settings = state.settings
        order = np.argsort(np.array(settings.frequent, np.int64), kind="stable")
        self.frequent, self.frequent_index = np.array(settings.frequent, np.int64)[order], order
        self.sample = sample
        self.order = np.argsort(sample.inputs)
        self.inputs = sample.inputs[self.order]
        self.buckets = np.array([p.bit_length() for p in range(settings.context)], np.int64)  # as kernels.bucket_of

    def plan(self, page: Page) -> BatchPlan:
        pos = page.batch.tokens.shape[1]
        read, slot = common(place_of(page.sequences, page.positions), self.inputs).T
        return BatchPlan(
            batch=page.batch,
            mask=page.mask,
            places=page.places,
            buckets=self.buckets[page.positions],
            chosen=self.among_frequent(page.tokens, page.places),
            sampled=common(page.batch.sequences, self.sample.sequences),
            drawn=self.positions(page.batch, rearrange(page.mask, "(rows pos) -> rows pos", pos=pos)),
            read=np.stack([page.places[read], self.order[slot]], axis=1),
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


def runs(tokens: Int64[np.ndarray, " n"], key: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, "m 2"]:
    """Runs of consecutive tokens of one key, as first and number."""
    if not len(tokens):
        return np.empty((0, 2), np.int64)
    begins = np.flatnonzero(np.concatenate([[True], (np.diff(key) != 0) | (np.diff(tokens) != 1)]))
    return np.stack([tokens[begins], np.diff(begins, append=len(tokens))], axis=1)


def common(numbers: Int64[np.ndarray, " n"], chosen: Int64[np.ndarray, " m"]) -> Int64[np.ndarray, "k 2"]:
    """Where ``numbers`` are among ``chosen`` (ascending): index in each."""
    slot = np.minimum(np.searchsorted(chosen, numbers), max(len(chosen) - 1, 0))
    hit = chosen[slot] == numbers if len(chosen) else np.zeros(len(numbers), bool)
    return np.stack([np.flatnonzero(hit), slot[hit]], axis=1).astype(np.int64)


Lists = tuple[tuple[np.ndarray, np.ndarray, np.ndarray], ...]


class LayerBatch:
    """One layer of a batch, and the most extreme coefficients of each row.

    Attributes:
        pre, coefficients: ``[tokens, d_mlp]`` in float32. linear: the linear parts of gated neurons, whose ``pre`` are
            their gates', or None.
        shares: what counts for which neurons.
        best: ``[sides, rows, d_mlp]``, in the order of SIDES: the largest and the smallest coefficient (∓∞ without
            content) and of gated neurons the largest magnitude of each case (0 where there is none).
        at: for :meth:`positions`. Both are filled by :func:`ffnmem.scanning.kernels.reduce`.
    """

    def __init__(
        self,
        plan: BatchPlan,
        pre: Float[Tensor, "tokens d_mlp"],
        coefficients: Float[Tensor, "tokens d_mlp"],
        linear: Float[Tensor, "tokens d_mlp"] | None,
        shares: Sequence[Share],
    ) -> None:
        self.plan, self.shares = plan, shares
        self.pre, self.coefficients = as_float32(pre), as_float32(coefficients)
        self.linear = None if linear is None else as_float32(linear)
        shape = (EXTREMES if linear is None else len(SIDES), plan.shape[0], coefficients.shape[1])
        self.best = np.empty(shape, np.float32)
        self.best[:] = NO_VALUE[: len(self.best)]
        self.at = np.zeros(shape, np.int32)

    @property
    def numbers(self) -> tuple[Any, Any, Any]:
        """What the kernels read."""
        return self.pre, self.coefficients, self.linear

    def reduce(self, start: int, stop: int, sums: LayerSums | None, lists: Lists | None = None) -> None:
        """Find the extremes of some neurons; if asked for, add up, and let them compete for the kept sequences."""
        totals = (None,) * 5 if sums is None else (sums.sums, sums.counts, sums.span, sums.histogram, sums.buckets)
        for share in self.shares:
            first, last = share.within(start, stop)
            if first < last:
                kernels.reduce(
                    *(*self.numbers, share.groups, self.plan.shape[1], first, last, self.best, self.at),
                    *(self.plan.batch.sequences, lists, *totals),
                )

    def positions(
        self, side: int, rows: Int64[np.ndarray, " n"], neurons: Int64[np.ndarray, " n"]
    ) -> Int64[np.ndarray, " n"]:
        """Where the extremes of a side stand."""
        mask, pos, best, at = self.plan.mask, self.plan.shape[1], self.best[side], self.at[side]
        return kernels.places(*self.numbers, mask, pos, best, at, side - EXTREMES, rows, neurons)

    def parts(
        self, tokens: Int64[np.ndarray, "*places"], neurons: Int64[np.ndarray, "*places"]
    ) -> Float32[np.ndarray, "2 ..."]:
        """Gate and linear part of some neurons at some tokens."""
        assert self.linear is not None
        return np.stack([self.pre[tokens, neurons], self.linear[tokens, neurons]])


class LayerSums:
    """What a batch adds to a layer, before it is made exact."""

    def __init__(self, state: LayerState) -> None:
        self.sums, self.counts = np.zeros(state.sums.shape[1:]), np.zeros_like(state.counts)
        self.span = np.tile(SPAN[: len(state.pre_range)], (1, state.counts.shape[1]))
        self.histogram = state.histogram  # counts are exact
        self.buckets, self.tokens = np.zeros(state.bucket_sums.shape), np.zeros(state.token_sums.shape)

    def add_to(self, state: LayerState, where: str) -> None:
        """Raises InputError if sums are NaN or infinite."""
        exact_sums.add(state.sums, self.sums, where)
        exact_sums.add_small(state.bucket_sums, self.buckets, where)
        exact_sums.add_small(state.token_sums, self.tokens, where)
        state.counts[:] += self.counts
        state.pre_range[:] = join_ranges(state.pre_range, self.span)


class Reducer(Observer):
    """Adds pages to a state. Neurons are shared out among threads; results do not depend on how many."""

    def __init__(self, state: ScanState, sample: RandomSample, threads: Threads) -> None:
        self.arrays, self.layers, self.threads = state.arrays, state.layers, threads
        self.planner, self.exact = Planner(state, sample), not state.settings.rescored

    def begin(self, page: Page) -> None:
        """Count a page."""
        plan = self.plan = self.planner.plan(page)
        self.arrays["totals"] += (len(plan.buckets), len(page.batch.sequences))
        self.arrays["draw_positions"][plan.drawn[:, 1]] = plan.drawn[:, 2]

    def route(self, page: Page, layer: int, experts: Bool[Tensor, "cells experts"]) -> None:
        self.plan.routed[layer] = experts.cpu().numpy()

    def read(self, page: Page, layer: int, x: Float[Tensor, "rows pos d_model"]) -> None:
        if self.exact:
            keep_inputs(self.layers[layer], self.plan, x)

    def add(
        self,
        page: Page,
        layer: int,
        pre: Float[Tensor, "cells d_mlp"],
        coefficients: Float[Tensor, "cells d_mlp"],
        linear: Float[Tensor, "cells d_mlp"] | None = None,
    ) -> None:
        """Reduce one layer of a page into the state. Raises InputError if its numbers are NaN or infinite."""
        state = self.layers[layer]
        shares = self.plan.shares(layer, state.expert)
        batch, sums = LayerBatch(self.plan, pre, coefficients, linear, shares), LayerSums(state)
        for one in shares:
            state.bucket_counts[one.expert] += np.bincount(one.buckets, minlength=state.bucket_counts.shape[1])
            np.add.at(state.token_counts[one.expert], one.chosen, 1)
        # Gates and linear parts are only noted where they are exact.
        lists = tuple(zip(state.kept, state.kept_at, state.parts[:, : None if self.exact else 0], strict=True))

        def share(start: int, stop: int) -> None:
            batch.reduce(start, stop, sums, lists)
            kernels.grouped(batch.coefficients, self.plan.chosen, start, stop, sums.tokens)
            if self.exact:
                observe_sample(state, batch, start, stop)

        self.threads(share, batch.coefficients.shape[1])
        sums.add_to(state, f"layer {layer}")
        state.range[:] = join_ranges(state.range, np.stack([batch.best[1].min(0), batch.best[0].max(0)]))


def observe_sample(state: LayerState, batch: LayerBatch, start: int, stop: int) -> None:
    """Keep what the random sample asks for of some neurons, from float32 coefficients that were reduced."""
    plan, pos = batch.plan, batch.plan.shape[1]
    for side in range(EXTREMES):
        kernels.sample(
            *(*batch.numbers, pos, start, stop, batch.best[side], batch.at[side], plan.sampled),
            *(state.sample[side], state.sample_at[side], state.sample_parts[side]),
        )
    for row, slot, position in plan.drawn:
        token = row * pos + position
        for share in batch.shares:
            its = slice(*share.within(start, stop))
            if its.start < its.stop and share.mask[token]:
                state.draw[slot, its] = batch.coefficients[token, its]
                if batch.linear is not None:
                    state.draw_parts[:, slot, its] = batch.pre[token, its], batch.linear[token, its]


def keep_inputs(state: LayerState, plan: BatchPlan, x: Float[Tensor, "rows pos d_model"]) -> None:
    """Keep what the FFN reads, in float32, at the places that are drawn for it."""
    if len(plan.read):
        cells = torch.from_numpy(plan.read[:, 0]).to(x.device)
        state.inputs[plan.read[:, 1]] = as_float32(x.flatten(0, -2).index_select(0, cells))


def as_float32(tensor: Float[Tensor, "tokens d_mlp"]) -> Float32[np.ndarray, "tokens d_mlp"]:
    return tensor.to("cpu", torch.float32).contiguous().numpy()
