"""Passes over a store's own text: which sequences to read again, and how often each neuron fires there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import no_type_check

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int32, Int64
from numba import njit
from scipy import special
from torch import Tensor

from ..core.defaults import SEQUENCES_READ
from ..core.errors import InputError
from ..core.progress import Progress
from ..core.threads import Threads
from ..core.types import Count, Seed, checked
from ..corpus.excerpts import Page, Selection, draw_sequences
from ..corpus.passes import Statistic, accumulate
from ..models.model import Model
from ..scanning.state import position_of, sequence_of
from ..scanning.store import Store
from .inputs import MOST, Firing

# Which sequences to read again when all would be too many: those that help the neurons with fewest examples.

ROUNDS = 16  # between which neurons' needs are counted anew


def within_budget(found: Sequence[Firing], budget: int | None) -> list[Firing]:
    """Firings with only those examples that lie in chosen sequences, whose tokens together are at most ``budget``.

    An example is worth 1/(1 + examples that its neuron has already), a sequence the sum over its examples divided by
    the tokens that have to be read for them. Deterministic; everything is kept if it fits (or ``budget`` is None).
    """
    places = np.concatenate([np.empty((0, MOST), np.int64), *(firing.places for firing in found)])
    everywhere, owners = places[places >= 0], np.nonzero(places >= 0)[0]
    if budget is None or not len(everywhere):
        return list(found)
    sequences, inverse = np.unique(sequence_of(everywhere), return_inverse=True)
    costs = np.zeros(len(sequences), np.int64)
    np.maximum.at(costs, inverse, position_of(everywhere).astype(np.int64) + 1)
    if int(costs.sum()) <= budget:
        return list(found)
    taken = choose_sequences(inverse, owners, costs, budget)
    kept = sequences[taken]
    return [f.without((f.places >= 0) & ~np.isin(sequence_of(f.places), kept)) for f in found]


def choose_sequences(
    sequence: Int64[np.ndarray, " examples"],
    owner: Int64[np.ndarray, " examples"],
    costs: Int64[np.ndarray, " sequences"],
    budget: int,
) -> Bool[np.ndarray, " sequences"]:
    """The sequences to read, greedily, a share of the budget in each round."""
    taken = np.zeros(len(costs), bool)
    have = np.zeros(int(owner.max()) + 1)
    spent = 0
    for part in range(1, ROUNDS + 1):
        worth = np.bincount(sequence, weights=1 / (1 + have[owner]), minlength=len(costs)) / costs
        worth[taken] = -1.0
        order = np.argsort(-worth, kind="stable")[: int((~taken).sum())]
        fits = spent + np.cumsum(costs[order]) <= budget * part / ROUNDS
        now = order[fits]
        taken[now] = True
        spent += int(costs[now].sum())
        have += np.bincount(owner[np.isin(sequence, now)], minlength=len(have))
    return taken


# What of a store's own text is read again, for what a statistic needs that the scan did not keep.


def content_counts(store: Store) -> Int64[np.ndarray, " vocab"]:
    """How often each token occurs in the store's corpus; special ones count as never."""
    counts = store.corpus.token_counts.astype(np.int64)
    counts[[token for token in store.settings.special if token < len(counts)]] = 0
    return counts


@checked
def sample_of(store: Store, n_sequences: Count | None = SEQUENCES_READ, seed: Seed = 0) -> Selection:
    """Sequences of a store's text, uniformly, without replacement.

    Args:
        store: from :func:`ffnmem.scan`.
        n_sequences: how many; None, or more than there are, for all.
        seed: of the choice.

    Raises:
        InputError: not a positive number.
    """
    return Selection(store.sequences, store.settings, draw_sequences(store.sequences, n_sequences, seed))


# When neurons fire, by position and by token: counts from one reading, and what follows from them.
#
# A neuron fires at a token where its pre-activation is above 0, as in a store's firing rate: of ReLU, GELU and SiLU
# that is where its coefficient is. A gated neuron fires where its gate is open, whichever sign its coefficient has
# there.

MEMORY = 1 << 29  # bytes of counts by token, at most; rarer tokens are then not looked at
WIDTH = 1536  # neurons a block, as in the scan's kernels: tokens lie a page apart in memory
SORTED = 512  # neurons whose counts are sorted at once: all would take as much again as the counts


# no_type_check keeps the tests' import hook from wrapping what numba has to compile. Each thread works on the neurons
# `first` to `last`.
@njit(nogil=True, cache=True)
@no_type_check
def count_active(coefficients: np.ndarray, pairs: np.ndarray, first: int, last: int, counts: np.ndarray) -> None:
    """Count coefficients above 0: ``pairs`` [n, 2] lists (row of ``coefficients``, row of ``counts``)."""
    for start in range(first, last, WIDTH):
        stop = min(start + WIDTH, last)
        for i in range(pairs.shape[0]):
            c, total = coefficients[pairs[i, 0], start:stop], counts[pairs[i, 1], start:stop]
            for j in range(stop - start):
                total[j] += np.int32(c[j] > 0)


class ActiveCounts(Statistic):
    """How often each neuron fired in each group of tokens.

    Args:
        groups: the group of each content token of a page, from 0; −1 for none.
        n_groups: how many there are.
        sizes: d_mlp of every layer counted.
    """

    def __init__(self, groups: Callable[[Page], Int64[np.ndarray, " n"]], n_groups: int, sizes: dict[int, int]) -> None:
        self.groups = groups
        self.seen = np.zeros(n_groups, np.int64)
        self.counts = {layer: np.zeros((n_groups, size), np.int32) for layer, size in sizes.items()}
        super().__init__({"seen": self.seen, **{str(layer): fired for layer, fired in self.counts.items()}})
        self.first = min(sizes)
        self.threads = Threads()

    def add(
        self,
        page: Page,
        layer: int,
        pre: Float[Tensor, "cells d_mlp"],
        coefficients: Float[Tensor, "cells d_mlp"],
        linear: Float[Tensor, "cells d_mlp"] | None,
    ) -> None:
        """Count one layer of a page. Raises InputError for what is no number: NaN never fires."""
        if layer not in self.counts:
            return
        if not bool(pre.sum().isfinite()) and not bool(pre.isfinite().all()):
            raise InputError(f"layer {layer} holds NaN or infinite pre-activations")
        group = self.groups(page)
        inside = group >= 0
        if layer == self.first:
            self.seen += np.bincount(group[inside], minlength=len(self.seen))
        pairs = np.stack([page.places[inside], group[inside]], axis=1)
        table, counts = pre.to("cpu", torch.float32).contiguous().numpy(), self.counts[layer]
        self.threads(lambda start, stop: count_active(table, pairs, start, stop, counts), table.shape[1])

    def close(self) -> None:
        """Let the threads go."""
        self.threads.close()


@dataclass(frozen=True, eq=False)
class FiringCounts:
    """How often neurons fired, from one reading of text. Made by :func:`count_firings`.

    Attributes:
        text: which sequences.
        positions: content tokens at each position. at_position: by layer, those at which each neuron fired.
        types: ids of the tokens looked at, most frequent first. type_counts: how often each occurs.
        at_type: by layer, how often each neuron fired at each of these.
        least_count: every content token at least that frequent in the reading is among ``types``.
    """

    text: Selection
    positions: Int64[np.ndarray, " context"]
    at_position: dict[int, Int32[np.ndarray, "context d_mlp"]]
    types: Int64[np.ndarray, " types"]
    type_counts: Int64[np.ndarray, " types"]
    at_type: dict[int, Int32[np.ndarray, "types d_mlp"]]
    least_count: int

    @property
    def layers(self) -> list[int]:
        return sorted(self.at_position)

    @property
    def n_tokens(self) -> int:
        return int(self.positions.sum())

    def fired(self, layer: int) -> Int64[np.ndarray, " d_mlp"]:
        """At how many tokens each neuron fired."""
        return self.at_position[layer].sum(axis=0, dtype=np.int64)


def count_firings(
    model: Model,
    store: Store,
    layers: Sequence[int] | None = None,
    *,
    n_sequences: int | None = SEQUENCES_READ,
    seed: int = 0,
    memory: int = MEMORY,
    progress: Progress | None = None,
) -> FiringCounts:
    """Count firings by position and by token in a sample of a store's text.

    Memory stays flat: only the most frequent tokens are counted by themselves, as many as fit into ``memory``; the
    counts of these are exact.

    Args:
        model: of the store. layers: which; default all.
        n_sequences: how many sequences to read; None for all. seed: of their choice.
        memory: bytes for the counts by token.
        progress: called as ("text", done, total) in tokens.

    Raises:
        InputError: another model than the store's; a sample without content.
    """
    store.check_model(model)
    text = sample_of(store, n_sequences, seed)
    wanted = list(range(model.n_layers)) if layers is None else sorted(layers)
    sizes = {layer: model.ffn[layer].d_mlp for layer in wanted}
    counts = text.token_counts
    if not counts.any():
        raise InputError("the sequences to read hold no content but special tokens: read more of them")
    types, least = choose_types(counts, max(1, memory // (4 * sum(sizes.values()))))
    slots = np.full(len(counts), -1, np.int64)
    slots[types] = np.arange(len(types))
    by_position = ActiveCounts(lambda page: page.positions, store.settings.context, sizes)
    by_type = ActiveCounts(lambda page: slots[page.tokens], len(types), sizes)
    try:
        accumulate(model, text, (by_position, by_type), "text", progress)
    finally:
        by_position.close()
        by_type.close()
    return FiringCounts(text, by_position.seen, by_position.counts, types, counts[types], by_type.counts, least)


def choose_types(counts: Int64[np.ndarray, " vocab"], room: int) -> tuple[Int64[np.ndarray, " types"], int]:
    """The ids that occur, most frequent first, ties by id, at most ``room`` of them; and the count from which on no id
    is missing.
    """
    order = np.argsort(-counts, kind="stable")
    order = order[: int((counts > 0).sum())]
    least = 1 if room >= len(order) else int(counts[order[room]]) + 1
    return order[:room].astype(np.int64), least


# -- positions ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class PositionInformation:
    """Mutual information between firing and position.

    Attributes:
        information: nats, less its bias; not below 0.
        p: of a G test of independence, for tokens that are independent of each other; within a sequence they are not
            quite, so it is too small where firing lasts.
    """

    information: Float64[np.ndarray, " d_mlp"]
    p: Float64[np.ndarray, " d_mlp"]


def position_information(
    active: Int32[np.ndarray, "context d_mlp"], seen: Int64[np.ndarray, " context"]
) -> PositionInformation:
    """I(fires; position) = Σₚ p(pos) KL(Bernoulli(f(pos)) ‖ Bernoulli(f)), f(pos) the firing rate at a position.

    The paper's texts all have full length, so its p(pos) is 1/T; here positions count as often as they occur. A finite
    sample has information even without any dependence, (positions − 1)/2N on average, which is taken off.

    Args:
        active: how often each neuron fired at each position. seen: how many tokens each position has.

    Source: Voita et al. 2023 (2309.04827), §5.1 and appendix B.1; the bias, Miller 1955.
    """
    used = seen > 0
    n = seen[used][:, None].astype(np.float64)
    total = float(n.sum())
    rate = active[used] / n
    mean = active[used].sum(axis=0) / total
    divergence = special.rel_entr(rate, mean) + special.rel_entr(1 - rate, 1 - mean)
    plain = (n * divergence).sum(axis=0) / total
    freedom = int(used.sum()) - 1
    varies = (mean > 0) & (mean < 1) & (freedom > 0)
    information = np.where(varies, np.maximum(plain - freedom / (2 * total), 0.0), 0.0)
    p = np.where(varies, special.chdtrc(max(freedom, 1), np.maximum(2 * total * plain, 0.0)), 1.0)
    return PositionInformation(information, p)


# -- tokens ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Detection:
    """Which tokens make a layer's neurons fire.

    Attributes:
        covering: the fewest tokens that make up ``coverage`` of a neuron's firings; NaN where no number of the tokens
            looked at does, and where it never fired.
        at_least: the same where it is known; where rarer tokens are needed, how many tokens it takes if each of these
            fires the neuron as often as a token can that was too rare to be looked at. NaN where it never fired.
        covered: how many tokens fire it nearly every time. share: which part of its firings they make up; NaN where it
            never fired.
        detects: whether it is a token detector.
        triggers: of each detector by its index, the ids of its covered tokens, most firings first.
    """

    covering: Float64[np.ndarray, " d_mlp"]
    at_least: Float64[np.ndarray, " d_mlp"]
    covered: Int64[np.ndarray, " d_mlp"]
    share: Float64[np.ndarray, " d_mlp"]
    detects: Bool[np.ndarray, " d_mlp"]
    triggers: dict[int, list[int]]


def token_detection(
    counts: FiringCounts, layer: int, *, types: int = 5, coverage: float = 0.95, min_count: int = 10
) -> Detection:
    """Token detectors: neurons that fire if, and only if, the token is one of a few.

    (1) At most ``types`` tokens make up at least ``coverage`` of the neuron's firings; (2) a token is covered if the
    neuron fires at no less than ``coverage`` of its occurrences; (3) the covered tokens make up at least ``coverage``
    of its firings. Only tokens in ``counts.types`` that occur ``min_count`` times or more can be covered; firings at
    others count against the neuron.

    Args:
        counts: from :func:`count_firings`. layer: one that was read.
        types, coverage: the paper's 5 and 95%.
        min_count: of a rarer token one cannot tell how often it makes a neuron fire.

    Source: Voita et al. 2023 (2309.04827), §4.1 and §4.2.
    """
    active, fired = counts.at_type[layer], counts.fired(layer)
    covering, at_least = np.full(len(fired), np.nan), np.full(len(fired), np.nan)
    rare = counts.least_count - 1  # firings at a token that was not looked at, at most
    for start in range(0, len(fired), SORTED):
        part = slice(start, start + SORTED)
        ordered = -np.sort(-active[:, part], axis=0)
        made_up = np.cumsum(ordered, axis=0, dtype=np.int64)
        enough = made_up >= coverage * fired[part]
        reached = enough.any(axis=0) & (fired[part] > 0)
        covering[part] = np.where(reached, 1.0 + enough.argmax(axis=0), np.nan)
        better = ordered > rare
        missing = coverage * fired[part] - np.where(better, ordered, 0).sum(axis=0, dtype=np.int64)
        more = better.sum(axis=0) + np.ceil(missing / max(rare, 1))
        at_least[part] = np.where(reached, covering[part], np.where(fired[part] > 0, more, np.nan))
    known = counts.type_counts[:, None] >= min_count
    covers = known & (active >= coverage * counts.type_counts[:, None])
    share = np.full(len(fired), np.nan)
    alive = fired > 0
    share[alive] = np.where(covers, active, 0).sum(axis=0, dtype=np.int64)[alive] / fired[alive]
    detects = alive & (covering <= types) & (share >= coverage)
    triggers = {}
    for neuron in np.flatnonzero(detects).tolist():
        slots = np.flatnonzero(covers[:, neuron])
        order = slots[np.argsort(-active[slots, neuron], kind="stable")]
        triggers[neuron] = counts.types[order].tolist()
    return Detection(covering, at_least, covers.sum(axis=0, dtype=np.int64), share, detects, triggers)
