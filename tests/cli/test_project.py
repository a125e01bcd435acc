"""``ffnmem project`` and ``--lens`` of the commands that read values."""

from __future__ import annotations

import copy
from pathlib import Path

import pandas as pd
import pytest

import ffnmem as fm
from ffnmem.vocabulary import read_projection

from .running import csv, data, mistake, run, table


def test_all_says_what_it_wrote(tiny: fm.Model, tiny_folder: Path, tmp_path: Path) -> None:
    """The path by itself on a line, so that it can be copied; the counts are those of the file."""
    out = tmp_path / "one layer.parquet"
    asked = ["project", "all", "--layer", 1, "--out", out, "--model", tiny_folder, "--top", 2, "--side", "value"]
    shown = run(*asked)
    assert shown.stdout.splitlines()[:3] == [f"model  {tiny_folder}", "", str(out)]
    assert "64 neurons, value, 2 + 2 tokens: 256 rows" in shown.stdout
    assert shown.stderr == ""
    rows = read_projection(out)
    expected = fm.project(tiny, 1, k=2, side="value")
    for column in expected.columns:
        assert rows[column].tolist() == expected[column].tolist()
    found = data(*asked)
    assert found["rows"] == len(rows) == 256
    assert found["neurons"] == 64
    assert found["bytes"] == out.stat().st_size
    assert found["provenance"]["basis"] == "folded"
    assert csv(*asked).iloc[0].to_dict() == {name: found[name] for name in ("file", "neurons", "rows", "bytes")}


def test_needs_no_beginning_of_sequence_token(tiny_hf: object, tokenizer: object, tmp_path: Path) -> None:
    """Nothing is read, so a tokenizer without that token must not matter."""
    plain = copy.deepcopy(tokenizer)
    plain.bos_token = None  # type: ignore[attr-defined]
    tiny_hf.save_pretrained(tmp_path)  # type: ignore[attr-defined]
    plain.save_pretrained(tmp_path)  # type: ignore[attr-defined]
    assert run("project", "0.1", "--model", tmp_path, "--csv").stdout


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


def test_a_published_lens_is_a_lens(corpus: Path, tiny: fm.Model, tiny_folder: Path, tmp_path: Path) -> None:
    """--export would write what nothing reads."""
    out, shared = tmp_path / "lens.safetensors", tmp_path / "lens.pt"
    asked = ("lens", corpus, "--model", tiny_folder, "--context", 16, "--pages", 2, "-o", out, "--export", shared)
    assert str(shared) in run(*asked).stderr
    rows = data("project", "0.5", "--model", tiny_folder, "--lens", shared)["tokens"]
    assert rows == fm.project(tiny, 0, 5, lens=shared).to_dict("records")
    mistake("project", "0.5", "--lens", shared, named=("other weights",))
