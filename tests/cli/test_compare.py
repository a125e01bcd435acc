"""``ffnmem compare``: the library's numbers in every form, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

import ffnmem as fm

from ..comparing.made import TEXTS, permuted
from ..editing.edits import made as random_edit
from .running import data, run, table


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("texts") / "corpus.txt"
    path.write_text("\n\n".join(TEXTS[:30]), "utf-8")
    return path


@pytest.fixture(scope="module")
def edit(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_edit(fm.load(tiny_folder), (1,)).save(tmp_path_factory.mktemp("edits") / "edit.safetensors")


def test_an_edit(tiny_folder: Path, edit: Path, corpus: Path, tmp_path: Path) -> None:
    """The library's conclusion and what moved most; files are written besides."""
    model = fm.load(tiny_folder)
    mine = fm.compare(model, corpus=corpus, edit=fm.Edit.load(edit))
    asked = ("compare", tiny_folder, "--edit", edit, "--corpus", corpus)
    found = data(*asked, "--top", 3)
    assert found["conclusion"] == mine.conclusion()
    assert [row["neuron"] for row in found["neurons"]] == mine.moved(3)["neuron"].tolist()
    page, figure, kept = (tmp_path / name for name in ("page.html", "figure.png", "kept.safetensors"))
    out = run(*asked, "--html", page, "--plot", figure, "--out", kept)
    assert "64 of 128 neurons changed" in out.stdout
    assert out.stderr.count("wrote") == 2
    pd.testing.assert_frame_equal(fm.comparing.Comparison.load(kept).neurons, mine.neurons)


def test_two_models(tiny_folder: Path, tmp_path: Path, corpus: Path) -> None:
    """A permuted copy has every neuron at another place."""
    copy = fm.load(tiny_folder)
    order = permuted(copy, 0, 1)
    folder = tmp_path / "copy"
    copy.hf_model.save_pretrained(folder)
    copy.tokenizer.save_pretrained(folder)
    found = data("compare", tiny_folder, folder, "--corpus", corpus, "--reach", -1, "--full")
    rows = [row for row in found["neurons"] if row["layer"] == 0]
    assert [row["match_neuron"] for row in rows] == order.tolist()
    assert found["counts"]["permuted"] > 50
    assert "place now, only a text can say" in " ".join(table("compare", tiny_folder, folder).split())
