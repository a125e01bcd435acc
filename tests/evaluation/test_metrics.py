"""Names of metrics; means over records and their intervals, against numpy."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from ffnmem.core.errors import InputError
from ffnmem.evaluation import METRICS, metrics
from ffnmem.evaluation.metrics import check_metrics, harmonic, summarise
from ffnmem.facts.fact import KINDS

from ..helpers import allclose, refuses

DRAWS = 200


@pytest.fixture(scope="module")
def cases() -> pd.DataFrame:
    generator = np.random.default_rng(5)
    values = generator.random((30, 4))
    values[::7, 2] = np.nan
    return pd.DataFrame(values, columns=["ES", "PS", "NS", "NKL"])


def by_hand(values: np.ndarray, seed: int) -> np.ndarray:
    """Records picked one draw after the other."""
    picked = np.random.default_rng(seed).integers(0, len(values), (DRAWS, len(values)))
    return np.stack([np.nanmean(values[rows], axis=0) for rows in picked])


@pytest.mark.parametrize("at_once", [metrics.AT_ONCE, 100])
def test_equals_numpy(cases: pd.DataFrame, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws of metrics rather than of records, NaN counted as zero, blocks that draw the same records again; S is the
    harmonic mean of the means, not the mean of harmonic means, and so are its draws."""
    monkeypatch.setattr(metrics, "AT_ONCE", at_once)
    values = cases.to_numpy()
    table = summarise(cases, list(cases), DRAWS, 3).set_index("metric")
    assert list(table.index) == ["S", "ES", "PS", "NS", "NKL"]
    means, draws, times = np.nanmean(values, axis=0), by_hand(values, 3), np.array([100, 100, 100, 100, 1])
    both = [np.column_stack([3 / (1 / some[..., :3]).sum(-1), some]) for some in (means[None], draws)]
    assert allclose(table["mean"], both[0][0] * times, 1e-12)
    assert allclose(table[["low", "high"]].T, np.quantile(both[1], (0.025, 0.975), axis=0) * times, 1e-12)
    assert list(table["n"]) == [25, 30, 30, 25, 30]


def test_harmonic() -> None:
    """One score of zero makes S zero, one that is missing makes it missing; ROME on GPT-2 XL as its paper has it."""
    assert list(harmonic(np.array([[0.0, 1.0, 1.0], [0.5, 1.0, 1.0]]))) == [0.0, 0.75]
    assert np.isnan(harmonic(np.array([np.nan, 0.0, 1.0])))
    assert allclose(harmonic(np.array([100.0, 96.4, 75.4])), 89.2, 1e-3)


def test_missing() -> None:
    """A metric without records, or an interval of one, must say so."""
    table = summarise(pd.DataFrame({"ES": [np.nan, 1.0], "PS": [np.nan, np.nan]}), ["ES", "PS"], 50, 0)
    assert list(table["n"]) == [1, 0]
    assert table["mean"].iloc[0] == 100.0
    assert table[["low", "high"]].isna().all(axis=None)
    assert np.isnan(table["mean"].iloc[1])
    assert summarise(pd.DataFrame(), [], 50, 0).empty


def test_differences(cases: pd.DataFrame) -> None:
    """Records of one side only would make a difference out of what was left out; unpaired draws a wide interval."""
    other = cases - 0.1
    other.loc[3, "ES"] = np.nan
    table = summarise(cases, list(cases), DRAWS, 1, minus=other).set_index("metric")
    for name in ("ES", "PS", "NS"):
        assert allclose(table.loc[name, ["mean", "low", "high"]].astype(float), [10.0] * 3, 1e-9)
    assert list(table["n"]) == [25, 29, 30, 25, 30]
    assert table.loc["S", "low"] < table.loc["S", "mean"] < table.loc["S", "high"]


def test_scores_by_the_first_token_and_the_whole_string_have_their_own_mean() -> None:
    """S of another variant, or of parts that were not measured."""
    cases = pd.DataFrame({"ES": [1.0, 1.0], "PS": [1.0, 1.0], "NS": [1.0, 0.0], "ES_sum": [1.0, 1.0]})
    cases = cases.assign(PS_sum=[0.5, 0.5], NS_sum=[0.5, 0.5])
    means = summarise(cases, list(cases), 10, 0).set_index("metric")["mean"]
    assert allclose(means["S"], 75.0, 1e-9)
    assert allclose(means["S_sum"], 60.0, 1e-9)
    assert "S_first" not in means


def test_choice() -> None:
    """An order that depends on how they were asked for, or S without its parts, would make other tables."""
    assert check_metrics(["NS", "ES"], False) == ("ES", "NS")
    assert check_metrics("S", False) == ("ES", "PS", "NS")
    assert "GE" not in check_metrics(None, False)
    assert check_metrics(None, True) == tuple(name for name, metric in METRICS.items() if not metric.written)
    assert check_metrics(["ES"], True) == ("ES", "GE", "RS")
    for wrong, named in ((["ESS"], "NS_plus"), ([], "metrics")):
        with refuses(InputError, ValueError, named):
            check_metrics(wrong, False)


def test_every_kind_of_probe_has_a_metric() -> None:
    assert {metric.asks for metric in METRICS.values()} >= set(KINDS)
