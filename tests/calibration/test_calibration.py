"""The result of a calibration: its tables, its shares, plain values."""

from __future__ import annotations

import json
import math

import numpy as np
import pandas as pd
import pytest

from ffnmem.calibration.calibration import TABLES, Calibration
from ffnmem.errors import InputError
from tests.calibration.made import made
from tests.helpers import refuses


def test_tables_are_those_that_there_are() -> None:
    assert tuple(made().tables) == TABLES
    some = Calibration(roles=made().roles, settings={"seeds": [7]})
    assert list(some.tables) == ["roles"]
    assert repr(some) == "Calibration(roles; seeds 7)"
    assert repr(made()) == f"Calibration({', '.join(TABLES)}; seeds 7, 8)"


def test_shares_are_of_the_planted_number() -> None:
    found = made()
    assert found.verdicts is not None
    assert found.false_polysemantic == 2 / 20
    assert found.share(1, "monosemantic") == 15 / 20
    assert found.share(8, "polysemantic") == 1
    assert found.share(0, "dead") == 1
    assert np.isnan(found.share(5, "dead"))
    with refuses(InputError, ValueError, "'alive'", "'monosemantic'"):
        found.share(1, "alive")
    assert np.isnan(Calibration().false_polysemantic)


def test_plain_values() -> None:
    found = made()
    values = json.loads(json.dumps(found.as_dict()))
    assert list(values) == [*TABLES, "settings"]
    assert values["settings"] == dict(found.settings)
    for name, table in found.tables.items():
        assert [list(row) for row in values[name]] == [list(table.columns)] * len(table)
    assert found.measures is not None
    assert values["measures"][0]["auroc"] == pytest.approx(found.measures.loc[0, "auroc"])
    assert pd.DataFrame(values["verdicts"]).equals(found.verdicts)


def test_random_keys_are_a_baseline() -> None:
    assert made().random_polysemantic == 0.8
    assert math.isnan(Calibration().random_polysemantic)
