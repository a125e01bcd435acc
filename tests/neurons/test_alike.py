"""How alike examples are: a neuron by itself as in a block, as a walk over the definitions, and honest by chance."""

from __future__ import annotations

from typing import Any

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
    Alike,
    Draws,
    Examples,
    cluster_by_key,
    compare,
    compare_reads,
    draw_multiplicities,
    draw_null_rows,
    pairwise,
    reading_keys,
)
from ffnmem.neurons.counting import content_counts
from ffnmem.neurons.inputs import MOST, Firing, Inputs, background_of, firing, normalise, random_places
from ffnmem.neurons.triggers import trigger_tokens
from ffnmem.planted import Planted
from ffnmem.scanning import Store

from ..helpers import allclose

D, DRAWS = 24, 40


def alike(*parts: Any) -> Alike:
    """What the examples say by themselves, without their tokens."""
    examples = Examples(*parts)
    return Alike(examples.estimates("meanings", "clusters", "ms"), examples.sorted.labels)


class Made:
    """Neurons of 1, 2, 3, … directions with noise, as if read from a text; place i is row i.

    With this seed no cosine is within 1e-5 of a cut, where rounding would decide.
    """

    def __init__(self, n: int = BLOCK + 6, seed: int = 2) -> None:
        random = np.random.default_rng(seed)
        self.background = background_of(random.standard_normal((1500, D)).astype(np.float32))
        self.keys = random.standard_normal((n, 1, D)).astype(np.float32)
        self.rows = random.standard_normal((n * MOST, D)).astype(np.float32)
        counts = random.integers(0, MOST + 1, n)
        counts[:4] = (MOST, 0, 1, 2)
        places = np.arange(n * MOST).reshape(n, MOST)
        strengths = -np.sort(-random.uniform(0.5, 1.0, (n, MOST)), axis=1)
        self.meanings = 1 + np.arange(n) % 3
        directions = random.standard_normal((n, 3, D)) * 3
        which = random.integers(0, 3, (n, MOST)) % self.meanings[:, None]
        self.rows += directions[np.arange(n)[:, None], which].reshape(-1, D).astype(np.float32)
        there = np.arange(MOST) < counts[:, None]
        self.found = Firing(
            0, np.arange(n), np.where(there, places, -1), np.where(there, strengths, 0.0), strengths[:, 0]
        )

    def read(self, places: np.ndarray) -> np.ndarray:
        return self.rows[places]

    def some(self, which: list[int]) -> Alike:
        f = self.found
        few = Firing(0, f.neurons[which], f.places[which], f.strengths[which], f.extreme[which])
        return alike(few, self.read, self.keys[which], self.background, Draws(DRAWS, 0, len(self.background.units)))


@pytest.fixture(scope="module")
def made() -> Made:
    return Made()


@pytest.fixture(scope="module")
def found(made: Made) -> Alike:
    return made.some(list(range(len(made.found.neurons))))


def grouped(similarity: np.ndarray, rows: np.ndarray, cut: float) -> np.ndarray:
    """SciPy's average linkage of some rows, of which one may come more than once."""
    distance = np.clip(1 - similarity[np.ix_(rows, rows)].astype(np.float64), 0, None)
    distance[rows[:, None] == rows] = 0
    if len(rows) < 2:
        return np.zeros(len(rows), np.int64)
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


def test_each_number_is_scipys(made: Made) -> None:
    """One neuron and one draw at a time: value, bootstrap and null of meanings, MS and Foote's clusters, and which
    example is of which meaning, the one of the largest share first."""
    f, draws, background = made.found, Draws(DRAWS, 0, len(made.background.units)), made.background
    found, clusters = Examples(f, made.read, made.keys, background, draws).sorted, 0
    unrelated = background.cosines
    for row in [*range(8), 40, 66, 69]:
        n = int(f.counts[row])
        own, labels = np.arange(n), found.labels[row]
        assert (labels[n:] == -1).all()
        if n < 2:
            assert np.isnan([*found.meanings[row], *found.ms[row], *found.clusters[row]]).all()
            assert labels[:n].tolist() == [0] * n
            continue
        inputs, weights = made.rows[f.places[row, :n]], f.strengths[row, :n]
        units = (inputs.astype(np.float64) - background.mean) @ background.whiten
        similarity = normalise(units) @ normalise(units).T
        again = [np.repeat(own, times) for times in draws.multiplicity[n, :, :n]]
        drawn = [(similarity, rows, weights[rows]) for rows in (own, *again)]
        drawn += [(unrelated, picks[:n], weights) for picks in draws.picks]
        expected = [number(grouped(s, rows, background.cut), w) for s, rows, w in drawn]
        np.testing.assert_allclose(found.meanings[row], expected, rtol=1e-5)
        np.testing.assert_allclose(found.ms[row], [mean_cosine(*one) for one in drawn], rtol=1e-4, atol=1e-5)
        groups = grouped(similarity, own, background.cut)
        shares = sorted({(-weights[groups == g].sum(), np.flatnonzero(groups == g)[0], g) for g in groups})
        assert labels[:n].tolist() == [[g for *_, g in shares].index(g) for g in groups]
        clusters += foote_is_scipys(made, row, found.clusters[row], draws)
    assert clusters > 5


def foote_is_scipys(made: Made, row: int, found: np.ndarray, draws: Draws) -> bool:
    """Foote 2024, one neuron; False where a cosine is so near the cut that rounding decides."""
    f, (rows,) = made.found, draws.rows(made.found.neurons[[row]])
    assert len(set(rows.tolist())) == FOOTE_NULL
    weights = f.strengths[row][f.strengths[row] >= FOOTE_ABOVE * f.strengths[row, 0]]
    read = (made.rows[f.places[row, : len(weights)]], made.background.rows[rows])
    similarity, unrelated = ((x := normalise(one.astype(np.float64) * made.keys[row])) @ x.T for one in read)
    upper = unrelated[np.triu_indices(len(rows), 1)]
    cut, own = upper.mean() + FOOTE_CUT * upper.std(), np.arange(len(weights))
    if len(own) < 2 or min(np.abs(one - cut).min() for one in (similarity, unrelated)) < 1e-6:
        return False
    again = [own, *(np.repeat(own, times) for times in draws.multiplicity[len(own), :, : len(own)])]
    drawn = [(similarity, some, weights[some]) for some in again]
    drawn += [(unrelated[np.ix_(some, some)], own, weights) for some in draws.few[:, : len(own)]]
    np.testing.assert_allclose(found, [number(joined(s, some, cut), w) for s, some, w in drawn], rtol=1e-5)
    return True


def test_multiplicities_are_bootstrap_draws() -> None:
    found = draw_multiplicities(10, 4000, 3)
    assert found.shape == (11, 4000, 10)
    for n in (1, 4, 10):
        assert (found[n, :, :n].sum(1) == n).all()
        assert not found[n, :, n:].any()
        assert allclose(found[n, :, :n].mean(0), np.ones(n), 0.1)
    assert np.array_equal(found[:6, :, :5], draw_multiplicities(5, 4000, 3))  # whatever the most
    assert not np.array_equal(found, draw_multiplicities(10, 4000, 4))


def test_null_picks_are_different_rows() -> None:
    picks = draw_null_rows(50, 40, 30, 0)
    assert picks.shape == (30, 40)
    assert all(len(set(row)) == 40 for row in picks.tolist())
    assert len({tuple(row) for row in picks.tolist()}) == 30
    few = draw_null_rows(7, 40, 30, 0)  # else rows behind the background's end would be read
    assert few.shape == (30, 40)
    assert few.max() == 6
    assert all(len(set(row[:7])) == 7 for row in few.tolist())


def test_the_planted_number_comes_out(made: Made, found: Alike) -> None:
    """Of 1, 2 and 3 directions far apart; with its interval around it."""
    enough = made.found.counts >= 12
    meanings = found.estimates["meanings"]
    away = np.abs(meanings.value - made.meanings)[enough]
    assert np.quantile(away, 0.8) < 0.5  # some random directions are near each other
    assert (away[made.meanings[enough] == 1] < 0.2).all()
    for estimate in found.estimates.values():
        known = np.isfinite(estimate.value) & (made.found.counts >= 5)
        assert (estimate.low <= estimate.value + 1e-9)[known].mean() > 0.9
        assert (estimate.value <= estimate.high + 1e-9)[known].mean() > 0.9
    assert (meanings.p[enough] < 0.05).all()
    assert (found.estimates["ms"].p[enough] < 0.05).all()
    assert found.estimates["ms"].value[enough & (made.meanings == 1)].min() > 0.7


def test_the_same_again_and_whoever_is_asked_for(made: Made, found: Alike) -> None:
    """Bit for bit the same at the same call; of others in a block only rounding differs."""
    again = made.some(list(range(len(made.found.neurons))))
    few = made.some([69, 0, 3, 30])
    for name, estimate in found.estimates.items():
        for part in ("value", "low", "high", "null", "p"):
            whole = getattr(estimate, part)
            np.testing.assert_array_equal(getattr(again.estimates[name], part), whole)
            np.testing.assert_allclose(getattr(few.estimates[name], part), whole[[69, 0, 3, 30]], rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(few.labels, found.labels[[69, 0, 3, 30]])


def test_no_neurons(made: Made) -> None:
    nobody = made.some([])
    assert nobody.labels.shape == (0, MOST)
    assert all(len(estimate) == 0 for estimate in nobody.estimates.values())


def test_a_background_of_one_row(made: Made) -> None:
    """One random input says nothing of how alike two are; a cut of NaN would set all examples apart, with a warning."""
    one = background_of(made.rows[:2])
    found = alike(made.found, made.read, made.keys, one, Draws(DRAWS, 0, len(one.units))).estimates["clusters"]
    assert all(np.isnan(part).all() for part in (found.value, found.low, found.high, found.p))


def test_a_background_of_few_rows(made: Made) -> None:
    """Of a tiny text: fewer random inputs than examples."""
    few = background_of(made.rows[:20])
    f = made.found
    found = alike(f, made.read, made.keys, few, Draws(DRAWS, 0, len(few.units)))
    p = found.estimates["meanings"].p
    assert ((p > 0) & (p <= 1))[f.counts >= 2].all()


def test_compare_reads_the_layer_and_takes_the_neurons_keys(meanings: Planted, meanings_store: Store) -> None:
    """Another neuron's key, or another layer's inputs, would be compared without a word; alone as among others."""
    model, store = meanings.model, meanings_store
    everyone = firing(store, 1)
    some = firing(store, 1, np.array([7, 3]))
    random = random_places(store, 0)
    with Inputs(store, model, {1: np.concatenate([everyone.places[everyone.places >= 0], random])}) as inputs:
        background = background_of(inputs.at(1, random))
        counts = content_counts(store)
        whole, few = (compare(store, model, found, inputs, background, counts, 0, 20) for found in (everyone, some))
        keys = model.ffn[1].keys.detach().float().numpy()[[7, 3], None]
        draws = Draws(20, 0, len(background.units))
        expected = alike(some, lambda places: inputs.at(1, places), keys, background, draws)
    assert few.labels.tolist() == expected.labels.tolist() == whole.labels[[7, 3]].tolist()
    assert np.array_equal(
        few.estimates["trigger_tokens"].p, whole.estimates["trigger_tokens"].p[[7, 3]], equal_nan=True
    )
    for name in expected.estimates:
        estimate = few.estimates[name]
        assert np.array_equal(estimate.value, expected.estimates[name].value, equal_nan=True)
        assert np.array_equal(estimate.p, expected.estimates[name].p, equal_nan=True)
        assert allclose(estimate.value, whole.estimates[name].value[[7, 3]], 1e-5)


@pytest.fixture(scope="module")
def chance(meanings: Planted, meanings_store: Store) -> dict[str, np.ndarray]:
    """p of neurons that fire at random places of a real text, each with its own strengths."""
    store, model = meanings_store, meanings.model
    n, most = 400, 24
    everywhere = random_places(store, 11)
    random = np.random.default_rng(12)
    places = np.full((n, MOST), -1, np.int64)
    places[:, :most] = np.stack([random.choice(everywhere, most, replace=False) for _ in range(n)])
    strengths = np.zeros((n, MOST))
    strengths[:, :most] = -np.sort(-random.uniform(0.5, 1.0, (n, most)), axis=1)
    found = Firing(1, np.arange(n), places, strengths, strengths[:, 0])
    keys = random.standard_normal((n, 1, model.d_model)).astype(np.float32)
    base = random_places(store, 0)
    p: dict[str, list[np.ndarray]] = {}
    with Inputs(store, model, {1: np.concatenate([everywhere, base])}) as inputs:
        background = background_of(inputs.at(1, base))
        for seed in range(4):
            part = np.arange(n)[seed::4]
            some = Firing(1, part, places[part], strengths[part], found.extreme[part])
            draws = Draws(100, seed, len(background.units))
            result = alike(some, lambda at: inputs.at(1, at), keys[part], background, draws)
            tokens = np.zeros(some.places.shape, np.int64)
            tokens[:, :most] = store.sequences.tokens_at(
                some.places[:, :most].ravel() >> 20, some.places[:, :most].ravel() & 0xFFFFF
            ).reshape(-1, most)
            weights = np.where(some.places >= 0, some.strengths, np.nan)
            counts = store.corpus.token_counts.astype(np.int64)
            estimates = {**result.estimates, "trigger_tokens": trigger_tokens(tokens, weights, counts, seed=seed)}
            for name, estimate in estimates.items():
                p.setdefault(name, []).append(estimate.p)
    return {name: np.concatenate(parts) for name, parts in p.items()}


@pytest.mark.parametrize("name", ["meanings", "clusters", "ms", "trigger_tokens"])
def test_chance_is_seldom_notable(chance: dict[str, np.ndarray], name: str) -> None:
    """Below .05 in 5% of neurons at most, and a bit of chance: of their places and of the null's draws."""
    p = chance[name]
    assert np.isfinite(p).all()
    assert (p < 0.05).sum() <= stats.binom(len(p), 0.05).ppf(0.999)
    assert (p < 0.5).mean() <= 0.65


def test_keys_that_a_neuron_reads_with(architecture: fm.Model) -> None:
    """The key of a classic neuron; gate and key of a gated one, which fires by both."""
    ffn, found = architecture.ffn[1], reading_keys(architecture, 1, np.array([5, 2]))
    assert found.shape == (2, 1 + architecture.gated, 16)
    assert np.array_equal(found[:, -1], ffn.keys.detach().numpy()[[5, 2]])
    if ffn.gates is not None:
        assert np.array_equal(found[:, 0], ffn.gates.detach().numpy()[[5, 2]])


def test_two_keys_are_two_embeddings_joined() -> None:
    """Foote's cosine of a gated neuron is that of both embeddings in one vector; a key turned round changes nothing,
    and a gate that is the key is no second one."""
    random = np.random.default_rng(3)
    inputs, keys = (random.standard_normal(shape).astype(np.float32) for shape in ((4, 6, D), (4, 2, D)))
    joined = np.concatenate([normalise(inputs * keys[:, i, None]) for i in range(2)], axis=-1)
    found = compare_reads(inputs, keys)
    assert allclose(found, pairwise(normalise(joined)), 1e-5)
    assert allclose(found.diagonal(axis1=1, axis2=2), np.ones((4, 6)), 1e-5)
    assert np.array_equal(found, compare_reads(inputs, keys * np.array([[1], [-1]], np.float32)))
    twice = compare_reads(inputs, np.repeat(keys[:, :1], 2, axis=1))
    assert allclose(twice, compare_reads(inputs, keys[:, :1]), 1e-6)


def test_clusters_see_what_the_key_reads() -> None:
    """Examples of two kinds by what the key reads, in which the gate reads nothing in common: by the gate alone each
    would be a kind of its own."""
    random = np.random.default_rng(4)
    n, wide = 12, 150
    gate, key = (np.arange(wide) < 50).astype(np.float32), (np.arange(wide) >= 50).astype(np.float32)
    kinds = random.standard_normal((2, wide)) * key
    inputs = np.zeros((1, MOST, wide), np.float32)
    inputs[0, :n] = kinds[np.arange(n) % 2] + 0.3 * random.standard_normal((n, wide))
    rows = random.standard_normal((1, 100, wide)).astype(np.float32)
    weights = np.where(np.arange(MOST) < n, 1.0, 0.0)[None]
    draws = Draws(20, 0, 100)
    alone = cluster_by_key(inputs, weights, gate[None, None], rows, draws)[0, 0]
    both = cluster_by_key(inputs, weights, np.stack([gate, key])[None], rows, draws)[0, 0]
    assert alone > 8
    assert both == pytest.approx(2.0)
