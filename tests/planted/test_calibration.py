"""The result of a calibration: its tables, its shares, plain values."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from ffnmem.core.errors import InputError
from ffnmem.planted import Calibration
from ffnmem.planted.calibrating import TABLES
from ffnmem.planted.recovery import K

from ..helpers import printed, refuses
from ..pages.hostile import HOSTILE
from .made import made


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
    assert found.share(0, "inactive") == 1
    assert np.isnan(found.share(5, "inactive"))
    with refuses(InputError, ValueError, "'alive'", "'monosemantic'"):
        found.share(1, "alive")
    assert np.isnan(Calibration().false_polysemantic)


def test_plain_values() -> None:
    found = made()
    values = json.loads(json.dumps(found.to_dict()))
    assert list(values) == [*TABLES, "settings"]
    assert values["settings"] == dict(found.settings)
    assert values["roles"][0]["precision"] is None
    for name, table in found.tables.items():
        assert [list(row) for row in values[name]] == [list(table.columns)] * len(table)
    assert found.measures is not None
    assert values["measures"][0]["auroc"] == pytest.approx(found.measures.loc[0, "auroc"])
    assert pd.DataFrame(values["verdicts"]).equals(found.verdicts)


def test_random_keys_are_a_baseline() -> None:
    assert made().random_polysemantic == 0.8
    assert math.isnan(Calibration().random_polysemantic)


def test_frame_has_every_number_once() -> None:
    """A number with another's name, setting or interval, or none at all."""
    found = made()
    frame = found.to_frame()
    assert list(frame.columns) == ["table", "name", "setting", "score", "value", "low", "high"]
    keys = [tuple(map(str, row)) for row in frame[["table", "name", "setting", "score"]].to_numpy()]
    assert len(set(keys)) == len(keys)
    by_key = dict(zip(keys, frame.to_dict("records"), strict=True))
    for name, labels in (
        ("measures", ("measure",)), ("verdicts", ("true_meanings",)), ("nulls", ("measure",)),
        ("curves", ("measure", "superposition")), ("roles", ("role",)), ("facts", ("measure", "site")),
    ):  # fmt: skip
        for record in found.tables[name].to_dict("records"):
            label, setting = (str(record.get(part, "")) for part in (*labels, "none")[:2])
            scores = {k: v for k, v in record.items() if k not in labels and not str(k).endswith(("low", "high"))}
            assert sum(key[:3] == (name, label, setting) for key in keys) == len(scores)
            for score, value in scores.items():
                row = by_key[name, label, setting, str(score)]
                assert str(row["value"]) == str(value)
                ends = ("low", "high") if score in ("rate", "first") else (f"{score}_low", f"{score}_high")
                assert [row["low"], row["high"]] == [record.get(end) for end in ends]


def test_sheet() -> None:
    """A number in the place of another."""
    found = made()
    lines = [line.split() for line in printed(found.sheet())]
    assert found.measures is not None
    for row in found.measures.to_dict("records"):
        ranges = [
            f"{row[name]:.3f} {row[f'{name}_low']:.2f} to {row[f'{name}_high']:.2f}".split()
            for name in ("auroc", "spearman", "precision_at_k")
        ]
        assert [row["measure"], *(word for words in ranges for word in words)] in lines
    assert ["dead", "0", "0", "0", "1,234"] in lines
    assert ["1", "15", "2", "3", "0"] in lines
    assert ["meanings", "1.0%", "0.2%", "to", "3.0%", "346"] in lines
    assert ["dead", "–", "0.00", "30", "39"] in lines
    assert ["ablate", "early", "0.20", "0.05", "to", "0.37", "0.30", "10"] in lines
    words = " ".join(word for line in lines for word in line)
    for part in ("10.0% of monosemantic", "seeds 7, 8 · superposition 1, 1.5 · draws 20", f"precision at {K}"):
        assert part in words


@pytest.mark.parametrize("name", ["verdicts", "nulls", "roles", "facts"])
def test_sheet_of_what_was_asked_for(name: str) -> None:
    sheet = Calibration(**{name: made().tables[name]}, settings={"seeds": [7]}).sheet()
    assert len(sheet.blocks) == 2
    assert len(sheet.blocks[0].rows) == len(made().tables[name])


def test_hostile_names_are_escaped() -> None:
    facts = made().facts
    assert facts is not None
    html = replace(made(), facts=facts.assign(measure=HOSTILE), settings={"standard": 1.5, HOSTILE: HOSTILE})
    assert "<script" not in html._repr_html_()
    assert "<img" not in html._repr_html_()
