"""Average linkage, components, effective numbers and their draws, each against SciPy or a walk over the definition."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.sparse.csgraph import connected_components
from scipy.spatial.distance import squareform
from scipy.stats import entropy

from ffnmem.neurons.clustering import (
    by_share,
    component_block,
    connected,
    effective,
    linked,
    measure_block,
    multiplicities,
    null_clusters,
    null_picks,
    weighted_cosine,
)

from ..helpers import allclose

seeds = st.integers(0, 2**32 - 1)


def cosines(n: int, d: int, seed: int) -> np.ndarray:
    x = np.random.default_rng(seed).standard_normal((n, d))
    x[: n // 3] += 2  # a part that is more alike
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return x @ x.T


def own_link(similarity: np.ndarray, size: np.ndarray, cut: float) -> tuple[np.ndarray, int]:
    labels = np.empty(len(size), np.int64)
    return labels, linked(similarity.copy(), size, cut, labels)


def scipy_link(similarity: np.ndarray, cut: float) -> np.ndarray:
    distance = np.clip(1 - similarity, 0, None)
    np.fill_diagonal(distance, 0)
    return fcluster(linkage(squareform(distance, checks=False), "average"), 1 - cut, "distance")


def same_partition(one: np.ndarray, other: np.ndarray) -> bool:
    return bool(((one[:, None] == one) == (other[:, None] == other)).all())


@given(seed=seeds, n=st.integers(2, 24), cut=st.floats(-0.4, 0.9))
def test_linked_is_scipys_average_linkage(seed: int, n: int, cut: float) -> None:
    s = cosines(n, 5, seed)
    labels, found = own_link(s, np.ones(n, np.int64), cut)
    assert same_partition(labels, scipy_link(s, cut))
    assert sorted(set(labels.tolist())) == list(range(found))


@given(seed=seeds, n=st.integers(2, 16), cut=st.floats(-0.4, 0.9))
def test_sizes_are_repeated_rows(seed: int, n: int, cut: float) -> None:
    """A bootstrap draw has examples twice, others never."""
    size = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n))
    s = cosines(n, 5, seed)
    labels, found = own_link(s, size, cut)
    rows = np.repeat(np.arange(n), size)
    assert same_partition(labels[rows], scipy_link(s[np.ix_(rows, rows)], cut))
    assert (labels[size == 0] == -1).all()
    assert sorted(set(labels[size > 0].tolist())) == list(range(found))


def test_linked_at_its_ends() -> None:
    s = cosines(9, 4, 0)
    one = np.ones(9, np.int64)
    assert own_link(s, one, -1.0)[1] == 1
    assert own_link(s, one, 1.5)[1] == 9
    assert own_link(s, np.eye(9, dtype=np.int64)[3], 0.0)[0].tolist() == [-1, -1, -1, 0, -1, -1, -1, -1, -1]
    exact = np.array([[1.0, 0.5], [0.5, 1.0]])
    assert own_link(exact, one[:2], 0.5)[1] == 1  # at the cut is alike


def test_equal_similarities_have_one_order() -> None:
    """Of pairs that are equally close the first is merged: the same labels at every call."""
    s = np.full((6, 6), 0.5)
    s[:3, 3:] = s[3:, :3] = 0.4
    labels, found = own_link(s, np.ones(6, np.int64), 0.45)
    assert labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert found == 2


@given(seed=seeds, n=st.integers(1, 20))
def test_effective_is_exp_entropy(seed: int, n: int) -> None:
    random = np.random.default_rng(seed)
    _, labels = np.unique(random.integers(0, 5, n), return_inverse=True)
    weights = random.random(n) + 0.01
    shares = np.bincount(labels, weights=weights)
    assert effective(labels, len(shares), weights) == pytest.approx(np.exp(entropy(shares)))


def test_effective_leaves_out_who_is_not_there() -> None:
    labels = np.array([0, -1, 1, 1])
    assert effective(labels, 2, np.array([2.0, 99.0, 1.0, 1.0])) == pytest.approx(2)
    assert effective(labels, 2, np.array([2.0, 99.0, 0.0, 0.0])) == pytest.approx(1)


@given(seed=seeds, n=st.integers(2, 20), d=st.integers(2, 6))
def test_weighted_cosine_is_the_one_pass_form(seed: int, n: int, d: int) -> None:
    """Σ_{i<j} aᵢaⱼcos/Σ_{i<j} aᵢaⱼ = (‖Σaᵢêᵢ‖² − Σaᵢ²)/((Σaᵢ)² − Σaᵢ²), Pach 2025."""
    random = np.random.default_rng(seed)
    units = random.standard_normal((n, d))
    units /= np.linalg.norm(units, axis=1, keepdims=True)
    a = random.random(n) + 0.01
    whole = a @ units
    expected = (whole @ whole - a @ a) / (a.sum() ** 2 - a @ a)
    assert weighted_cosine(units @ units.T, np.arange(n), a) == pytest.approx(expected, abs=1e-9)
    rows = random.permutation(n)
    assert weighted_cosine((units @ units.T), rows, a[rows]) == pytest.approx(expected, abs=1e-9)


def test_weighted_cosine_without_pairs() -> None:
    assert np.isnan(weighted_cosine(np.eye(3), np.arange(3), np.array([0.0, 2.0, 0.0])))


@given(seed=seeds, n=st.integers(1, 20), cut=st.floats(-0.5, 1.0))
def test_connected_is_scipys(seed: int, n: int, cut: float) -> None:
    s = cosines(n, 3, seed)
    size = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n))
    labels = np.empty(n, np.int64)
    found = connected(s, size, cut, labels)
    there = size > 0
    expected, components = connected_components(s[np.ix_(there, there)] > cut, directed=False)
    assert found == expected
    assert same_partition(labels[there], components)
    assert (labels[~there] == -1).all()


MOST, DRAWS = 12, 25


@pytest.fixture(scope="module")
def block() -> dict[str, np.ndarray]:
    """Neurons of 0 to MOST examples."""
    random = np.random.default_rng(5)
    counts = np.array([12, 0, 1, 2, 7, 12])
    similarity = np.stack([cosines(MOST, 5, s) for s in range(6)]).astype(np.float32)
    weights = -np.sort(-random.random((6, MOST)), axis=1) + 0.1
    weights[np.arange(MOST) >= counts[:, None]] = 0
    return {"similarity": similarity, "weights": weights, "counts": counts}


def test_measure_block_is_its_parts(block: dict[str, np.ndarray]) -> None:
    """Value, bootstrap and null of each neuron as direct clustering has them."""
    cut, background = 0.3, cosines(60, 8, 9)
    picks, times = null_picks(60, MOST, DRAWS, 0), multiplicities(MOST, DRAWS, 0)
    labels, found = np.full((MOST + 1, DRAWS, MOST), -1, np.int64), np.zeros((MOST + 1, DRAWS), np.int64)
    null_clusters(background, picks, cut, labels, found, 2, MOST + 1)
    out, own = np.empty((6, 2, 1 + 2 * DRAWS)), np.full((6, MOST), -9)
    work = partial(measure_block, **block, cut=cut, background=background, picks=picks, multiplicity=times)
    work = partial(work, null_labels=labels, null_found=found, out=out, own=own)
    work(first=0, last=4)
    assert (own[4:] == -9).all()  # not asked for
    work(first=4, last=6)
    for b, n in enumerate(block["counts"].tolist()):
        s, w = block["similarity"][b, :n, :n].astype(np.float64), block["weights"][b, :n]
        assert (own[b, n:] == -1).all()
        if n < 2:
            assert np.isnan(out[b]).all()
            assert (own[b, :n] == 0).all()
            continue
        direct, k = own_link(s, np.ones(n, np.int64), cut)
        assert own[b, :n].tolist() == direct.tolist()
        meanings, ms = [effective(direct, k, w)], [weighted_cosine(s, np.arange(n), w)]
        for d in range(DRAWS):
            again, k = own_link(s, times[n, d, :n], cut)
            meanings.append(effective(again, k, w * times[n, d, :n]))
            rows = np.repeat(np.arange(n), times[n, d, :n])
            apart = rows[:, None] != rows
            pairs = np.outer(w[rows], w[rows]) * apart
            ms.append((pairs * s[np.ix_(rows, rows)]).sum() / pairs.sum() if apart.any() else np.nan)
        for d in range(DRAWS):
            chance = background[np.ix_(picks[d, :n], picks[d, :n])]
            direct, k = own_link(chance, np.ones(n, np.int64), cut)
            assert labels[n, d, :n].tolist() == direct.tolist()
            meanings.append(effective(direct, k, w))
            ms.append(weighted_cosine(chance, np.arange(n), w))
        np.testing.assert_allclose(out[b, 0], meanings, rtol=1e-5)
        np.testing.assert_allclose(out[b, 1], ms, rtol=1e-4, atol=1e-6)


def test_component_block_is_its_parts(block: dict[str, np.ndarray]) -> None:
    background = np.stack([cosines(40, 4, 20 + b) for b in range(6)]).astype(np.float32)
    cuts = np.linspace(0.2, 0.7, 6)
    picks, times = null_picks(40, MOST, DRAWS, 0), multiplicities(MOST, DRAWS, 0)
    out = np.empty((6, 1 + 2 * DRAWS))
    component_block(
        **block, cuts=cuts, background=background, picks=picks, multiplicity=times, out=out, first=0, last=6
    )

    def number(s: np.ndarray, size: np.ndarray, w: np.ndarray, cut: float) -> float:
        there = size > 0
        k, labels = connected_components(s[np.ix_(there, there)] > cut, directed=False)
        return float(np.exp(entropy(np.bincount(labels, weights=(w * size)[there], minlength=k))))

    for b, n in enumerate(block["counts"].tolist()):
        if n < 2:
            assert np.isnan(out[b]).all()
            continue
        s, w, whole = block["similarity"][b, :n, :n], block["weights"][b, :n], np.ones(n, np.int64)
        chance = (background[b][np.ix_(picks[d, :n], picks[d, :n])] for d in range(DRAWS))
        expected = [
            number(s, whole, w, cuts[b]),
            *(number(s, times[n, d, :n], w, cuts[b]) for d in range(DRAWS)),
            *(number(c, whole, w, cuts[b]) for c in chance),
        ]
        np.testing.assert_allclose(out[b], expected, rtol=1e-9)


def test_by_share_numbers_from_the_largest() -> None:
    labels = np.array([2, 0, 0, 1, -1, 2])
    weights = np.array([1.0, 1.0, 1.5, 4.0, 9.0, 1.5])
    assert by_share(labels, weights).tolist() == [1, 2, 2, 0, -1, 1]  # 2 and 0 are equal: by first example
    assert by_share(np.array([-1, -1]), np.zeros(2)).tolist() == [-1, -1]
    assert by_share(np.array([7, 3, 3, 7]), np.ones(4)).tolist() == [0, 1, 1, 0]


@given(seed=seeds, n=st.integers(1, 20))
def test_by_share_keeps_the_clusters(seed: int, n: int) -> None:
    random = np.random.default_rng(seed)
    labels, weights = random.integers(-1, 4, n), random.random(n)
    renamed = by_share(labels, weights)
    assert same_partition(labels, renamed)
    shares = np.bincount(renamed[renamed >= 0], weights=weights[renamed >= 0])
    assert (np.diff(shares) <= 1e-12).all()
    assert (shares > 0).all()


def test_multiplicities_are_bootstrap_draws() -> None:
    found = multiplicities(10, 4000, 3)
    assert found.shape == (11, 4000, 10)
    for n in (1, 4, 10):
        assert (found[n, :, :n].sum(1) == n).all()
        assert not found[n, :, n:].any()
        assert allclose(found[n, :, :n].mean(0), np.ones(n), 0.1)
    assert np.array_equal(found[:6, :, :5], multiplicities(5, 4000, 3))  # whatever the most
    assert not np.array_equal(found, multiplicities(10, 4000, 4))


def test_null_picks_are_different_rows() -> None:
    picks = null_picks(50, 40, 30, 0)
    assert picks.shape == (30, 40)
    assert all(len(set(row)) == 40 for row in picks.tolist())
    assert len({tuple(row) for row in picks.tolist()}) == 30
    few = null_picks(7, 40, 30, 0)  # else rows behind the background's end would be read
    assert few.shape == (30, 40)
    assert few.max() == 6
    assert all(len(set(row[:7])) == 7 for row in few.tolist())
