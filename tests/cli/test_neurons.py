"""Commands about neurons and weights: what of them no contract of ``test_operations.py`` holds."""

from __future__ import annotations

import shutil
from pathlib import Path

import pandas as pd
import pytest

import ffnmem as fm
from ffnmem.neurons.measuring import file_of
from ffnmem.scanning import Store, open_store

from ..describing.known import answer_knowing
from ..scanning.texts import tiny_texts
from .running import csv, data, mistake, run, table


@pytest.fixture
def as_tiny(tiny: fm.Model, monkeypatch: pytest.MonkeyPatch) -> fm.Model:
    """Commands get the model that is loaded already: its name is no place of a disk."""
    monkeypatch.setattr(fm, "load", lambda *_, **__: tiny)
    return tiny


# -- cards of neurons --------------------------------------------------------------------------------------------------


def test_pages_are_shaded_where_the_model_is_there(tiny_store: Store, tiny_folder: Path, tmp_path: Path) -> None:
    """One line says that they are not, and why."""
    store = fm.scan(fm.load(str(tiny_folder)), tiny_texts(), tmp_path / "store", k=3, sample=8, draws=4, frequent=8)
    page, card = tmp_path / "a page.html", ("neuron", "1.5", "--store", store.folder)
    run(*card, "--html", page)
    assert "<i " in page.read_text("utf-8")
    line, _ = run("neuron", "1.5", "--html", page, "--store", tiny_store.folder).stderr.splitlines()
    assert line.startswith("ffnmem: warning: ")
    assert tiny_store.model in line
    assert "<i " not in page.read_text("utf-8")
    run("neuron", "1.5,0.3", "--store", tiny_store.folder, "--html", page)
    assert "2 neurons of" in page.read_text("utf-8")
    found = data(*card, "--top", 1, "--shade")
    expected = store.shaded([store.neuron(1, 5, kind=("top", "quantile"), k=1)], listed=1)[0]
    assert found["passages"].keys() == {str(n) for n in expected.passages}
    assert table(*card, "--shade") == table(*card)  # no terminal


def test_a_store_without_the_tokens_of_values(tiny_folder: Path, tmp_path: Path) -> None:
    """The same card and search as of one that has them, if the model is there; one that was moved is named."""
    moved, text = tmp_path / "moved", tmp_path / "text.txt"
    shutil.copytree(tiny_folder, tmp_path / "here")
    text.write_text("The Eiffel Tower is in the city of Paris.")
    bare, whole = tmp_path / "bare", tmp_path / "full"
    for store, option in ((bare, ("--no-project",)), (whole, ())):
        run("scan", text, "--out", store, "--model", tmp_path / "here", *option, "--json")
    assert table("neuron", "1.17", "--store", bare).replace("bare", "full") == table("neuron", "1.17", "--store", whole)
    assert not (bare / "values.parquet").exists()
    (tmp_path / "here").rename(moved)
    assert data("neuron", "1.17", "--store", bare)["values"] == []
    assert "need the model" in table("neuron", "1.17", "--store", bare)
    mistake("search", "e", "--store", bare, named=("need the model", "--model"))
    assert len(data("neuron", "1.17", "--store", bare, "--model", moved)["values"]) == 20
    mistake("neuron", "1.17", "--store", bare, "--model", "atlas", named=("is a store of",))
    search = [table("search", "e", "--store", store, "--model", moved) for store in (bare, whole)]
    assert search[0] == search[1]
    found, expected = (pd.read_parquet(store / "values.parquet") for store in (bare, whole))
    pd.testing.assert_frame_equal(found, expected)


# -- verdicts and descriptions -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def surveyed(tiny: fm.Model, tiny_store: Store, tmp_path_factory: pytest.TempPathFactory) -> Store:
    store = open_store(shutil.copytree(tiny_store.folder, tmp_path_factory.mktemp("cli") / "tiny"))
    fm.polysemanticity(store, tiny)
    return store


def test_a_survey_needs_a_model_where_nothing_is_kept(
    surveyed: Store, tiny: fm.Model, tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The card of a neuron has its verdict, or says how to get it; of one that never fires there is nothing to draw."""
    asked = ("--store", surveyed.folder)
    with monkeypatch.context() as patch:
        patch.setattr(fm, "load", None)
        whole, one = fm.polysemanticity(surveyed), fm.meanings(surveyed, 1, 5)
        found = data("polysemanticity", *asked, "--verdict", "unclear", "--top", 2)
        assert [row["verdict"] for row in found["neurons"]] == ["unclear"] * 2
        assert found["verdict"] == whole.verdict
        assert data("meanings", "1.5", *asked, "--full")["meanings"] == one.to_dict()["meanings"]
        assert one.label.capitalize() in table("neuron", "1.5", *asked)
        only = csv("polysemanticity", *asked, "--layers", -1, "--verdict", "inactive", "--full")
        assert len(only) == surveyed.stats(1)["dead"].sum()
    dead = surveyed.stats(1).query("dead")["neuron"].iloc[0]
    file = ("--plot", tmp_path / "a.svg")
    mistake("meanings", f"1.{dead}", *asked, *file, named=("no examples to draw",))
    run("meanings", "1.5", *asked, "--model", tiny_folder, *file)
    assert "cosine of whitened inputs" in (tmp_path / "a.svg").read_text("utf-8")
    own = shutil.copytree(surveyed.folder, tmp_path / "own", ignore=shutil.ignore_patterns("polysemanticity*"))
    given = ("--store", own, "--model", tiny_folder, "--draws", 20)
    assert "where its coefficient is negative" in table("meanings", "1.5", *given, "--sign", "negative")
    printed = csv("polysemanticity", *given, "--seed", 3, "--above", 1.5, "--budget", 0, "--full")
    rule = fm.neurons.Rule(above=1.5)
    expected = fm.polysemanticity(fm.open_store(own), tiny, draws=20, seed=3, rule=rule, budget=None)
    assert file_of(fm.open_store(own), "positive").is_file()
    assert printed["verdict"].tolist() == expected.neurons["verdict"].tolist()


def test_descriptions(atlas_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model of --reader is asked, in its own precision; what its file has is not asked again."""
    asked, loaded = [], []

    def ask(question: str) -> str:
        asked.append(question)
        return answer_knowing(question)

    monkeypatch.setattr(fm, "load", lambda name, **options: loaded.append((name, options["dtype"])))
    monkeypatch.setattr(fm.describing, "ask_model", lambda model: ask)
    command = ["describe", "3.17", "--store", atlas_store.folder, "--reader", "some-model", "--dtype", "bfloat16"]
    command += ["--out", tmp_path / "answers.jsonl"]
    found = data(*command, "--full")
    assert loaded[0] == ("some-model", "bfloat16")
    assert found["table"][0]["neuron"] == 17
    assert len(found["answers"]) == len(asked) > 2
    count = len(asked)
    assert csv(*command)["n"].tolist() == [found["table"][0]["n"]]
    assert len(asked) == count


# -- projections and lenses --------------------------------------------------------------------------------------------


def test_a_lens(
    tiny: fm.Model, tiny_folder: Path, tiny_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by its name where it is kept, or by its file, which may be a published one; it reads values alone."""
    monkeypatch.setenv("FFNMEM_CACHE", str(tmp_path / "cache"))
    corpus, made, shared = tmp_path / "corpus.txt", tmp_path / "lens.safetensors", tmp_path / "lens.pt"
    corpus.write_text("The Eiffel Tower is in the city of Paris\n\nThe city of Rome is in London\n", "utf-8")
    model, fit = ("--model", tiny_folder), ("lens", corpus, "--model", tiny_folder, "--context", 16)
    asked = ("project", "0.5", *model, "--lens")
    mistake(*asked, "jacobian", named=("no Jacobian lens", "ffnmem lens"))
    assert tiny.fingerprint in run(*fit, "--half").stderr  # the name of the file
    rows = data(*asked, "jacobian")["tokens"]
    assert rows == fm.project(tiny, 0, 5, lens="jacobian").to_frame().to_dict("records")
    assert {row["side"] for row in rows} == {"value"}
    assert "lens jacobian" in table(*asked, "jacobian", width=120)
    assert set(csv("token", " Paris", *model, "--lens", "jacobian")["lens"]) == {"jacobian"}

    assert str(shared) in run(*fit, "--pages", 2, "-o", made, "--export", shared).stderr
    assert data(*asked, shared)["tokens"] == fm.project(tiny, 0, 5, lens=shared).to_frame().to_dict("records")
    for file in (made, shared):
        mistake("project", "0.5", "--lens", file, named=("other weights",))
    mistake(*asked, made, "--side", "key", named=("values",))
    card = data("neuron", "0.5", "--store", tiny_store.folder, "--lens", made, *model)
    assert card["lens"] == "jacobian"
    run("report", "The city of", *model, "--lens", made, "--html", tmp_path / "report.html")
    assert "jacobian (" in (tmp_path / "report.html").read_text("utf-8")


# -- weights -----------------------------------------------------------------------------------------------------------


def test_anatomy_loads_no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest model would take as long as its weights."""
    monkeypatch.setattr("ffnmem.models.loading.read_checkpoint", None)
    assert "6,344,704" in table("anatomy", "atlas")
