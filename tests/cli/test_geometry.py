"""``ffnmem geometry``: tables by layer, neurons and pairs as data."""

from __future__ import annotations

import io
from typing import Any

import pandas as pd
import pytest

import ffnmem as fm
from ffnmem.cli.options import ModelChoice
from ffnmem.core.sheets import name_model

from ..helpers import printed
from ..neurons.gated import made
from .running import data, run, table


@pytest.fixture(autouse=True)
def tiny_is_the_model(tiny: fm.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ModelChoice, "load", lambda choice: tiny)


def read(*args: object) -> pd.DataFrame:
    return pd.read_csv(io.StringIO(run("geometry", *args, "--csv").stdout))


def test_the_sheet_is_printed(tiny: fm.Model) -> None:
    found = fm.neurons.geometry(tiny, threshold=0.5, limit=2)
    for width in (80, 120):
        out = table("geometry", "--duplicates", "--threshold", "0.5", "--limit", 2, width=width)
        assert [line.rstrip() for line in out.splitlines()] == printed(name_model(found.sheet(2)), width)
        assert "…" not in out
    assert "near-duplicates" not in table("geometry")


def test_json_has_all(tiny: fm.Model) -> None:
    found = data("geometry", "--layer", 0, "--layer", -1, "--duplicates", "--threshold", 0.5, "--neurons")
    assert [row["layer"] for row in found["layers"]] == [0, 1]
    assert len(found["neurons"]) == 128
    counts = sum(row["pairs"] for row in found["duplicate_counts"] if row["by"] == "key")
    assert counts == fm.neurons.geometry(tiny, threshold=0.5).duplicate_total("key") > 0
    assert found["provenance"]["threshold"] == 0.5
    plain = data("geometry", "--layer", 0)
    assert "neurons" not in plain
    assert plain["duplicates"] is None


# -- gated models ------------------------------------------------------------------------------------------------------


@pytest.fixture
def gated(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> fm.Model:
    model = made("llama", tokenizer)
    monkeypatch.setattr(ModelChoice, "load", lambda choice: model)
    return model


@pytest.mark.parametrize("width", [80, 120])
def test_tables_of_a_gated_model(gated: fm.Model, width: int) -> None:
    out = table("geometry", "--duplicates", "--threshold", "0.5", "--limit", 2, width=width)
    assert [line.rstrip() for line in out.splitlines()] == printed(
        name_model(fm.neurons.geometry(gated, threshold=0.5, limit=2).sheet()), width
    )
    assert "…" not in out


def test_data_of_a_gated_model(gated: fm.Model) -> None:
    found = fm.neurons.geometry(gated, threshold=0.5, limit=4)
    pd.testing.assert_frame_equal(read("--neurons"), found.neurons)
    assert found.duplicates is not None
    pairs = read("--duplicates", "--threshold", 0.5, "--limit", 4)
    pd.testing.assert_frame_equal(pairs, found.duplicates, check_dtype=False)
    assert "gate_cosine" in pairs
    out = " ".join(table("geometry", "--duplicates", "--threshold", "0.999").split())
    assert "no two neurons have keys, values or gates with a cosine above 0.999" in out
