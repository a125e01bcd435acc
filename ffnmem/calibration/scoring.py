"""How well a number recovers a truth: AUROC, rank correlation, precision at k, each with an interval over models."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Bool, Float64, Num
from scipy.stats import rankdata

DRAWS = 400
Score = Callable[[Float64[np.ndarray, " n"], Num[np.ndarray, " n"]], float]


def auroc(score: Float64[np.ndarray, " n"], truth: Num[np.ndarray, " n"]) -> float:
    """The chance that a neuron with truth above 1 has the larger score than one with 1, ties half; NaN of one class."""
    positive: Bool[np.ndarray, " n"] = truth > 1
    n, m = int(positive.sum()), int((~positive).sum())
    if not n or not m:
        return float("nan")
    return float((rankdata(score)[positive].sum() - n * (n + 1) / 2) / (n * m))


def spearman(score: Float64[np.ndarray, " n"], truth: Num[np.ndarray, " n"]) -> float:
    """The rank correlation, ties sharing their mean rank; NaN where either is constant."""
    ranks = [rankdata(score), rankdata(truth)]
    if any(len(r) < 2 or np.ptp(r) == 0 for r in ranks):
        return float("nan")
    return float(np.corrcoef(*ranks)[0, 1])


def precision_at(k: int) -> Score:
    """The share with truth above 1 among the k of the largest scores, ties in order; NaN of fewer than k."""

    def precision(score: Float64[np.ndarray, " n"], truth: Num[np.ndarray, " n"]) -> float:
        if len(score) < k:
            return float("nan")
        return float((truth[np.argsort(-score, kind="stable")[:k]] > 1).mean())

    return precision


def over_models(
    models: Sequence[tuple[Float64[np.ndarray, " n"], Num[np.ndarray, " n"]]], score: Score, seed: int = 0
) -> tuple[float, float, float]:
    """The mean over models, and its 95% interval by a bootstrap that draws models, and neurons within each, again.

    Args:
        models: score and truth of each model's neurons; NaN scores are left out.
    """
    known = [(s[np.isfinite(s)], t[np.isfinite(s)]) for s, t in models]
    if not known:
        return float("nan"), float("nan"), float("nan")
    value = mean([score(s, t) for s, t in known])
    rng = np.random.default_rng([seed, 8])
    drawn = np.empty(DRAWS)
    for d in range(DRAWS):
        again = []
        for i in rng.integers(len(known), size=len(known)):
            s, t = known[i]
            pick = rng.integers(len(s), size=len(s)) if len(s) else np.empty(0, np.int64)
            again.append(score(s[pick], t[pick]))
        drawn[d] = mean(again)
    drawn = drawn[np.isfinite(drawn)]
    if not len(drawn):
        return value, float("nan"), float("nan")
    low, high = np.quantile(drawn, (0.025, 0.975))
    return value, float(low), float(high)


def mean(values: Sequence[float]) -> float:
    """Of those that are numbers."""
    known = [v for v in values if np.isfinite(v)]
    return float(np.mean(known)) if known else float("nan")
