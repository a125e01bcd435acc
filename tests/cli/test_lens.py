"""``ffnmem lens``, and ``--lens`` of the commands that read values."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

import ffnmem as fm

from .running import csv, data, mistake, run, table

TEXT = "The Eiffel Tower is in the city of Paris\n\nThe city of Rome is in the city of London\n"


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.txt"
    path.write_text(TEXT, "utf-8")
    return path


@pytest.fixture
def made(corpus: Path, tiny_folder: Path, tmp_path: Path) -> Path:
    out = tmp_path / "lens.safetensors"
    run("lens", corpus, "--model", tiny_folder, "--context", 16, "--pages", 2, "-o", out)
    return out


def test_it_is_kept_where_its_name_finds_it(
    corpus: Path, tiny: fm.Model, tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FFNMEM_CACHE", str(tmp_path / "cache"))
    asked = ("project", "0.5", "--model", tiny_folder, "--lens", "jacobian")
    mistake(*asked, named=("no Jacobian lens", "ffnmem lens"))
    told = run("lens", corpus, "--model", tiny_folder, "--context", 16, "--half").stderr
    assert tiny.fingerprint in told
    rows = data(*asked)["tokens"]
    assert rows == fm.project(tiny, 0, 5, lens="jacobian").to_dict("records")
    assert {row["side"] for row in rows} == {"value"}
    assert "lens jacobian" in table(*asked, width=120)
    assert set(csv("project", "token", " Paris", "--model", tiny_folder, "--lens", "jacobian")["lens"]) == {"jacobian"}


def test_all_of_them_and_a_page(
    made: Path, tiny: fm.Model, tiny_folder: Path, tiny_store: fm.scanning.Store, tmp_path: Path
) -> None:
    out = tmp_path / "all.parquet"
    found = data("project", "all", "--out", out, "--lens", made, "--model", tiny_folder, "--top", 2)
    assert found["rows"] == len(pd.read_parquet(out)) == 2 * 64 * 2 * 2
    hits = data("project", "search", "a", "--in", out)["tokens"]
    assert {hit["lens"] for hit in hits} == {"jacobian"}
    card = data("neuron", "0.5", "--store", tiny_store.folder, "--lens", made, "--model", tiny_folder)["neurons"][0]
    assert card["lens"] == "jacobian"
    page = tmp_path / "report.html"
    run("report", "The city of", "--model", tiny_folder, "--lens", made, "-o", page)
    assert "(the jacobian lens)" in page.read_text("utf-8")


def test_mistakes(made: Path, tiny_folder: Path) -> None:
    mistake("project", "0.5", "--lens", made, named=("other weights",))
    mistake("project", "0.5", "--model", tiny_folder, "--lens", made, "--side", "key", named=("values",))
