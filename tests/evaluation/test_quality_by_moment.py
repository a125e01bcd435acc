"""What edits score with a second moment."""

from __future__ import annotations

import pytest

import ffnmem as fm
from ffnmem.core.errors import InputError
from ffnmem.editing import SecondMoment, second_moment
from ffnmem.evaluation import edit_quality, evaluate

from ..helpers import refuses
from .made import EIFFEL, LONDON, TOWER
from .test_evaluating import QUICK

MADE_WITH = {name: QUICK[name] for name in ("contexts", "settings", "layer")}


@pytest.mark.parametrize("metric", ["S", "NKL", "PS"])
def test_scores_are_those_of_an_evaluation(tiny64: fm.Model, moment: SecondMoment, metric: str) -> None:
    """A curve of other numbers than the evaluation's would say nothing about the edits that one makes."""
    facts = [EIFFEL, TOWER]
    quality = edit_quality(tiny64, facts, metric=metric, **MADE_WITH)
    expected = evaluate(tiny64, facts, moment=moment, **QUICK).summary.set_index("metric")["mean"]
    assert quality(moment) == pytest.approx(float(expected[metric]), rel=1e-9)


def test_another_moment_gives_another_score(tiny64: fm.Model, moment: SecondMoment) -> None:
    """v* is found once; the second moment must still decide where the edit goes."""
    other = second_moment(tiny64, ["Paris is in France.", "London Rome Tower city of the"] * 3)
    quality = edit_quality(tiny64, [EIFFEL], metric="NKL", **MADE_WITH)
    assert quality(other) != quality(moment) == quality(moment)


def test_refuses(tiny64: fm.Model, moment: SecondMoment) -> None:
    """What cannot be read off a fact's own prompts, and facts that lack them."""
    with refuses(InputError, ValueError, "'drift_kl'"):
        edit_quality(tiny64, [EIFFEL], metric="drift_kl", **MADE_WITH)
    quality = edit_quality(tiny64, [LONDON], metric="NKL", **MADE_WITH)
    with refuses(InputError, ValueError, "no fact has a prompt for NKL"):
        quality(moment)
