"""Estimates beside what chance gives, and the rule of the verdict, branch by branch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from jaxtyping import TypeCheckError
from scipy import stats

from ffnmem.core.errors import InputError
from ffnmem.neurons import Rule
from ffnmem.neurons.verdicts import (
    RULE,
    Estimate,
    interval,
    p_values,
    share_interval,
    unseen_number,
    unseen_share,
    verdicts,
)

from ..helpers import allclose, refuses

NAN = float("nan")
OLDER = Rule(above=2.0, examples=8, alpha=0.05)
INSIDE, UNLIKE, FEW = "2 meanings inside", "no more alike", "to rule out another meaning"


@pytest.mark.parametrize(("direction", "sign"), [("greater", 1), ("less", -1)])
@pytest.mark.parametrize("shared", [True, False])
def test_p_is_the_share_of_draws_as_extreme(direction: str, sign: int, shared: bool) -> None:
    """Ties count against the neuron, draws that are no number not at all; shared draws are sorted once for all."""
    random = np.random.default_rng(0)
    value, null = (
        random.integers(0, 9, 40).astype(float),
        random.integers(0, 9, (1 if shared else 40, 30)).astype(float),
    )
    null[0, 3] = value[5] = NAN
    if not shared:
        null[7] = NAN
    draws = [row[np.isfinite(row)] for row in np.broadcast_to(null, (40, 30))]
    expected = [
        (1 + (sign * own >= sign * one).sum()) / (1 + len(own)) if np.isfinite(one) and len(own) else NAN
        for one, own in zip(value, draws, strict=True)
    ]
    np.testing.assert_array_equal(p_values(value, null, direction), expected)


def test_intervals() -> None:
    draws = np.random.default_rng(2).standard_normal((3, 50))
    draws[1, :20] = NAN
    draws[2] = NAN
    low, high = interval(draws)
    for row in (0, 1):
        known = draws[row][np.isfinite(draws[row])]
        assert allclose([low[row], high[row]], np.quantile(known, (0.025, 0.975)))
    assert np.isnan([low[2], high[2], *np.ravel(interval(np.empty((2, 0))))]).all()


def test_parts_of_an_estimate_must_agree() -> None:
    with pytest.raises((InputError, TypeCheckError)):
        Estimate(*[np.zeros(n) for n in (2, 2, 2, 2, 3)])


@pytest.mark.parametrize(
    ("number", "p", "examples", "rule", "verdict", "why"),
    [
        ((1.1, 1.0, 1.5), 0.01, 20, OLDER, "monosemantic", ""),
        ((3.0, 2.1, 4.0), 0.01, 20, OLDER, "polysemantic", ""),
        ((2.0, 1.0, 2.0), 0.01, 20, OLDER, "monosemantic", ""),  # at the limit is not above it
        ((3.0, 2.0, 4.0), 0.01, 20, OLDER, "unclear", INSIDE),
        ((1.5, 1.0, 2.1), 0.01, 20, OLDER, "unclear", INSIDE),
        ((3.0, 2.1, 4.0), 0.05, 20, OLDER, "unclear", UNLIKE),
        ((1.1, 1.0, 1.5), 0.6, 20, OLDER, "unclear", UNLIKE),
        ((3.0, 2.1, 4.0), NAN, 20, OLDER, "unclear", UNLIKE),
        ((3.0, 2.1, 4.0), 0.01, 7, OLDER, "unclear", "fewer than 8 examples"),
        ((3.0, 2.1, 4.0), 0.01, 8, OLDER, "polysemantic", ""),
        ((NAN, NAN, NAN), NAN, 1, OLDER, "unclear", "fewer than 8"),
        ((3.0, NAN, NAN), 0.01, 20, OLDER, "unclear", "interval"),
        # Few examples of one meaning leave room for another; of enough, the room that they leave is allowed.
        ((1.0, 1.0, 1.0), 0.01, 19, RULE, "unclear", FEW),
        ((1.0, 1.0, 1.49), 0.01, 20, RULE, "monosemantic", ""),
        ((1.2, 1.0, 1.45), 0.01, 40, RULE, "unclear", "1.35 meanings inside"),
        ((3.0, 2.0, 4.0), 0.01, 9, RULE, "polysemantic", ""),
    ],
)
def test_every_branch(
    number: tuple[float, float, float], p: float, examples: int, rule: Rule, verdict: str, why: str
) -> None:
    """Of neurons that fire; one that never does is inactive, whatever its number is."""
    parts = (np.full(2, part) for part in (*number, 5.0, p))
    told, reasons = verdicts(np.array([True, False]), np.full(2, examples), Estimate(*parts), rule)
    assert told.tolist() == [verdict, "inactive"]
    assert why in reasons[0]
    assert [bool(reason) for reason in reasons] == [verdict == "unclear", False]


def test_what_examples_leave_possible() -> None:
    """Of a group with the share s, n examples show none with the chance (1 − s)ⁿ = .05; what the manual says of it."""
    n = np.array([8, 20, 40])
    share = unseen_share(n)
    assert allclose((1 - share) ** n, np.full(3, 0.05))
    assert allclose(unseen_number(n), np.exp([stats.entropy([s, 1 - s]) for s in share]))
    assert unseen_number(np.array([0, 1, 2, 20, 32])).round(2).tolist() == [2.0, 2.0, 2.0, 1.5, 1.35]
    assert (RULE.above, RULE.examples, RULE.enough, RULE.alpha) == (1.35, 8, 20, 0.05)


@pytest.mark.parametrize(("count", "total"), [(0, 10), (3, 10), (10, 10), (45, 1000)])
def test_share_interval_is_wilsons(count: int, total: int) -> None:
    assert allclose(share_interval(count, total), stats.binomtest(count, total).proportion_ci(method="wilson"))
    assert np.isnan(share_interval(0, 0)).all()


@pytest.mark.parametrize(
    "settings", [{"above": 1.0}, {"above": NAN}, {"enough": 1}, {"examples": 1}, {"alpha": 0.0}, {"alpha": 1.0}]
)
def test_senseless_rules(settings: dict[str, Any]) -> None:
    with refuses(InputError, ValueError, *settings, *map(str, settings.values())):
        Rule(**settings)
