"""Commands that need no prompt: anatomy, geometry, roles, health, activations, calibrate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import ffnmem as fm
from ffnmem.cli.options import ModelChoice
from ffnmem.cli.weights import BETA
from ffnmem.ffn import activations
from ffnmem.neurons.role_assignment import ROLES, role_counts
from ffnmem.scanning import Store

from ..neurons.gated import made as gated_model
from ..planted.made import made as made_calibration
from .running import csv, data, run, table


@pytest.fixture
def as_tiny(tiny: fm.Model, monkeypatch: pytest.MonkeyPatch) -> fm.Model:
    """Commands get the model that is loaded already."""
    monkeypatch.setattr(ModelChoice, "load", lambda choice: tiny)
    return tiny


def test_anatomy_loads_no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest model would take as long as its weights."""
    monkeypatch.setattr(ModelChoice, "load", None)
    monkeypatch.setattr("ffnmem.models.loading.read_checkpoint", None)
    assert run("anatomy").stdout == run("anatomy", "atlas").stdout
    assert "6,344,704" in table("anatomy")


def test_all_of_the_geometry(as_tiny: fm.Model) -> None:
    found = data("geometry", "--layer", 0, "--layer", -1, "--duplicates", "--threshold", 0.5, "--neurons")
    assert [row["layer"] for row in found["layers"]] == [0, 1]
    assert len(found["neurons"]) == 128
    counts = sum(row["pairs"] for row in found["duplicate_counts"] if row["by"] == "key")
    assert counts == fm.neurons.geometry(as_tiny, threshold=0.5).duplicate_total("key") > 0
    plain = data("geometry", "--layer", 0)
    assert "neurons" not in plain
    assert plain["duplicates"] is None


def test_geometry_of_a_gated_model(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    gated = gated_model("llama", tokenizer)
    monkeypatch.setattr(ModelChoice, "load", lambda choice: gated)
    found = fm.neurons.geometry(gated, threshold=0.5, limit=4)
    pd.testing.assert_frame_equal(csv("geometry", "--neurons"), found.neurons)
    pairs = csv("geometry", "--duplicates", "--threshold", 0.5, "--limit", 4)
    pd.testing.assert_frame_equal(pairs, found.duplicates, check_dtype=False)
    out = " ".join(table("geometry", "--duplicates", "--threshold", "0.999").split())
    assert "no two neurons have keys, values or gates with a cosine above 0.999" in out


def test_roles(as_tiny: fm.Model, tiny_store: Store) -> None:
    """Counts, thresholds and settings; without a store none that need text."""
    found = data("roles", "--store", tiny_store.folder, "--top", 1, "--sequences", 9)
    frame = fm.roles(as_tiny, tiny_store, n_sequences=9)
    assert found["layers"] == role_counts(frame).to_dict("records")
    assert found["applies"] == role_counts(frame, flags=True).to_dict("records")
    listed = [row["listed"] for row in found["neurons"]]
    assert listed == [role.name for role in ROLES if frame[role.column].any()]
    assert found["settings"]["sequences_read"] == 9
    found = data("roles", "--basis", "raw")
    assert "dead" not in found["layers"][0]
    assert found["settings"]["basis"] == "raw"


def test_health(tiny: fm.Model, tiny_folder: Path, tmp_path: Path) -> None:
    """The largest alone without --full, all tokens where they are asked for, and both pictures."""
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("The city of Rome\n\nThe Eiffel Tower is in the city of Paris", "utf-8")
    arguments = ("health", corpus, "--model", tiny_folder, "--tokens", "all")
    mine = fm.neurons.neuron_health(tiny, corpus, tokens=None)
    found = data(*arguments, "--top", 2)
    assert found["neurons"] == mine.extremes(2).to_dict("records")
    assert (found["loss"], found["positions"]) == (mine.loss, mine.positions)
    for option in ((), ("--no-flow",)):
        run(*arguments, *option, "--plot", tmp_path / f"{len(option)}.png")
    assert "flow_pre" not in csv(*arguments, "--no-flow")


@pytest.mark.parametrize("width", [60, 80])
def test_many_or_large_points_go_into_further_tables(width: int) -> None:
    """Numbers that a narrow terminal cuts off are lost."""
    points = [str(x) for x in range(-12, 12)]
    out = table("activations", "--at", ",".join(points), "--at", "123456.5", width=width)
    assert "…" not in out
    shown = [word for line in out.splitlines() if " at x = " in line for word in line.split()[4:]]
    assert shown == [*points, "123456"] * 2
    assert "123456.5000" in out


def test_activations_have_formulas_and_a_beta() -> None:
    gelu = data("activations", "gelu", "--at", "1")["activations"][0]
    assert (gelu["name"], gelu["formula"], gelu["beta"]) == ("gelu", "xΦ(x)", None)
    assert gelu["points"] == [{"x": 1.0, "value": pytest.approx(0.8413447), "gradient": pytest.approx(1.0833155)}]
    assert "Swish (β = 0.5)" in table("activations", "swish", "--beta", 0.5)
    assert BETA == activations.BETA, "written twice, because the library's needs torch"


def test_options_of_a_calibration_reach_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def calibrate(kinds: Any, *, progress: Any, **options: Any) -> fm.planted.Calibration:
        asked.append((kinds, options))
        return made_calibration()

    monkeypatch.setattr(fm.planted, "calibrate", calibrate)
    few = ("--superposition", 2, "--superposition", 1.5, "--neurons", 48, "--draws", 30)
    run("calibrate", "--kind", "meanings", "--kind", "roles", "--seed", 7, "--seed", 8, *few)
    options = {"seeds": (7, 8), "superposition": (2.0, 1.5), "draws": 30, "neurons": 48}
    assert asked == [(("meanings", "roles"), options)]
