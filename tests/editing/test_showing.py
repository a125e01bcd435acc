"""Settings as plain values and tables as HTML."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import torch

from ffnmem.editing.showing import cell, plain, table
from ffnmem.errors import InputError
from tests.helpers import refuses


def test_plain() -> None:
    """What comes back from a file must equal what went in."""
    found = plain({"a": (1, np.float64(0.5)), "b": {"c": np.int64(3), "d": None}, "e": Path("x"), "f": float("inf")})
    assert found == {"a": [1, 0.5], "b": {"c": 3, "d": None}, "e": "x", "f": "inf"}
    assert type(found["b"]["c"]) is int
    assert plain(found) == found


def test_plain_names_what_it_refuses() -> None:
    with refuses(InputError, ValueError, "settings.a[1]", "Tensor"):
        plain({"a": [0, torch.ones(2)]})


def test_table() -> None:
    """Text from files runs in notebooks if it is not escaped; rows beyond the limit are counted."""
    frame = pd.DataFrame({"<token>": ["<b>", " Rome", "x"], "loss": [-0.123456, np.nan, 2.0], "n": [1, 2, 3]})
    html = table(frame, rows=2)
    assert "<b>" not in html
    assert "&lt;token&gt;" in html
    assert "−0.1235" in html
    assert "1 more" in html
    assert table(frame.head(0)) == ""


def test_cell() -> None:
    assert cell(None) == "–"
    assert cell(pd.NA) == "–"
    assert cell(True) == "True"
    assert "Rome" in cell(" Rome")
    assert cell(" Rome") != " Rome"
