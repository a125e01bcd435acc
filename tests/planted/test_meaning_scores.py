"""Scores of measures of polysemanticity on made-up tables whose truth is known, and on a planted model's."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import ffnmem as fm
from ffnmem.core.errors import InputError
from ffnmem.core.types import VERDICTS
from ffnmem.planted import Planted, recovery
from ffnmem.planted.recovery import MEASURES, auroc, meaning_scores, verdict_counts, with_truth
from ffnmem.scanning import Store

from ..helpers import refuses


@pytest.fixture(autouse=True)
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "DRAWS", 40)


@pytest.fixture(scope="module")
def measured(meanings: Planted, meanings_store: Store) -> pd.DataFrame:
    return with_truth(meanings, fm.polysemanticity(meanings_store, meanings.model, draws=20))


def made(seed: int, n: int = 90) -> pd.DataFrame:
    """Every measure is noise but meanings, which is the truth, and ms, which falls with it; a third is dead."""
    rng = np.random.default_rng(seed)
    truth = np.resize([0, 1, 4], n)
    table = pd.DataFrame({name: rng.standard_normal(n) for name in MEASURES} | {"true_meanings": truth})
    return table.assign(meanings=truth + 0.0, ms=-truth + 0.0, verdict=np.resize(["inactive", "monosemantic"], n))


def test_truth_is_joined_by_neuron(meanings: Planted, measured: pd.DataFrame) -> None:
    truth = meanings.truth.set_index(["layer", "neuron"])
    for row in measured.sample(9, random_state=0).to_dict("records"):
        planted = truth.loc[(row["layer"], row["neuron"])]
        assert (row["true_meanings"], row["true_verdict"]) == (planted["meanings"], planted["verdict"])
    some = with_truth(meanings, measured[["layer", "neuron"]].iloc[::-5])
    assert some["neuron"].tolist() == measured["neuron"].iloc[::-5].tolist()
    with refuses(InputError, ValueError, str(len(measured)), "0"):
        with_truth(meanings, measured[["layer", "neuron"]].assign(layer=7))
    with refuses(InputError, ValueError, "'meanings'", "'roles'"):
        with_truth(Planted("roles", meanings.model, meanings.truth, (), {"seed": 0}), measured)


def test_scores_of_made_up_measures() -> None:
    models = [made(seed) for seed in range(2)]
    scores = meaning_scores(models, k=10).set_index("measure")
    assert scores.index.tolist() == list(MEASURES)
    for name in ("meanings", "ms"):  # ms is turned round: many meanings make it small
        assert scores.loc[name, ["auroc", "auroc_low", "spearman", "precision_at_k"]].tolist() == [1, 1, 1, 1]
    alive = [table[table["true_meanings"] > 0] for table in models]
    expected = np.mean([auroc(t["firing_rate"].to_numpy(), t["true_meanings"].to_numpy()) for t in alive])
    assert scores.loc["firing_rate", "auroc"] == pytest.approx(expected)
    assert (scores["neurons"] == 120).all()
    for name in ("auroc", "spearman", "precision_at_k"):
        assert (scores[f"{name}_low"] <= scores[name]).all()
        assert (scores[name] <= scores[f"{name}_high"]).all()
    models[0].loc[models[0].index[1:7], "clusters"] = np.nan  # two of these six are dead
    without = meaning_scores(models[:1]).set_index("measure").loc["clusters"]
    assert without["neurons"] == 56
    assert np.isfinite(without["auroc"])


def test_meanings_recover_the_planted_number(measured: pd.DataFrame) -> None:
    """A small model: a coarse bar. The ones that count are of ``ffnmem calibrate``. Every measure is scored."""
    assert {name.removesuffix("_null") for name in measured.columns if name.endswith("_null")} == set(MEASURES)
    scores = meaning_scores([measured]).set_index("measure")
    assert scores.loc["meanings", "auroc"] > 0.9
    assert scores.loc["meanings", "spearman"] > 0.75


def test_verdict_counts() -> None:
    first = {"true_meanings": [0, 1, 1, 2], "verdict": ["inactive", "monosemantic", "unclear", "polysemantic"]}
    second = {"true_meanings": [1, 8], "verdict": ["monosemantic", "polysemantic"]}
    counts = verdict_counts([pd.DataFrame(first), pd.DataFrame(second)])
    assert list(counts.columns) == ["true_meanings", *VERDICTS]
    assert counts.to_numpy().tolist() == [[0, 0, 0, 0, 1], [1, 2, 0, 1, 0], [2, 0, 1, 0, 0], [8, 0, 1, 0, 0]]
