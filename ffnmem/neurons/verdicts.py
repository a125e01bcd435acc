"""Estimates beside what chance gives, and the verdicts that are made of them."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, nan, sqrt
from typing import Annotated

import numpy as np
from jaxtyping import Bool, Float, Float64, Int64, Shaped

from ..core.defaults import ABOVE, ENOUGH
from ..core.errors import InputError, check_choice
from ..core.types import Range, at_least, checked

# One measure of many neurons: what was found, its interval, and what chance would have found.

INTERVAL = (0.025, 0.975)
NORMAL = 1.959963984540054  # standard errors to either end of a 95% interval
UNSEEN = 0.05  # the chance that the examples show nothing of a group as large as is said to be possible
DIRECTIONS = ("greater", "less")


@dataclass(frozen=True, eq=False)
class Estimate:
    """One measure of n neurons, float64; NaN where it cannot be measured (or has no null).

    Attributes:
        value: of the neurons.
        low, high: its 95% interval, by a bootstrap over sequences unless the measure says otherwise.
        null: the mean under the measure's null.
        p: one-sided, in the direction that the measure calls notable: the chance of a value like this under the null.
    """

    value: Float64[np.ndarray, " n"]
    low: Float64[np.ndarray, " n"]
    high: Float64[np.ndarray, " n"]
    null: Float64[np.ndarray, " n"]
    p: Float64[np.ndarray, " n"]

    def __post_init__(self) -> None:
        shapes = {part.shape for part in (self.value, self.low, self.high, self.null, self.p)}
        if len(shapes) > 1:
            raise InputError(f"the parts of an estimate must have one shape, not {sorted(shapes)}")

    def columns(self, name: str) -> dict[str, Float64[np.ndarray, " n"]]:
        """The columns ``name``, ``name_low``, ``name_high``, ``name_null`` and ``name_p`` of a table."""
        return {
            name: self.value,
            f"{name}_low": self.low,
            f"{name}_high": self.high,
            f"{name}_null": self.null,
            f"{name}_p": self.p,
        }


def p_values(
    value: Float64[np.ndarray, " n"], null: Float64[np.ndarray, "rows draws"], direction: str = "greater"
) -> Float64[np.ndarray, " n"]:
    """(1 + draws at least as extreme)/(1 + draws): exact where value and draws are exchangeable.

    Args:
        value: of n neurons; where it is NaN, or a neuron has no draw that is a number, p is NaN.
        null: each neuron's own draws; one row serves all neurons. Draws that are NaN are not counted.
        direction: ``"greater"`` where large values are notable, ``"less"`` where small ones are.

    Source: Phipson and Smyth 2010, "Permutation p-values should never be zero".
    """
    check_choice("direction", direction, DIRECTIONS)
    sign = 1.0 if direction == "greater" else -1.0
    finite = np.isfinite(null)
    draws = np.broadcast_to(finite.sum(axis=1), len(value))
    if len(null) == 1:  # n² comparisons would be many
        shared = np.sort(sign * null[finite])
        extreme = len(shared) - np.searchsorted(shared, sign * value, side="left")
    else:
        extreme = (sign * null >= (sign * value)[:, None]).sum(axis=1)
    known: Bool[np.ndarray, " n"] = np.isfinite(value) & (draws > 0)
    return np.where(known, (1.0 + extreme) / (1.0 + draws), np.nan)


def beside_shared(
    value: Float64[np.ndarray, " n"],
    low: Float64[np.ndarray, " n"],
    high: Float64[np.ndarray, " n"],
    null: Float64[np.ndarray, " draws"],
    direction: str,
) -> Estimate:
    """An estimate beside draws that all neurons share."""
    mean = np.nanmean(null) if np.isfinite(null).any() else np.nan
    return Estimate(value, low, high, np.full(len(value), mean), p_values(value, null[None], direction))


def interval(draws: Float[np.ndarray, "n draws"]) -> tuple[Float64[np.ndarray, " n"], Float64[np.ndarray, " n"]]:
    """The 2.5% and 97.5% quantiles of each row's draws that are numbers; NaN of a row that has none."""
    low, high = np.full(len(draws), np.nan), np.full(len(draws), np.nan)
    finite = np.isfinite(draws)
    whole, some = finite.all(axis=1), finite.any(axis=1)
    for rows, quantile in ((whole, np.quantile), (some & ~whole, np.nanquantile)):  # the second is slow
        if rows.any() and draws.shape[1]:
            low[rows], high[rows] = quantile(draws[rows].astype(np.float64), INTERVAL, axis=1)
    return low, high


def unseen_share(examples: Int64[np.ndarray, " n"]) -> Float64[np.ndarray, " n"]:
    """The largest share of a group that none of so many examples is of, at 95%: 1 − .05^(1/n), about 3/n.

    Source: Clopper and Pearson 1934; Hanley and Lippman-Hand 1983, "If nothing goes wrong, is everything all right?"
    """
    return 1 - UNSEEN ** (1 / np.maximum(examples, 1))


def unseen_number(examples: Int64[np.ndarray, " n"]) -> Float64[np.ndarray, " n"]:
    """The effective number of groups that so many examples of a single one leave possible: exp of the entropy of a
    second group's :func:`unseen_share` (or of a half, where it is more) and the rest."""
    share = np.minimum(unseen_share(examples), 0.5)
    return np.exp(-share * np.log(share) - (1 - share) * np.log1p(-share))


def spread_around(
    value: Float64[np.ndarray, " n"], draws: Float64[np.ndarray, "n draws"], examples: Int64[np.ndarray, " n"]
) -> tuple[Float64[np.ndarray, " n"], Float64[np.ndarray, " n"]]:
    """An interval around an effective number of groups: the draws' quantiles over their median, times the value; not
    below 1.

    Examples that are all of one group are so in every draw, however few they are. So the upper end is never below what
    that many examples of one group leave possible (:func:`unseen_number`).
    """
    low, high = interval(draws)
    median = np.full(len(draws), np.nan)
    known = np.isfinite(draws).any(axis=1)  # a draw without activation is NaN
    median[known] = np.nanmedian(draws[known], axis=1)
    high = np.maximum(value * high / median, value)
    return np.maximum(value * low / median, 1.0), np.maximum(high, unseen_number(examples))


def share_interval(count: float, total: int) -> tuple[float, float]:
    """The ends of a share's 95% interval (Wilson 1927); NaN of nothing."""
    if not total:
        return nan, nan
    share, square = count / total, NORMAL**2 / total
    middle, half = share + square / 2, NORMAL * sqrt(share * (1 - share) / total + square / total / 4)
    # Of none and of all one end is the share itself, to the last digit.
    return min(max((middle - half) / (1 + square), 0.0), share), max(min((middle + half) / (1 + square), 1.0), share)


# The verdict on a neuron: inactive, monosemantic, polysemantic or unclear, by one stated rule.


@checked
@dataclass(frozen=True)
class Rule:
    """When a neuron counts as what.

    Inactive: its coefficient never had the sign that is asked about. (A gated neuron whose gate never opened, which a
    store calls dead, may have written all the same.) Unclear: fewer than ``examples``, or examples no more alike than
    unrelated inputs (p ≥ ``alpha``). Polysemantic: the interval of ``meanings`` lies above ``above``. Monosemantic:
    ``meanings`` is at most ``above`` in ``enough`` examples or more, and the interval ends by ``above``, or by what so
    many examples of one meaning leave possible (:func:`unseen_number`: 1.50 of 20 examples, 1.35 of 32). Unclear what
    is left.

    Attributes:
        above, enough: chosen on planted models of seeds 0 to 4, tested on seeds from 100 (``benchmarks/planted``). With
            20 examples of one meaning, another one has at most 14% of the activation.
    """

    above: Annotated[float, Range(above=1, below=inf)] = ABOVE
    examples: Annotated[int, at_least(2)] = 8
    enough: Annotated[int, at_least(2)] = ENOUGH
    alpha: Annotated[float, Range(above=0, below=1)] = 0.05


RULE = Rule()


def verdicts(
    fires: Bool[np.ndarray, " n"], examples: Int64[np.ndarray, " n"], meanings: Estimate, rule: Rule = RULE
) -> tuple[Shaped[np.ndarray, " n"], Shaped[np.ndarray, " n"]]:
    """Each neuron's verdict, and why it is unclear where it is (else empty).

    Args:
        fires: whether the neuron was ever above 0. examples: how many ``meanings`` was counted in.
    """
    value: Float64[np.ndarray, " n"] = meanings.value
    many, few = value > rule.above, examples < rule.enough
    room = np.maximum(unseen_number(examples), rule.above)
    clear = np.where(many, meanings.low > rule.above, ~few & (meanings.high <= room))
    reasons = [
        (~fires, ""),
        (examples < rule.examples, f"fewer than {rule.examples} examples"),
        (~(meanings.p < rule.alpha), "examples no more alike than unrelated inputs"),
        (~many & few, f"too few examples, below {rule.enough}, to rule out another meaning"),
        (~clear, f"the interval contains {rule.above:g} meanings"),
    ]
    why = np.select([when for when, _ in reasons], [text for _, text in reasons], "")
    decided = np.where(many, "polysemantic", "monosemantic")
    names = np.where(~fires, "inactive", np.where(why != "", "unclear", decided))
    return names.astype(object), why.astype(object)
