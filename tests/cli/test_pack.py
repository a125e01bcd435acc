"""``ffnmem pack``: a corpus into a folder, and what was wrong with it."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

import ffnmem as fm
from ffnmem.corpus import open_packed, pack
from ffnmem.corpus.readers import MEANINGS
from ffnmem.corpus.tokenizing import tokenizer_hash

from .running import data, run, table


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.txt"
    path.write_bytes(b"The city of Paris\nRome\n\nbad \xff\n\nnul \x00\n")
    return path


def test_the_same_as_the_library(corpus: Path, tiny: fm.Model, tiny_folder: Path, tmp_path: Path) -> None:
    """With only the tokenizer loaded, so the hash must be that of the model's."""
    found = data("pack", corpus, "--out", tmp_path / "a", "--model", tiny_folder)
    mine = pack(corpus, tiny, tmp_path / "b")
    assert found["hash"] == mine.hash
    assert found["tokenizer_hash"] == mine.tokenizer_hash == tokenizer_hash(tiny)
    assert (found["n_documents"], found["n_tokens"]) == (3, mine.n_tokens)
    assert found["folder"] == str(tmp_path / "a")
    assert [problem["kind"] for problem in found["problems"]] == ["invalid_utf8", "nul"]
    assert (tmp_path / "a" / "tokens.bin").read_bytes() == (tmp_path / "b" / "tokens.bin").read_bytes()
    assert open_packed(tmp_path / "a", tokenizer_hash(tiny)).model == tiny_folder.name


def test_table(corpus: Path, tiny_folder: Path, tmp_path: Path) -> None:
    out = table("pack", corpus, "--out", tmp_path / "a", "--model", tiny_folder)
    assert "documents  3" in out
    for text in ("invalid_utf8", "nul", "corpus.txt:4", "corpus.txt:6", "kept as they are"):
        assert text in out


def test_csv_is_the_problems(corpus: Path, tiny_folder: Path, tmp_path: Path) -> None:
    out = run("pack", corpus, "--out", tmp_path / "a", "--model", tiny_folder, "--csv").stdout
    assert list(csv.DictReader(io.StringIO(out))) == [
        {"kind": "invalid_utf8", "count": "1", "first": "corpus.txt:4", "meaning": MEANINGS["invalid_utf8"]},
        {"kind": "nul", "count": "1", "first": "corpus.txt:6", "meaning": MEANINGS["nul"]},
    ]


def test_documents_and_columns(corpus: Path, tiny_folder: Path, tmp_path: Path) -> None:
    lines = data("pack", corpus, "--documents", "line", "--out", tmp_path / "a", "--model", tiny_folder)
    assert lines["n_documents"] == 4
    (tmp_path / "b.csv").write_text("body,id\none,1\ntwo,2\n")
    rows = data("pack", tmp_path / "b.csv", "--text", "body", "--out", tmp_path / "b", "--model", tiny_folder)
    assert rows["n_documents"] == 2


def test_no_problems(tiny_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("The city")
    assert "problems   none" in table("pack", tmp_path / "a.txt", "--out", tmp_path / "a", "--model", tiny_folder)
