"""The rule of the verdict, branch by branch."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from ffnmem.cli.polysemanticity import polysemanticity
from ffnmem.core.errors import InputError
from ffnmem.core.types import VERDICTS
from ffnmem.neurons import Rule
from ffnmem.neurons.verdicts import RULE, Estimate, share_interval, unseen_number, unseen_share, verdicts

from ..helpers import REPOSITORY, allclose, refuses

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
        ({"value": 3.0, "low": 2.0, "high": 4.0}, "unclear", "2 meanings inside"),
        ({"value": 1.5, "low": 1.0, "high": 2.1}, "unclear", "2 meanings inside"),
        ({"value": 3.0, "low": 2.1, "high": 4.0, "p": 0.05}, "unclear", "no more alike"),
        ({"value": 1.1, "low": 1.0, "high": 1.5, "p": 0.6}, "unclear", "no more alike"),
        ({"value": 3.0, "low": 2.1, "high": 4.0, "p": NAN}, "unclear", "no more alike"),
        ({"value": 3.0, "low": 2.1, "high": 4.0, "examples": 7}, "unclear", "fewer than 8 examples"),
        ({"value": 3.0, "low": 2.1, "high": 4.0, "examples": 8}, "polysemantic", ""),
        ({"value": NAN, "low": NAN, "high": NAN, "p": NAN, "examples": 1}, "unclear", "fewer than 8"),
        ({"value": 3.0, "low": NAN, "high": NAN}, "unclear", "interval"),
        ({"value": NAN, "low": NAN, "high": NAN, "p": NAN, "examples": 0, "fires": False}, "inactive", ""),
        ({"value": 3.0, "low": 2.1, "high": 4.0, "fires": False}, "inactive", ""),
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
    assert (RULE.above, RULE.examples, RULE.enough, RULE.alpha) == (1.35, 8, 20, 0.05)
    guide = (REPOSITORY / "docs" / "guide" / "polysemanticity.md").read_text("utf-8")
    methods = (REPOSITORY / "docs" / "methods" / "neurons.md").read_text("utf-8")
    for said in (Rule.__doc__, polysemanticity.help, guide, methods):
        assert "examples of one" in " ".join(str(said).split())
    for said in (Rule.__doc__, polysemanticity.help):
        assert "1.50 of 20 examples, 1.35 of 32" in " ".join(str(said).split())
    assert unseen_number(np.array([20, 32])).round(2).tolist() == [1.5, 1.35]


def test_few_examples_of_one_meaning_are_not_monosemantic() -> None:
    """Fewer than enough leave room for another; of enough, the room that they leave by themselves is allowed."""
    told = [judged(1.0, 1.0, float(unseen_number(np.array([n]))[0]), examples=n, rule=RULE) for n in (8, 19, 20, 40)]
    assert told[0] == told[1] == ("unclear", "too few examples, below 20, to rule out another meaning")
    assert told[2] == told[3] == ("monosemantic", "")
    assert judged(1.2, 1.0, 1.45, examples=20, rule=RULE) == ("monosemantic", "")
    assert judged(1.2, 1.0, 1.45, examples=40, rule=RULE)[0] == "unclear"
    assert judged(3.0, 2.0, 4.0, examples=9, rule=RULE) == ("polysemantic", "")


def test_what_examples_leave_possible() -> None:
    """Of a group with the share s, n examples show none with the chance (1 − s)ⁿ = .05."""
    n = np.array([8, 20, 40])
    share = unseen_share(n)
    assert allclose((1 - share) ** n, np.full(3, 0.05))
    assert allclose(unseen_number(n), np.exp([stats.entropy([s, 1 - s]) for s in share]))
    assert unseen_number(np.array([0, 1, 2])).tolist() == [2.0, 2.0, 2.0]
    assert (np.diff(unseen_number(np.arange(4, 41))) < 0).all()


@pytest.mark.parametrize(("count", "total"), [(0, 10), (3, 10), (10, 10), (45, 1000)])
def test_share_interval_is_wilsons(count: int, total: int) -> None:
    expected = stats.binomtest(count, total).proportion_ci(method="wilson")
    assert allclose(share_interval(count, total), expected)


def test_share_of_nothing() -> None:
    assert np.isnan(share_interval(0, 0)).all()


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"above": 1.0}, ("above", "1.0")),
        ({"above": NAN}, ("above", "nan")),
        ({"above": float("inf")}, ("above", "inf")),
        ({"enough": 1}, ("enough", "1")),
        ({"examples": 1}, ("examples", "1")),
        ({"alpha": 0.0}, ("alpha", "0.0")),
        ({"alpha": 1.0}, ("alpha", "1.0")),
    ],
)
def test_mistakes(settings: dict[str, float], named: tuple[str, ...]) -> None:
    with refuses(InputError, ValueError, *named):
        Rule(**settings)  # type: ignore[arg-type]
