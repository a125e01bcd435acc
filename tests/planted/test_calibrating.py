"""The whole of a calibration on the smallest models: its tables, its seeds, its refusals. None on held-out seeds."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import ffnmem as fm
from ffnmem.core.defaults import CALIBRATION_SEEDS
from ffnmem.core.errors import InputError
from ffnmem.core.types import PLANTED_KINDS
from ffnmem.neurons.role_assignment import ROLES
from ffnmem.planted import calibrating, plant, recovery
from ffnmem.planted.calibrating import TABLES, scanned
from ffnmem.planted.recovery import MEASURES, meaning_scores, with_truth

from ..helpers import refuses
from .made import TINY, small_models

Steps = list[tuple[str, int, int]]


@pytest.fixture(scope="module")
def run() -> tuple[fm.planted.Calibration, Steps]:
    """Everything there is, on models of one seed, and what was reported meanwhile."""
    steps: Steps = []
    with pytest.MonkeyPatch.context() as patch:
        small_models(patch)
        found = fm.planted.calibrate(
            seeds=[3, 3], superposition=(1.5, 1.2, 1.5), draws=20, progress=lambda *step: steps.append(step), **TINY
        )
    return found, steps


@pytest.fixture
def found(run: tuple[fm.planted.Calibration, Steps]) -> fm.planted.Calibration:
    return run[0]


def test_every_kind_has_its_tables(found: fm.planted.Calibration) -> None:
    assert tuple(found.tables) == TABLES
    assert found.measures is not None
    assert found.measures["measure"].tolist() == list(MEASURES)
    assert found.roles is not None
    assert found.roles["role"].tolist() == [role.name for role in ROLES]
    assert found.facts is not None
    assert set(found.facts["site"]) == {"early", "late"}
    assert found.nulls is not None
    assert found.nulls["measure"].tolist() == list(MEASURES)
    assert found.verdicts is not None
    assert found.verdicts.drop(columns="true_meanings").to_numpy().sum() == 2 * TINY["neurons"]


def test_progress_counts_models(run: tuple[fm.planted.Calibration, Steps]) -> None:
    """Two superpositions, one of roles, two of facts; a seed or a superposition named twice is one model."""
    assert run[1] == [("calibrate", done, 5) for done in range(1, 6)]


def test_settings(found: fm.planted.Calibration) -> None:
    assert not set(CALIBRATION_SEEDS) & set(range(5))  # on which thresholds were chosen
    assert found.settings == {
        "kinds": list(PLANTED_KINDS), "seeds": [3], "superposition": [1.2, 1.5], "standard": 1.5,
        "above": fm.neurons.Rule().above, "examples": fm.neurons.Rule().examples,
        "enough": fm.neurons.Rule().enough, "alpha": 0.05, "draws": 20, **TINY, "ffnmem": fm.__version__,
    }  # fmt: skip


def test_measures_are_the_curves_at_the_standard(found: fm.planted.Calibration) -> None:
    assert found.curves is not None
    assert found.curves["superposition"].unique().tolist() == [1.2, 1.5]
    standard = found.curves[found.curves["superposition"] == 1.5].drop(columns="superposition").reset_index(drop=True)
    pd.testing.assert_frame_equal(found.measures, standard)


def test_scores_are_those_of_polysemanticity(found: fm.planted.Calibration, monkeypatch: pytest.MonkeyPatch) -> None:
    """Built by hand from the public parts, one model."""
    monkeypatch.setattr(recovery, "DRAWS", 40)
    planted = plant("meanings", seed=3, superposition=1.2, **TINY)
    with scanned(planted) as store:
        table = fm.polysemanticity(store, planted.model, draws=20, seed=3)
    expected = meaning_scores([with_truth(planted, table)])
    assert found.curves is not None
    pd.testing.assert_frame_equal(found.curves.iloc[: len(MEASURES)].drop(columns="superposition"), expected)


def test_roles_are_summed_over_models(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        pd.DataFrame({"role": ["prediction", "dead"], "planted": [4, 0], "found": [5, 0], "hits": [3, 0]}),
        pd.DataFrame({"role": ["prediction", "dead"], "planted": [6, 0], "found": [3, 2], "hits": [3, 0]}),
    ]
    given = iter(rows)
    monkeypatch.setattr(calibrating, "plant", lambda kind, seed: plant("meanings", seed=seed, **TINY, n_layers=1))
    monkeypatch.setattr(calibrating, "roles", lambda model, store: None)
    monkeypatch.setattr(calibrating, "role_scores", lambda planted, table: next(given))
    found = fm.planted.calibrate("roles", seeds=[1, 2]).roles
    assert found is not None
    assert list(found.columns) == ["role", "precision", "recall", "planted", "found", "hits"]
    assert found.iloc[0].tolist() == ["prediction", 6 / 8, 6 / 10, 10, 8, 6]
    assert found.iloc[1].tolist()[:2] == ["dead", 0.0]
    assert np.isnan(found.loc[1, "recall"])


def test_without_the_standard_the_smallest(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    def meanings(seeds: list[int], levels: list[float], standard: float, *rest: object) -> dict[str, pd.DataFrame]:
        asked.append(standard)
        return {}

    monkeypatch.setattr(calibrating, "meanings", meanings)
    fm.planted.calibrate("meanings", seeds=[0], superposition=(2.5, 2.0))
    fm.planted.calibrate("meanings", seeds=[0], superposition=(2.5, 1.5, 1.0))
    assert asked == [2.0, 1.5]


def test_refusals() -> None:
    with refuses(InputError, ValueError, "kind", "'geometry'", "'meanings'"):
        fm.planted.calibrate("geometry")
    with refuses(InputError, ValueError, "kind", "seed", "superposition"):
        fm.planted.calibrate([])
    with refuses(InputError, ValueError, "seed"):
        fm.planted.calibrate(seeds=[])
    with refuses(InputError, ValueError, "seed", "-1"):
        fm.planted.calibrate(seeds=[-1])
    with refuses(InputError, ValueError, "draws", "20", "19"):
        fm.planted.calibrate(draws=19)
    for level in (0.0, float("inf"), float("nan")):
        with refuses(InputError, ValueError, "superposition", f"{level:g}"):
            fm.planted.calibrate(superposition=(1.5, level))
    with refuses(InputError, ValueError, "'seed'", "n_features"):
        fm.planted.calibrate("meanings", seed=3)
    with refuses(InputError, ValueError, "neurons", "'meanings'"):
        fm.planted.calibrate(["roles", "facts"], neurons=48)
