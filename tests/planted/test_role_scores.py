"""Scores of roles: counted by hand on a made-up table, and at least .9 on a planted model."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import ffnmem as fm
from ffnmem.core.errors import InputError
from ffnmem.neurons.role_assignment import ROLES
from ffnmem.planted import Planted
from ffnmem.planted.recovery import COLUMNS, role_scores
from ffnmem.planted.roles import plant_roles
from ffnmem.scanning import scan

from ..helpers import refuses

SMALL = {"n_layers": 1, "neurons": 63, "per_role": 7, "n_words": 768, "n_tokens": 16_000}


def made(model: fm.Model, kind: str = "roles") -> Planted:
    """Six neurons of one layer: three prediction, one detector, two of nothing."""
    truth = pd.DataFrame(
        {
            "layer": 0,
            "neuron": range(6),
            "role": ["prediction", "prediction", "prediction", "detector", "none", "none"],
            "detail": "",
        }
    )
    return Planted(kind, model, truth, (), {"seed": 0})


def found(**flags: list[int]) -> pd.DataFrame:
    """A table in which the roles named apply to the neurons listed."""
    frame = pd.DataFrame({"layer": 0, "neuron": range(6), "role": "none"})
    for name, neurons in flags.items():
        frame[name] = np.isin(np.arange(6), neurons)
    return frame


def test_counted_by_hand(tiny: fm.Model) -> None:
    """Whatever the order of the rows."""
    table = found(is_prediction=[0, 1, 3, 4], is_token_detector=[3])
    scores = role_scores(made(tiny), table)
    pd.testing.assert_frame_equal(role_scores(made(tiny), table[::-1]), scores)
    assert tuple(scores.columns) == COLUMNS
    rows = scores.set_index("role")
    assert rows.index.tolist() == ["prediction", "token-detector"]
    assert rows.loc["prediction"].tolist() == [2 / 4, 2 / 3, 3, 4, 2]
    assert rows.loc["token-detector"].tolist() == [1, 1, 1, 1, 1]
    other = found(is_dead=[])
    other.attrs["provenance"] = {"fingerprint": "2233"}
    for planted, frame, named in (
        (made(tiny, "facts"), found(is_dead=[]), ("'roles'", "'facts'")),
        (made(tiny), other, ("2233", tiny.fingerprint)),
        (made(tiny), found(is_dead=[]).assign(layer=3), ("6 neurons", "0")),
    ):
        with refuses(InputError, ValueError, *named):
            role_scores(planted, frame)


def test_planted_roles_are_recovered(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Each role that the toolkit tells about, with its default thresholds."""
    planted = plant_roles(seed=100, **SMALL)
    store = scan(planted.model, list(planted.texts), tmp_path_factory.mktemp("planted") / "store")
    scores = role_scores(planted, fm.roles(planted.model, store))
    assert scores["role"].tolist() == [role.name for role in ROLES]
    assert (scores["planted"] == 7).all()
    assert (scores[["precision", "recall"]] >= 0.85).all(axis=None)  # one of seven may be missed by noise's chance
    assert scores[["precision", "recall"]].mean(axis=None) >= 0.95
