"""``ffnmem study``: the library's tables, in a folder and on the terminal."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

import ffnmem as fm
from ffnmem.core.json_values import plain
from ffnmem.scanning import Store

from ..scanning.texts import tiny_texts
from .running import csv, data, table

FEW = ("--set", "n_sequences=8", "--set", "keys=3", "--set", "prefixes=2", "--set", "updates=2")


@pytest.mark.usefixtures("undrawn")
def test_data_is_the_librarys(tiny: fm.Model, tiny_folder: Path, tiny_store: Store, tmp_path: Path) -> None:
    found = fm.studies.run(
        "geva2021", tiny, tiny_store, tmp_path / "b", seed=4, keys=3, prefixes=2, updates=2, n_sequences=8
    )
    arguments = ("study", "geva2021", "--store", tiny_store.folder, "--model", tiny_folder, "--seed", 4, *FEW)
    given = data(*arguments, "--out", tmp_path / "a")
    assert given["settings"]["seed"] == 4
    assert given["out"] == str(tmp_path / "a")
    assert (tmp_path / "a" / "summary.csv").read_bytes() == (tmp_path / "b" / "summary.csv").read_bytes()
    assert given["summary"] == plain(found.to_frame().to_dict("records"))
    pd.testing.assert_frame_equal(csv(*arguments, "--out", tmp_path / "a"), found.to_frame(), check_dtype=False)
    words = " ".join(table(*arguments, "--out", tmp_path / "a").split())
    assert "The main numbers by layer" in words
    assert "summary.csv," in words
    assert (tmp_path / "a" / "index.html").is_file()


@pytest.mark.usefixtures("undrawn")
def test_from_a_corpus(tiny_folder: Path, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n\n".join(tiny_texts()[:12]), "utf-8")
    out = tmp_path / "out"
    arguments = ("study", "geva2021", "--corpus", corpus, "--out", out, "--model", tiny_folder, "--k", 2, *FEW)
    found = data(*arguments)
    assert fm.open_store(out / "store").settings.k == 2
    assert found["settings"]["prefixes kept by the store"] == 2
    assert data(*arguments) == found
