"""Which sequences to read again when all would be too many: those that help the neurons with fewest examples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Int64

from ..scanning.state import position_of, sequence_of
from .firing import Firing

ROUNDS = 16  # between which neurons' needs are counted anew


def within_budget(found: Sequence[Firing], budget: int | None) -> list[Firing]:
    """Firings with only those examples that lie in chosen sequences, whose tokens together are at most ``budget``.

    An example is worth 1/(1 + examples that its neuron has already), a sequence the sum over its examples divided by
    the tokens that have to be read for them. Deterministic; everything is kept if it fits (or ``budget`` is None).
    """
    places = [firing.places[firing.places >= 0] for firing in found]
    everywhere = np.concatenate(places) if places else np.empty(0, np.int64)
    if budget is None or not len(everywhere):
        return list(found)
    sequences, inverse = np.unique(sequence_of(everywhere), return_inverse=True)
    costs = np.zeros(len(sequences), np.int64)
    np.maximum.at(costs, inverse, position_of(everywhere).astype(np.int64) + 1)
    if int(costs.sum()) <= budget:
        return list(found)
    taken = chosen(inverse, owners(found), costs, budget)
    kept = sequences[taken]
    return [f.without((f.places >= 0) & ~np.isin(sequence_of(f.places), kept)) for f in found]


def owners(found: Sequence[Firing]) -> Int64[np.ndarray, " examples"]:
    """The number of the neuron, over all layers, that each example is of."""
    rows, first = [], 0
    for firing in found:
        rows.append(first + np.nonzero(firing.places >= 0)[0])
        first += len(firing.neurons)
    return np.concatenate(rows).astype(np.int64)


def chosen(
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
