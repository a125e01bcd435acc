"""How alike examples are: as a walk over the definitions with SciPy has it, and honest by chance."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.sparse.csgraph import connected_components
from scipy.spatial.distance import squareform

import ffnmem as fm
from ffnmem.neurons.clustering import (
    BLOCK,
    FOOTE_ABOVE,
    FOOTE_CUT,
    FOOTE_NULL,
    Draws,
    Examples,
    draw_multiplicities,
    draw_null_rows,
    reading_keys,
)
from ffnmem.neurons.inputs import MOST, Firing, background_of, normalise
from ffnmem.neurons.verdicts import unseen_number

from ..helpers import allclose

D, DRAWS = 24, 40
NAMES = ("meanings", "clusters", "ms")


class Made:
    """Neurons of 1, 2, 3, … directions with noise, as if read from a text; place i is row i. ``apart``: how long the
    directions are, 0 for none.

    With this seed no cosine is within 1e-5 of a cut, where rounding would decide.
    """

    def __init__(self, reads: int = 1, n: int = BLOCK + 6, apart: float = 3.0, seed: int = 2) -> None:
        random = np.random.default_rng(seed)
        self.background = background_of(random.standard_normal((1500, D)).astype(np.float32))
        self.keys = random.standard_normal((n, reads, D)).astype(np.float32)
        self.rows = random.standard_normal((n * MOST, D)).astype(np.float32)
        counts = random.integers(0, MOST + 1, n) if apart else np.full(n, 24)
        counts[:4] = (MOST, 0, 1, 2)
        strengths = -np.sort(-random.uniform(0.5, 1.0, (n, MOST)), axis=1)
        directions = random.standard_normal((n, 3, D)) * apart
        which = random.integers(0, 3, (n, MOST)) % (1 + np.arange(n) % 3)[:, None]
        self.rows += directions[np.arange(n)[:, None], which].reshape(-1, D).astype(np.float32)
        there, places = np.arange(MOST) < counts[:, None], np.arange(n * MOST).reshape(n, MOST)
        parts = np.where(there, places, -1), np.where(there, strengths, 0.0)
        self.firing = Firing(0, np.arange(n), *parts, strengths[:, 0])

    def some(self, which: np.ndarray, seed: int = 0) -> Examples:
        f, draws = self.firing, Draws(DRAWS, seed, len(self.background.units))
        few = Firing(0, f.neurons[which], f.places[which], f.strengths[which], f.extreme[which])
        return Examples(few, lambda places: self.rows[places], self.keys[which], self.background, draws)


def grouped(similarity: np.ndarray, rows: np.ndarray, cut: float) -> np.ndarray:
    """SciPy's average linkage of some rows, of which one may come more than once."""
    distance = np.clip(1 - similarity[np.ix_(rows, rows)].astype(np.float64), 0, None)
    distance[rows[:, None] == rows] = 0
    return fcluster(linkage(squareform(distance, checks=False), "average"), 1 - cut, "distance")


def joined(similarity: np.ndarray, rows: np.ndarray, cut: float) -> np.ndarray:
    """SciPy's connected components, likewise."""
    near = similarity[np.ix_(rows, rows)] > cut
    return connected_components(near | (rows[:, None] == rows), directed=False)[1]


def number(labels: np.ndarray, weights: np.ndarray) -> float:
    return float(np.exp(stats.entropy(np.bincount(labels, weights))))


def mean_cosine(similarity: np.ndarray, rows: np.ndarray, weights: np.ndarray) -> float:
    """Of all pairs of different rows, weighted by the product of their weights; NaN without one."""
    pairs = np.outer(weights, weights) * (rows[:, None] != rows)
    return float((pairs * similarity[np.ix_(rows, rows)]).sum() / pairs.sum()) if pairs.any() else np.nan


def summed(drawn: np.ndarray, n: int | None) -> list[float]:
    """Value, interval, null and p from the value, its bootstrap and its null draws; ``n``: examples of a number."""
    value, again, null = drawn[0], drawn[1 : 1 + DRAWS], drawn[1 + DRAWS :]
    low, middle, high = np.nanquantile(again, [0.025, 0.5, 0.975])
    if n is None:
        return [value, low, high, null.mean(), (1 + (null >= value).sum()) / (1 + DRAWS)]
    high = max(value * high / middle, value, float(unseen_number(np.array([n]))[0]))
    return [value, max(value * low / middle, 1.0), high, null.mean(), (1 + (null <= value).sum()) / (1 + DRAWS)]


@pytest.mark.parametrize("reads", [1, 2])
def test_each_number_is_scipys(reads: int) -> None:
    """One neuron and one draw at a time, with one key and with gate and key: value, interval, null and p of meanings,
    MS and Foote's clusters, and which example is of which meaning, the one of the largest share first."""
    made = Made(reads)
    f, background, examples = made.firing, made.background, made.some(np.arange(BLOCK + 6))
    found, estimates, draws, compared = examples.sorted, examples.estimates(*NAMES), examples.draws, 0
    for row in [*range(8), 40, 66, 69]:
        n, labels = int(f.counts[row]), found.labels[row]
        own = np.arange(n)
        parts = {
            name: [getattr(e, p)[row] for p in ("value", "low", "high", "null", "p")] for name, e in estimates.items()
        }
        assert (labels[n:] == -1).all()
        if n < 2:
            assert np.isnan([*parts.values()]).all()
            assert labels[:n].tolist() == [0] * n
            continue
        inputs, weights = made.rows[f.places[row, :n]], f.strengths[row, :n]
        units = normalise((inputs.astype(np.float64) - background.mean) @ background.whiten)
        similarity = units @ units.T
        again = [np.repeat(own, times) for times in draws.multiplicity[n, :, :n]]
        drawn = [(similarity, rows, weights[rows]) for rows in (own, *again)]
        drawn += [(background.cosines, picks[:n], weights) for picks in draws.picks]
        meanings = np.array([number(grouped(s, rows, background.cut), w) for s, rows, w in drawn])
        ms = np.array([mean_cosine(*one) for one in drawn])
        np.testing.assert_allclose(found.meanings[row], meanings, rtol=1e-5)
        np.testing.assert_allclose(found.ms[row], ms, rtol=1e-4, atol=1e-5)
        assert allclose(parts["meanings"], summed(found.meanings[row], n), 1e-9)
        assert allclose(parts["ms"], summed(found.ms[row], None), 1e-9)
        groups = grouped(similarity, own, background.cut)
        shares = sorted({(-weights[groups == g].sum(), np.flatnonzero(groups == g)[0], g) for g in groups})
        assert labels[:n].tolist() == [[g for *_, g in shares].index(g) for g in groups]
        compared += foote_is_scipys(made, row, draws, found.clusters[row], parts["clusters"])
    assert compared > 5


def foote_is_scipys(made: Made, row: int, draws: Draws, found: np.ndarray, parts: list[float]) -> bool:
    """Foote 2024, one neuron; False where a cosine is so near the cut that rounding decides."""
    f, (rows,) = made.firing, draws.rows(made.firing.neurons[[row]])
    assert len(set(rows.tolist())) == FOOTE_NULL
    weights = f.strengths[row][f.strengths[row] >= FOOTE_ABOVE * f.strengths[row, 0]]
    read = (made.rows[f.places[row, : len(weights)]], made.background.rows[rows])
    joins = [[normalise(one.astype(np.float64) * key) for key in made.keys[row]] for one in read]
    similarity, unrelated = (np.mean([x @ x.T for x in several], axis=0) for several in joins)
    upper = unrelated[np.triu_indices(len(rows), 1)]
    cut, own = upper.mean() + FOOTE_CUT * upper.std(), np.arange(len(weights))
    if len(own) < 2 or min(np.abs(one - cut).min() for one in (similarity, unrelated)) < 1e-6:
        return False
    again = [own, *(np.repeat(own, times) for times in draws.multiplicity[len(own), :, : len(own)])]
    drawn = [(similarity, some, weights[some]) for some in again]
    drawn += [(unrelated[np.ix_(some, some)], own, weights) for some in draws.few[:, : len(own)]]
    np.testing.assert_allclose(found, [number(joined(s, some, cut), w) for s, some, w in drawn], rtol=1e-5)
    return allclose(parts, summed(found, len(own)), 1e-9)


def test_whoever_is_asked_for() -> None:
    """Of others in a block only rounding differs."""
    made, few = Made(), np.array([69, 0, 3, 30])
    whole, some = made.some(np.arange(BLOCK + 6)), made.some(few)
    np.testing.assert_array_equal(some.sorted.labels, whole.sorted.labels[few])
    for name in NAMES:
        np.testing.assert_allclose(getattr(some.sorted, name), getattr(whole.sorted, name)[few], rtol=1e-4, atol=1e-5)


def test_chance_is_seldom_notable() -> None:
    """Of examples at random inputs p is below .05 in 5% of neurons at most, and a bit of chance: of their places and of
    the null's draws."""
    made = Made(n=404, apart=0.0, seed=100)
    found = [made.some(np.arange(4 + seed, 404, 4), seed).estimates(*NAMES) for seed in range(4)]
    for name in NAMES:
        p = np.concatenate([one[name].p for one in found])
        assert np.isfinite(p).all()
        assert (p < 0.05).sum() <= stats.binom(len(p), 0.05).ppf(0.999)
        assert (p < 0.5).mean() <= 0.65


def test_draws() -> None:
    """Bootstrap draws of any number of examples, whatever the most; rows for the null that differ where they can."""
    found = draw_multiplicities(10, 4000, 3)
    for n in (1, 4, 10):
        assert (found[n, :, :n].sum(1) == n).all()
        assert not found[n, :, n:].any()
        assert allclose(found[n, :, :n].mean(0), np.ones(n), 0.1)
    assert np.array_equal(found[:6, :, :5], draw_multiplicities(5, 4000, 3))
    for size in (50, 7):  # of 7, others would be rows behind the background's end
        picks = draw_null_rows(size, 40, 30, 0)
        assert all(len(set(row[:size])) == min(size, 40) and max(row) < size for row in picks.tolist())
        assert len({tuple(row) for row in picks.tolist()}) == 30


def test_keys_that_a_neuron_reads_with(architecture: fm.Model) -> None:
    """The key of a classic neuron; gate and key of a gated one, which fires by both."""
    ffn, found = architecture.ffn[1], reading_keys(architecture, 1, np.array([5, 2]))
    expected = [part[[5, 2]].detach().numpy() for part in (ffn.gates, ffn.keys) if part is not None]
    assert np.array_equal(found, np.stack(expected, axis=1))
