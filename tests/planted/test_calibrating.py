"""The whole of a calibration on the smallest models: its tables, its seeds, its refusals. None on held-out seeds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import ffnmem as fm
from ffnmem.core.defaults import CALIBRATION_SEEDS
from ffnmem.core.errors import InputError
from ffnmem.core.types import PLANTED_KINDS
from ffnmem.neurons.role_assignment import ROLES
from ffnmem.planted import calibrating, plant
from ffnmem.planted.calibrating import TABLES, scanned
from ffnmem.planted.recovery import MEASURES, SITES, meaning_scores, with_truth

from ..helpers import refuses
from .made import TINY, small_models


def test_a_calibration(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kind has its tables; what is named twice is one model; scores are those of the public parts."""
    small_models(monkeypatch)
    steps: list[tuple[str, int, int]] = []
    found = fm.planted.calibrate(
        seeds=[3, 3], superposition=(1.5, 1.2, 1.5), draws=20, progress=lambda *step: steps.append(step), **TINY
    )
    assert steps == [("calibrate", done, 5) for done in range(1, 6)]  # two superpositions, roles, and two of facts
    assert not set(CALIBRATION_SEEDS) & set(range(5))  # on which thresholds were chosen
    rule = fm.neurons.Rule()
    assert found.settings == {
        "kinds": list(PLANTED_KINDS), "seeds": [3], "superposition": [1.2, 1.5], "standard": 1.5,
        "above": rule.above, "examples": rule.examples, "enough": rule.enough, "alpha": 0.05, "draws": 20,
        **TINY, "ffnmem": fm.__version__,
    }  # fmt: skip
    tables = found.tables
    assert tuple(tables) == TABLES
    assert tables["measures"]["measure"].tolist() == tables["nulls"]["measure"].tolist() == list(MEASURES)
    assert tables["roles"]["role"].tolist() == [role.name for role in ROLES]
    assert set(tables["facts"]["site"]) == set(SITES)
    assert tables["verdicts"].drop(columns="true_meanings").to_numpy().sum() == 2 * TINY["neurons"]
    lower, standard = (part.reset_index(drop=True) for _, part in tables["curves"].groupby("superposition"))
    assert lower["superposition"][0] == 1.2
    pd.testing.assert_frame_equal(tables["measures"], standard.drop(columns="superposition"))
    planted = plant("meanings", seed=3, superposition=1.2, **TINY)
    with scanned(planted) as store:
        table = fm.polysemanticity(store, planted.model, draws=20, seed=3)
    pd.testing.assert_frame_equal(lower.drop(columns="superposition"), meaning_scores([with_truth(planted, table)]))


def test_roles_are_summed_over_models(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = iter(
        [
            pd.DataFrame({"role": ["prediction", "dead"], "planted": [4, 0], "found": [5, 0], "hits": [3, 0]}),
            pd.DataFrame({"role": ["prediction", "dead"], "planted": [6, 0], "found": [3, 2], "hits": [3, 0]}),
        ]
    )
    monkeypatch.setattr(calibrating, "plant", lambda kind, seed: plant("meanings", seed=seed, **TINY, n_layers=1))
    monkeypatch.setattr(calibrating, "roles", lambda model, store: None)
    monkeypatch.setattr(calibrating, "role_scores", lambda planted, table: next(rows))
    found = fm.planted.calibrate("roles", seeds=[1, 2]).tables["roles"]
    assert list(found.columns) == ["role", "precision", "recall", "planted", "found", "hits"]
    assert found.iloc[0].tolist() == ["prediction", 6 / 8, 6 / 10, 10, 8, 6]
    assert found.iloc[1].tolist()[:2] == ["dead", 0.0]
    assert np.isnan(found.loc[1, "recall"])


@pytest.mark.parametrize(("levels", "standard"), [((2.5, 2.0), 2.0), ((2.5, 1.5, 1.0), 1.5)])
def test_without_the_standard_the_smallest(
    levels: tuple[float, ...], standard: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(calibrating, "meanings", lambda *given: asked.append(given[2]) or {})
    fm.planted.calibrate("meanings", seeds=[0], superposition=levels)
    assert asked == [standard]


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"kinds": "geometry"}, ("kind", "'geometry'", "'meanings'")),
        ({"kinds": []}, ("kind", "seed", "superposition")),
        ({"seeds": [-1]}, ("seed", "-1")),
        ({"draws": 19}, ("draws", "20", "19")),
        ({"superposition": (1.5, 0.0)}, ("superposition", "0")),
        ({"superposition": (1.5, float("nan"))}, ("superposition", "nan")),
        ({"kinds": "meanings", "seed": 3}, ("'seed'", "n_features")),
        ({"kinds": ["roles", "facts"], "neurons": 48}, ("neurons", "'meanings'")),
    ],
)
def test_refusals(wrong: dict[str, Any], named: tuple[str, ...]) -> None:
    with refuses(InputError, ValueError, *named):
        fm.planted.calibrate(**wrong)
