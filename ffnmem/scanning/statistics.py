"""From a state to numbers that people read: moments, firing rates, means by token and by position."""

from __future__ import annotations

import numpy as np
import pandas as pd
from jaxtyping import Float32, Float64, Int64

from . import exact_sums
from .bins import BINS, edges
from .state import LayerState, ScanState

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


def moments(sums: Int64[np.ndarray, "limbs 4 d_mlp"], count: int) -> tuple[Float64[np.ndarray, " d_mlp"], ...]:
    """Mean, standard deviation (of the population), skewness and excess kurtosis from exact power sums.

    The central sums are formed in integers, so nothing cancels; skewness and kurtosis of a constant are NaN.
    """
    if count == 0:
        nothing = np.full(sums.shape[2], np.nan)
        return nothing, nothing, nothing, nothing
    n = count
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


def ratios(numerators: np.ndarray, denominator: int) -> Float64[np.ndarray, " d_mlp"]:
    """Python integers divided and rounded once."""
    return np.array([numerator / denominator for numerator in numerators], np.float64)


def layer_stats(state: ScanState, layer: int) -> pd.DataFrame:
    """One row a neuron: layer, neuron and :data:`STATS`; ``dead``: its pre-activation was never above 0."""
    found, n = state.layers[layer], state.tokens
    pre = without_noise(moments(found.sums[:, :4], n), found.pre_range)
    coefficient = without_noise(moments(found.sums[:, 4:], n), found.range)
    fired, zeros = found.counts
    share = n or np.nan  # an empty shard has no rates

    def bound(values: Float32[np.ndarray, " d_mlp"]) -> Float64[np.ndarray, " d_mlp"]:
        return np.where(np.isfinite(values), values, np.nan).astype(np.float64)

    columns: dict[str, object] = {
        "layer": np.full(len(fired), layer, np.int32),
        "neuron": np.arange(len(fired), dtype=np.int32),
        "count": np.full(len(fired), n, np.int64),
        **dict(zip(STATS[1:5], coefficient, strict=True)),
        "min": bound(found.range[0]),
        "max": bound(found.range[1]),
        "firing_rate": fired / share,
        "zero_share": zeros / share,
        "dead": (fired == 0) & (n > 0),
        **dict(zip(STATS[10:14], pre, strict=True)),
        "pre_min": bound(found.pre_range[0]),
        "pre_max": bound(found.pre_range[1]),
    }
    return pd.DataFrame(columns)


def bucket_name(bucket: int, context: int) -> str:
    """The positions of a bucket in words: 0, 1, 2–3, 4–7, …"""
    first = 0 if bucket == 0 else 1 << (bucket - 1)
    last = min(max(first, (1 << bucket) - 1), context - 1)
    return str(first) if first == last else f"{first}–{last}"


def means(sums: Int64[np.ndarray, " groups"], counts: Int64[np.ndarray, " groups"]) -> Float64[np.ndarray, " groups"]:
    """Mean coefficient of each group; NaN for one that did not occur."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(counts > 0, exact_sums.small_as_floats(sums) / counts, np.nan)


def histogram_frame(counts: Int64[np.ndarray, " bins"]) -> pd.DataFrame:
    """The bins between the lowest and the highest that anything fell into: low, high, count."""
    bounds = edges()
    filled = np.flatnonzero(counts)
    span = slice(int(filled[0]), int(filled[-1]) + 1) if len(filled) else slice(0, BINS)
    return pd.DataFrame({"low": bounds[:-1][span], "high": bounds[1:][span], "count": counts[span]})


def final_extremes(layer: LayerState, side: str, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The k best values and places of each neuron ``[d_mlp, k]``: as scanned, or re-ranked by their float32 values."""
    if not layer.high_exact.shape[1]:
        return getattr(layer, side)[:, :k], getattr(layer, f"{side}_at")[:, :k]
    value, at = getattr(layer, f"{side}_exact"), getattr(layer, f"{side}_exact_at")
    sign = 1.0 if side == "high" else -1.0
    order = np.lexsort((at, np.where(np.isnan(value), np.inf, -sign * value)), axis=1)[:, :k]
    return np.take_along_axis(value, order, axis=1), np.take_along_axis(at, order, axis=1)
