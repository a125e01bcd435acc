"""The rule of the verdict, branch by branch."""

from __future__ import annotations

import numpy as np
import pytest

from ffnmem.core.choices import VERDICTS
from ffnmem.core.errors import InputError
from ffnmem.neurons import Rule
from ffnmem.neurons.verdicts import RULE, Estimate, verdicts

from ..helpers import refuses

NAN = float("nan")


def judged(
    value: float,
    low: float,
    high: float,
    p: float = 0.01,
    examples: int = 20,
    fires: bool = True,
    rule: Rule = Rule(above=2.0, examples=8, alpha=0.05),  # noqa: B008 (frozen)
) -> tuple[str, str]:
    parts = (np.array([x], np.float64) for x in (value, low, high, 5.0, p))
    told, why = verdicts(np.array([fires]), np.array([examples]), Estimate(*parts), rule)
    return str(told[0]), str(why[0])


@pytest.mark.parametrize(
    ("given", "verdict", "why"),
    [
        ({"value": 1.1, "low": 1.0, "high": 1.5}, "monosemantic", ""),
        ({"value": 3.0, "low": 2.1, "high": 4.0}, "polysemantic", ""),
        ({"value": 2.0, "low": 1.0, "high": 2.0}, "monosemantic", ""),  # at the limit is not above it
        ({"value": 3.0, "low": 2.0, "high": 4.0}, "unclear", "interval"),
        ({"value": 1.5, "low": 1.0, "high": 2.1}, "unclear", "2 meanings inside"),
        ({"value": 3.0, "low": 2.1, "high": 4.0, "p": 0.05}, "unclear", "no more alike"),
        ({"value": 1.1, "low": 1.0, "high": 1.5, "p": 0.6}, "unclear", "no more alike"),
        ({"value": 3.0, "low": 2.1, "high": 4.0, "p": NAN}, "unclear", "no more alike"),
        ({"value": 3.0, "low": 2.1, "high": 4.0, "examples": 7}, "unclear", "fewer than 8 examples"),
        ({"value": 3.0, "low": 2.1, "high": 4.0, "examples": 8}, "polysemantic", ""),
        ({"value": NAN, "low": NAN, "high": NAN, "p": NAN, "examples": 1}, "unclear", "fewer than 8"),
        ({"value": 3.0, "low": NAN, "high": NAN}, "unclear", "interval"),
        ({"value": NAN, "low": NAN, "high": NAN, "p": NAN, "examples": 0, "fires": False}, "dead", ""),
        ({"value": 3.0, "low": 2.1, "high": 4.0, "fires": False}, "dead", ""),
    ],
)
def test_every_branch(given: dict[str, float], verdict: str, why: str) -> None:
    told, reason = judged(**given)  # type: ignore[arg-type]
    assert told == verdict
    assert told in VERDICTS
    assert why in reason
    assert bool(reason) == (verdict == "unclear")


def test_many_at_once() -> None:
    value = np.array([1.0, 4.0, 4.0])
    estimate = Estimate(value, value, value, value, np.array([0.01, 0.01, 0.9]))
    told, why = verdicts(np.array([True, True, True]), np.array([20, 20, 20]), estimate)
    assert told.tolist() == ["monosemantic", "polysemantic", "unclear"]
    assert why.tolist()[:2] == ["", ""]
    nobody, _ = verdicts(np.zeros(0, bool), np.zeros(0, np.int64), Estimate(*[np.zeros(0)] * 5))
    assert nobody.shape == (0,)


def test_default_is_as_stated() -> None:
    """What the docstring, the manual and the calibration say."""
    assert (RULE.examples, RULE.alpha) == (8, 0.05)
    assert 1 < RULE.above < 2


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"above": 1.0}, ("above", "1.0")),
        ({"above": NAN}, ("above", "nan")),
        ({"above": float("inf")}, ("above", "inf")),
        ({"examples": 1}, ("examples", "1")),
        ({"alpha": 0.0}, ("alpha", "0.0")),
        ({"alpha": 1.0}, ("alpha", "1.0")),
    ],
)
def test_mistakes(settings: dict[str, float], named: tuple[str, ...]) -> None:
    with refuses(InputError, ValueError, *named):
        Rule(**settings)  # type: ignore[arg-type]
