"""``ffnmem trace``, ``silence`` and ``knockout`` of many facts; ``study`` and ``compare``."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pandas as pd
import pytest

import ffnmem as fm
from ffnmem.cli.options import ModelChoice
from ffnmem.core.json_values import plain
from ffnmem.scanning import Store

from ..comparing.made import TEXTS, permuted
from ..editing.edits import made as random_edit
from ..scanning.texts import tiny_texts
from .running import csv, data, mistake, run, table

FACTS = ("facts", "atlas", "--relation", "landmark.city", "--limit", 2)


@pytest.mark.parametrize(
    ("command", "columns"),
    [
        (("trace", *FACTS, "--samples", 2), "kind group layer mean low high n"),
        (("silence", *FACTS, "--known"), "kind group layer loss low high share share_low share_high n"),
        (("knockout", *FACTS, "--known"), "kind group layer share low high loss n"),
    ],
    ids=["trace", "silence", "knockout"],
)
def test_many_facts(
    command: tuple[object, ...], columns: str, atlas: fm.Model, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The means by group. --limit counts those that are known: it would else be a smaller number than asked for."""
    monkeypatch.setattr(ModelChoice, "load", lambda choice: atlas)
    ran = run(*command, "-o", tmp_path / "kept", "--json", "--full", "--plot", tmp_path / "many.png")
    assert ("of these are drawn" in ran.stderr) == ("--known" in command)
    found = json.loads(ran.stdout)
    assert found["n"] == len(found["facts"]) == 2
    assert {row["group"] for row in found["groups"]} >= {"last subject"}
    assert (tmp_path / "many.png").stat().st_size > 10_000
    assert list(pd.read_csv(io.StringIO(run(*command, "-o", tmp_path / "kept", "--csv").stdout))) == columns.split()
    if "--known" not in command:
        mistake(*command, "--window", 1, "-o", tmp_path / "kept", named=("window", "another folder"))


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
    assert given["tables"]["summary"]["rows"] == plain(found.to_frame().to_dict("records"))
    assert given["tables"]["changes"]["rows"] == len(found.table("changes"))
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
    of_store = data("study", "geva2021", "--store", out / "store", "--out", tmp_path / "again", *FEW)
    assert of_store["tables"]["summary"] == found["tables"]["summary"]  # of the model that the store names


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("texts") / "corpus.txt"
    path.write_text("\n\n".join(TEXTS[:30]), "utf-8")
    return path


def test_an_edit(tiny_folder: Path, corpus: Path, tmp_path: Path) -> None:
    """The library's conclusion and what moved most; files are written besides."""
    model = fm.load(tiny_folder)
    edit = random_edit(model, (1,)).save(tmp_path / "edit.zip")
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
