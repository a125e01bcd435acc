"""``ffnmem geometry``: tables by layer, neurons and pairs as data."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import ffnmem as fm
from ffnmem.cli.options import ModelChoice
from tests.cli.running import data, mistake, run, table
from tests.semantics.gated import made


@pytest.fixture(autouse=True)
def tiny_is_the_model(tiny: fm.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ModelChoice, "load", lambda choice: tiny)


def read(*args: object) -> pd.DataFrame:
    return pd.read_csv(io.StringIO(run("geometry", *args, "--csv").stdout))


@pytest.mark.parametrize("width", [80, 120])
def test_tables_show_the_numbers(tiny: fm.Model, width: int) -> None:
    out = table("geometry", width=width)
    found = fm.geometry(tiny, threshold=None)
    for row in found.layers.to_dict("records"):
        assert f"{row['key_cosine_q999']:.3f}" in out
        assert f"{row['value_max_neuron']}, {row['value_max_other']}" in out
        assert f"{row['value_entropy_rank']:.1f}" in out
        assert f"{row['io_beyond']:.1%}" in out
    assert "of 15 dimensions" in out
    assert found.provenance.fingerprint in out
    assert "near-duplicates" not in out
    assert "…" not in out


def test_csv_is_the_librarys(tiny: fm.Model) -> None:
    found = fm.geometry(tiny, seed=3, threshold=0.5, limit=4)
    for args, frame in (([], found.layers), (["--neurons"], found.neurons)):
        pd.testing.assert_frame_equal(read("--seed", 3, *args), frame)
    pairs = read("--duplicates", "--threshold", 0.5, "--limit", 4)
    assert found.duplicates is not None
    pd.testing.assert_frame_equal(pairs, found.duplicates, check_dtype=False)


def test_json_has_all(tiny: fm.Model) -> None:
    found = data("geometry", "--layer", 0, "--layer", -1, "--duplicates", "--threshold", 0.5, "--neurons")
    assert [row["layer"] for row in found["layers"]] == [0, 1]
    assert len(found["neurons"]) == 128
    counts = sum(row["pairs"] for row in found["duplicate_counts"] if row["by"] == "key")
    assert counts == fm.geometry(tiny, threshold=0.5).duplicate_total("key") > 0
    assert found["provenance"]["threshold"] == 0.5
    assert set(data("geometry", "--layer", 0)) == {"layers", "provenance"}


def test_duplicates_are_listed(tiny: fm.Model) -> None:
    out = table("geometry", "--duplicates", "--threshold", "0.5", "--limit", 2)
    found = fm.geometry(tiny, threshold=0.5, limit=2)
    assert found.duplicates is not None
    best = found.duplicates.iloc[0]
    assert f"{best['layer']}.{best['neuron']}" in out
    assert f"{best['key_cosine']:+.4f}" in out
    assert f"{found.duplicate_total('key'):,} by key" in " ".join(out.split())


def test_no_duplicates_is_said() -> None:
    """An empty table leaves open whether they were sought."""
    out = " ".join(table("geometry", "--duplicates", "--threshold", "0.999").split())
    assert "no two neurons have keys, or values, with a cosine above 0.999" in out
    assert "rank neuron other" not in out


def test_plot(tmp_path: Path) -> None:
    run("geometry", "--layer", 0, "--plot", tmp_path / "geometry.png")
    assert (tmp_path / "geometry.png").read_bytes().startswith(b"\x89PNG")


def test_mistakes(tmp_path: Path) -> None:
    mistake("geometry", "--neurons", named=("--neurons", "--csv"))
    mistake("geometry", "--neurons", "--duplicates", "--csv", named=("one table",))
    mistake("geometry", "--duplicates", "--threshold", 1, named=("threshold", "between 0 and 1"))
    mistake("geometry", "--threshold", 0.5, named=("--threshold", "--duplicates"))
    mistake("geometry", "--limit", 5, named=("--limit", "--duplicates"))
    mistake("geometry", "--layer", 7, named=("layer 7", "0 to 1"))
    mistake("geometry", "--plot", tmp_path / "x.txt", named=("--plot", ".png"))


# -- gated models ------------------------------------------------------------------------------------------------------


@pytest.fixture
def gated(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> fm.Model:
    model = made("llama", tokenizer)
    monkeypatch.setattr(ModelChoice, "load", lambda choice: model)
    return model


@pytest.mark.parametrize("width", [80, 120])
def test_tables_of_a_gated_model(gated: fm.Model, width: int) -> None:
    """Its third side, its three cosines, and all of d_model's dimensions."""
    out = table("geometry", "--duplicates", "--threshold", "0.5", "--limit", 2, width=width)
    found = fm.geometry(gated, threshold=0.5, limit=2)
    for row in found.layers.to_dict("records"):
        assert f"{row['gate_cosine_q999']:.3f}" in out
        assert f"{row['gate_entropy_rank']:.1f}" in out
        for name in ("io", "gate_io", "gate_key"):
            assert f"{row[f'{name}_q50']:+.3f}" in out
    for title in ("key and value", "gate and value", "gate and key"):
        assert f"cosine of a neuron's {title}" in out
    assert "of 16 dimensions" in out
    assert f"{found.duplicate_total('gate'):,} by gate" in " ".join(out.split())
    assert "gate cosine" in " ".join(out.split())
    assert "…" not in out


def test_data_of_a_gated_model(gated: fm.Model) -> None:
    found = fm.geometry(gated, threshold=0.5, limit=4)
    pd.testing.assert_frame_equal(read("--neurons"), found.neurons)
    assert found.duplicates is not None
    pairs = read("--duplicates", "--threshold", 0.5, "--limit", 4)
    pd.testing.assert_frame_equal(pairs, found.duplicates, check_dtype=False)
    assert "gate_cosine" in pairs
    out = " ".join(table("geometry", "--duplicates", "--threshold", "0.999").split())
    assert "no two neurons have keys, values or gates with a cosine above 0.999" in out
