"""The result of a calibration: its tables, its shares, plain values."""

from __future__ import annotations

import json

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


def test_tables_and_shares() -> None:
    """The tables that there are; shares are of the planted number, and NaN where nothing was planted."""
    found, some = made(), Calibration(roles=made().roles, settings={"seeds": [7]})
    assert (tuple(found.tables), tuple(some.tables)) == (TABLES, ("roles",))
    assert repr(some) == "Calibration(roles; seeds 7)"
    assert repr(found) == f"Calibration({', '.join(TABLES)}; seeds 7, 8)"
    assert found.false_polysemantic == 2 / 20
    shares = [found.share(1, "monosemantic"), found.share(8, "polysemantic"), found.share(0, "inactive")]
    assert shares == [15 / 20, 1, 1]
    assert found.random_polysemantic == 0.8
    assert np.isnan([found.share(5, "inactive"), some.false_polysemantic, some.random_polysemantic]).all()
    with refuses(InputError, ValueError, "'alive'", "'monosemantic'"):
        found.share(1, "alive")


def test_frame_has_every_number_once() -> None:
    """A number with another's name, setting or interval, or none at all; in plain values too."""
    found = made()
    values = json.loads(json.dumps(found.to_dict()))
    assert list(values) == [*TABLES, "settings"]
    assert values["settings"] == dict(found.settings)
    for name, table in found.tables.items():
        pd.testing.assert_frame_equal(pd.DataFrame(values[name]), table, check_dtype=False)
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
    for row in found.tables["measures"].to_dict("records"):
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
    """And no name that a table holds is markup on a page."""
    table = made().tables[name]
    first = table.columns[0]
    found = Calibration(**{name: table.assign(**{first: HOSTILE})}, settings={"seeds": [7], HOSTILE: HOSTILE})
    block, _ = found.sheet().blocks
    assert len(block.rows) == len(table)
    html = found._repr_html_()
    assert [tag for tag in ("<script", "<img") if tag in html] == []
