"""The inner loops of :mod:`.sample_measures`: sums by sequence, and the token that explains a neuron best.

Each works on the neurons ``first`` to ``last``, holds no lock and writes nowhere else, so that threads can share the
work. Coefficients are float32, a row a neuron; sums are taken in float64, each by one thread in one order.
"""

from __future__ import annotations

from typing import no_type_check

import numpy as np
from numba import njit


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
def explained(coefficients, first, last, order, starts, counts, sequences, groups, least, errors, chosen):
    """Squared deviations that one token leaves, and all of them, by sequence: ``errors`` [2, rows, sequences].

    The positions of type t are ``order[starts[t]:starts[t + 1]]``; ``counts`` [types, groups] says how often it occurs
    in each group of sequences. For each group, a type and its means are chosen on all the others: the one that takes
    off the most squared deviations, ties by type. ``chosen`` is the best type of all groups together, −1 if none.
    """
    n, n_types, n_groups, n_sequences = coefficients.shape[1], counts.shape[0], counts.shape[1], len(groups)
    size = np.zeros(n_groups + 1)  # positions that a choice is made on: without each group, and all
    size[:] = n
    held = np.zeros(n_sequences)
    for i in range(n):
        held[sequences[i]] += 1.0
    for s in range(n_sequences):
        size[groups[s]] -= held[s]
    total, best, inside, outside = np.empty(n_groups + 1), np.empty(n_groups + 1), np.empty(n_groups + 1), size.copy()
    pick, part = np.empty(n_groups + 1, np.int64), np.empty(n_groups)
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
            for g in range(n_groups + 1):
                here = np.float64(occurs - counts[t, g] if g < n_groups else occurs)
                if here < least or here >= size[g]:
                    continue
                mass = whole - part[g] if g < n_groups else whole
                away = mass - here * total[g] / size[g]
                gain = away * away * size[g] / (here * (size[g] - here))
                if gain > best[g] * (1 + 1e-9):
                    best[g], pick[g] = gain, t
                    inside[g] = mass / here
                    outside[g] = (total[g] - mass) / (size[g] - here)
        chosen[r] = pick[n_groups]
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
