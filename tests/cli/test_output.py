"""Data: strict JSON, and CSV that reads back."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from ffnmem.core.json_values import plain
from ffnmem.show.records import print_csv, print_json

AWKWARD = ["a,b", 'say "x"', "two\nlines", " leading", "", "ünï☃", "[red]", "\x1b", "NA", "="]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (float("nan"), None),
        (float("-inf"), None),
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (torch.tensor(2), 2),
        (None, None),
        ((1, [2.0, float("inf")]), [1, [2.0, None]]),
        ({1: {"a": np.float64("nan")}}, {"1": {"a": None}}),
    ],
)
def test_plain(value: Any, expected: Any) -> None:
    """NaN and Infinity are no JSON, and many readers refuse them."""
    found = plain(value)
    assert found == expected
    assert type(found) is type(expected)


def test_what_has_no_place() -> None:
    """A type nobody thought of must not be printed as its repr."""
    with pytest.raises(TypeError, match="set"):
        plain({"a": {1}})


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"tokens": AWKWARD, "share": float("nan")})
    out = capsys.readouterr().out
    assert json.loads(out) == {"tokens": AWKWARD, "share": None}
    assert "ünï☃" in out


def test_csv(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"token": token, "n": 0.1, "list": [token], "none": None, "left": 1} for token in AWKWARD]
    print_csv(["n", "token", "list", "none"], rows)
    out = capsys.readouterr().out
    found = list(csv.DictReader(io.StringIO(out, newline="")))
    assert [row["token"] for row in found] == AWKWARD
    assert [json.loads(row["list"]) for row in found] == [[token] for token in AWKWARD]
    assert {(row["n"], row["none"]) for row in found} == {("0.1", "")}
    frame = pd.read_csv(io.StringIO(out), keep_default_na=False)
    assert frame["token"].tolist() == AWKWARD
    assert "\r" not in out


def test_csv_without_rows(capsys: pytest.CaptureFixture[str]) -> None:
    """A reader finds the columns even where there is nothing in them."""
    print_csv(["layer", "neuron"], [])
    assert capsys.readouterr().out == "layer,neuron\n"
