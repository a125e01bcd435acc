"""AUROC, rank correlation and precision at k against SciPy and counting; their intervals against what must hold."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import mannwhitneyu, spearmanr

from ffnmem.planted import recovery
from ffnmem.planted.recovery import auroc, over_models, precision_at, spearman

from ..helpers import allclose


def drawn(seed: int, n: int, tied: bool) -> tuple[np.ndarray, np.ndarray]:
    """Scores that know something of the truth, with or without ties."""
    rng = np.random.default_rng(seed)
    truth = rng.choice([1, 2, 3, 4, 8], n)
    score = truth + 3 * rng.standard_normal(n)
    return (score.round() if tied else score), truth


@given(seed=st.integers(0, 2**32 - 1), n=st.integers(2, 40), tied=st.booleans())
def test_auroc_and_spearman_are_scipys(seed: int, n: int, tied: bool) -> None:
    score, truth = drawn(seed, n, tied)
    many = truth > 1
    if many.any() and not many.all():
        u = mannwhitneyu(score[many], score[~many]).statistic
        assert allclose(auroc(score, truth), u / (many.sum() * (~many).sum()), 1e-12)
    else:
        assert np.isnan(auroc(score, truth))
    if np.ptp(score) and np.ptp(truth):
        assert allclose(spearman(score, truth), spearmanr(score, truth).statistic, 1e-12)
    else:
        assert np.isnan(spearman(score, truth))


def test_precision_at() -> None:
    """Of the first k only, ties in their order, and of no fewer than k."""
    truth = np.array([1, 4, 1, 2, 2])
    assert precision_at(2)(np.array([5.0, 4.0, 3.0, 2.0, 1.0]), truth) == 0.5
    assert precision_at(2)(np.array([0.0, 1.0, 0.0, 1.0, 0.0]), truth) == 1
    assert precision_at(2)(np.zeros(5), truth) == 0.5
    assert precision_at(5)(np.zeros(5), truth) == 0.6
    assert np.isnan(precision_at(6)(np.zeros(5), truth))


def test_over_models_is_the_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    """With an interval as wide as models differ; missing scores and models of one class are left out."""
    monkeypatch.setattr(recovery, "DRAWS", 100)
    models = [drawn(seed, 60, False) for seed in range(3)]
    value, low, high = over_models(models, auroc)
    assert value == pytest.approx(np.mean([auroc(*model) for model in models]))
    assert low < value < high
    assert over_models(models, auroc) == (value, low, high) != over_models(models, auroc, seed=1)
    truth = np.tile([1, 2], 200)
    assert over_models([(truth, truth), (-truth, truth)], auroc) == (0.5, 0, 1)
    assert over_models([(truth, truth)] * 2, auroc) == (1, 1, 1)
    score, truth = models[0]
    more = np.append(score, [np.nan, np.inf]), np.append(truth, [1, 8])
    assert over_models([more], auroc) == over_models([(score, truth)], auroc)
    alike = np.zeros(3), np.ones(3, int)
    for nothing in ([], [(np.full(3, np.nan), np.array([1, 2, 3]))], [alike]):
        assert np.isnan(over_models(nothing, auroc)).all()
    assert over_models([(np.array([0.0, 1.0]), np.array([1, 2])), alike], auroc)[0] == 1


def test_interval_is_as_wide_as_the_scores_vary(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over many samples of one world, its 95% interval must hold the truth about as often, and not be idle."""
    monkeypatch.setattr(recovery, "DRAWS", 100)
    rng = np.random.default_rng(0)

    def sample() -> tuple[np.ndarray, np.ndarray]:
        truth = rng.choice([1, 2], 80)
        return truth + rng.standard_normal(80), truth

    true = np.mean([auroc(*sample()) for _ in range(500)])
    ends = [over_models([sample() for _ in range(3)], auroc, seed)[1:] for seed in range(24)]
    assert all(0.02 < high - low < 0.3 for low, high in ends)
    assert sum(low <= true <= high for low, high in ends) >= 20
