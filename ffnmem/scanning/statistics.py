"""From a state to numbers that people read: moments, firing rates, means by token and by position."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from jaxtyping import Float32, Float64, Int64

from . import exact_sums
from .state import BINS, COLUMNS, LayerState, ScanState, edges

STATS = (
    "count",
    "mean",
    "std",
    "skewness",
    "kurtosis",
    "min",
    "max",
    "firing_rate",
    "zero_share",
    "dead",
    "pre_mean",
    "pre_std",
    "pre_skewness",
    "pre_kurtosis",
    "pre_min",
    "pre_max",
)
GATE_STATS = (
    *("linear_mean", "linear_std", "linear_skewness", "linear_kurtosis", "linear_min", "linear_max"),
    *(f"{name}_{case}" for name in ("share", "mean") for case in COLUMNS),
)
"""Of gated neurons besides: moments of the linear part, and for each sign case its share of positions and its mean
coefficient (NaN for one that never occurs)."""


def moments(
    sums: Int64[np.ndarray, "limbs 4 d_mlp"], count: Int64[np.ndarray, " d_mlp"]
) -> tuple[Float64[np.ndarray, " d_mlp"], ...]:
    """Mean, standard deviation (of the population), skewness and excess kurtosis from exact power sums.

    The central sums are formed in integers, so nothing cancels; skewness and kurtosis of a constant are NaN, and so is
    everything of a count of 0.
    """
    n = count.astype(object)
    s1, s2, s3, s4 = exact_sums.as_integers(sums)
    unit = exact_sums.UNIT  # Sₖ counts 2⁻⁶⁴: bring every product to the unit of the longest one
    m2 = ((n * s2) << unit) - s1 * s1
    m3 = ((n * n * s3) << 2 * unit) - ((3 * n * s1 * s2) << unit) + 2 * s1 * s1 * s1
    m4 = (
        ((n**3 * s4) << 3 * unit)
        - ((4 * n * n * s1 * s3) << 2 * unit)
        + ((6 * n * s1 * s1 * s2) << unit)
        - 3 * s1 * s1 * s1 * s1
    )
    one = 1 << unit
    mean = ratios(s1, n * one)
    variance = ratios(m2, n * n * one**2)
    third, fourth = ratios(m3, n**3 * one**3), ratios(m4, n**4 * one**4)
    std = np.sqrt(np.maximum(variance, 0.0))
    with np.errstate(divide="ignore", invalid="ignore"):
        varies = variance > 0
        skewness = np.where(varies, third / std**3, np.nan)
        kurtosis = np.where(varies, fourth / variance**2 - 3.0, np.nan)
    return mean, std, skewness, kurtosis


def without_noise(
    found: tuple[Float64[np.ndarray, " d_mlp"], ...], span: Float32[np.ndarray, "2 d_mlp"]
) -> tuple[Float64[np.ndarray, " d_mlp"], ...]:
    """Moments in which what never varied has no spread: a batch's power sums are rounded, which would look like one."""
    mean, std, skewness, kurtosis = found
    constant = span[0] == span[1]
    return (
        np.where(constant, span[0], mean).astype(np.float64),
        np.where(constant, 0.0, std),
        np.where(constant, np.nan, skewness),
        np.where(constant, np.nan, kurtosis),
    )


def ratios(numerators: np.ndarray, denominators: np.ndarray) -> Float64[np.ndarray, " d_mlp"]:
    """Python integers divided and each rounded once; NaN where the denominator is 0."""
    return np.array([a / b if b else np.nan for a, b in zip(numerators, denominators, strict=True)], np.float64)


def layer_stats(state: ScanState, layer: int) -> pd.DataFrame:
    """One row a neuron: layer, neuron and :data:`STATS`; ``dead``: its pre-activation was never above 0.

    Gated neurons have :data:`GATE_STATS` besides; what fires, or is dead, is the gate. Where a model has experts,
    ``routed`` is the share of tokens that are routed to the neuron's, and everything else is of these tokens.
    """
    found, tokens = state.layers[layer], state.tokens
    n = found.routed[found.expert]
    pre = without_noise(moments(found.sums[:, :4], n), found.pre_range[:2])
    coefficient = without_noise(moments(found.sums[:, 4:8], n), found.range)
    fired, zeros = found.counts[:2]
    share = np.where(n > 0, n, np.nan)  # an empty shard has no rates, nor has an expert that no token went to

    columns: dict[str, object] = {
        "layer": np.full(len(fired), layer, np.int32),
        "neuron": np.arange(len(fired), dtype=np.int32),
        "count": n,
        **({"routed": n / (tokens or np.nan)} if any(len(one.bucket_counts) > 1 for one in state.layers) else {}),
        **dict(zip(STATS[1:5], coefficient, strict=True)),
        "min": bound(found.range[0]),
        "max": bound(found.range[1]),
        "firing_rate": fired / share,
        "zero_share": zeros / share,
        "dead": (fired == 0) & (tokens > 0),
        **dict(zip(STATS[10:14], pre, strict=True)),
        "pre_min": bound(found.pre_range[0]),
        "pre_max": bound(found.pre_range[1]),
        **(gate_stats(found, n) if found.gated else {}),
    }
    return pd.DataFrame(columns)


def bound(values: Float32[np.ndarray, " d_mlp"]) -> Float64[np.ndarray, " d_mlp"]:
    """One end of a range; NaN where nothing was seen."""
    return np.where(np.isfinite(values), values, np.nan).astype(np.float64)


def gate_stats(layer: LayerState, count: Int64[np.ndarray, " d_mlp"]) -> dict[str, Float64[np.ndarray, " d_mlp"]]:
    """:data:`GATE_STATS` of a layer over ``count`` positions a neuron."""
    cases, sums = layer.counts[2:], exact_sums.as_integers(layer.sums[:, 12:])
    rows = [
        *without_noise(moments(layer.sums[:, 8:12], count), layer.pre_range[2:]),
        *(bound(values) for values in layer.pre_range[2:]),
        *(counts / np.where(count > 0, count, np.nan) for counts in cases),
        *(exact_means(total, counts) for total, counts in zip(sums, cases, strict=True)),
    ]
    return dict(zip(GATE_STATS, rows, strict=True))


def exact_means(totals: np.ndarray, counts: Int64[np.ndarray, " d_mlp"]) -> Float64[np.ndarray, " d_mlp"]:
    """Python integers in units of 2⁻⁶⁴ divided by counts, each rounded once; NaN for none."""
    return ratios(totals, counts.astype(object) << exact_sums.UNIT)


def bucket_name(bucket: int, context: int) -> str:
    """The positions of a bucket in words: 0, 1, 2–3, 4–7, …"""
    first = 0 if bucket == 0 else 1 << (bucket - 1)
    last = min(max(first, (1 << bucket) - 1), context - 1)
    return str(first) if first == last else f"{first}–{last}"


def means(sums: Int64[np.ndarray, "..."], counts: Int64[np.ndarray, "..."]) -> Float64[np.ndarray, "..."]:
    """Mean coefficient of each group; NaN for one that did not occur."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(counts > 0, exact_sums.small_as_floats(sums) / counts, np.nan)


# Tables of several neurons: the columns, and where the rows of each begin, and the last end.

Cuts = tuple[dict[str, np.ndarray], Int64[np.ndarray, " _ends"]]


def histogram_columns(counts: Int64[np.ndarray, "neurons bins"]) -> Cuts:
    """:meth:`ffnmem.scanning.Store.histogram`: of each neuron the bins between the lowest and the highest that anything
    fell into."""
    bounds, filled = edges(), counts != 0
    low = np.where(filled.any(1), filled.argmax(1), 0)
    high = np.where(filled.any(1), BINS - filled[:, ::-1].argmax(1), BINS)
    at = np.concatenate([np.arange(a, b) for a, b in zip(low, high, strict=True)])
    whose = np.repeat(np.arange(len(counts)), high - low)
    columns = {"low": bounds[:-1][at], "high": bounds[1:][at], "count": counts[whose, at]}
    return columns, np.concatenate([[0], np.cumsum(high - low)])


def token_columns(
    sums: Int64[np.ndarray, "tokens neurons"],
    counts: Int64[np.ndarray, "tokens neurons"],
    ids: Int64[np.ndarray, " tokens"],
    texts: Sequence[str],
) -> Cuts:
    """:meth:`ffnmem.scanning.Store.by_token`; ``ids``, ``texts``: the frequent tokens."""
    mean = means(sums, counts).T
    order = np.argsort(-mean, axis=1, kind="stable")
    columns = {
        "token": np.array(texts, object)[order].ravel(),
        "token_id": ids[order].ravel(),
        "count": np.take_along_axis(counts.T, order, 1).ravel(),
        "mean": np.take_along_axis(mean, order, 1).ravel(),
    }
    return columns, np.arange(len(mean) + 1) * len(ids)


def position_columns(
    sums: Int64[np.ndarray, "buckets neurons"], counts: Int64[np.ndarray, "buckets neurons"], context: int
) -> Cuts:
    """:meth:`ffnmem.scanning.Store.by_position`; ``context``: of the scan."""
    seen = counts.T > 0
    names = np.array([bucket_name(bucket, context) for bucket in range(len(counts))], object)
    columns = {
        "positions": names[np.nonzero(seen)[1]],
        "count": counts.T[seen],
        "mean": means(sums, counts).T[seen],
    }
    return columns, np.concatenate([[0], np.cumsum(seen.sum(1))])
