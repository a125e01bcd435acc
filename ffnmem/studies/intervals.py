"""Means and shares with their intervals, as every study gives them."""

from __future__ import annotations

import numpy as np
from scipy import stats

CONFIDENCE = 0.95
RESAMPLES = 1000
AT_ONCE = 1 << 22  # numbers drawn at a time


def mean_interval(values: np.ndarray, seed: int = 0, resamples: int = RESAMPLES) -> tuple[float, float, float]:
    """The mean of independent values and the ends of its 95% percentile bootstrap interval.

    Args:
        values: ``[n]``, one a neuron or one a position; those that are NaN are left out.
        seed: of the resamples. resamples: how many.

    Returns:
        mean, low, high. Of no value all are NaN; of a single one the ends are.

    Source: Efron 1979, as in ``scipy.stats.bootstrap``.
    """
    kept = np.asarray(values, dtype=np.float64)
    kept = kept[~np.isnan(kept)]
    if len(kept) < 2:
        mean = float(kept[0]) if len(kept) else float("nan")
        return mean, float("nan"), float("nan")
    found = stats.bootstrap(
        (kept,),
        np.mean,
        n_resamples=resamples,
        batch=max(1, AT_ONCE // len(kept)),
        confidence_level=CONFIDENCE,
        method="percentile",
        random_state=np.random.default_rng(seed),
    ).confidence_interval
    return float(kept.mean()), float(found.low), float(found.high)


def share_interval(count: int, total: int) -> tuple[float, float, float]:
    """A share of independent cases and the ends of its 95% Wilson interval, which is right for shares near 0 and 1 too.

    Returns:
        share, low, high; all NaN of no case.

    Source: Wilson 1927, as in ``scipy.stats.binomtest``.
    """
    if total == 0:
        return float("nan"), float("nan"), float("nan")
    found = stats.binomtest(int(count), int(total)).proportion_ci(CONFIDENCE, method="wilson")
    return count / total, float(found.low), float(found.high)
