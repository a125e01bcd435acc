"""``ffnmem polysemanticity`` and ``describe``: verdicts on a store, meanings of a neuron, words for it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import ffnmem as fm
from ffnmem.core.defaults import MEANING_BUDGET
from ffnmem.neurons.measuring import file_of
from ffnmem.scanning import Store, open_store

from ..describing.endpoints import said, serving
from .running import csv, data, mistake, run, table


@pytest.fixture(autouse=True)
def loads_tiny(tiny: fm.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model by its name, which is no place of a disk."""
    monkeypatch.setattr("ffnmem.cli.options.ModelChoice.load", lambda choice: tiny)


@pytest.fixture(scope="module")
def surveyed(tiny: fm.Model, tiny_store: Store, tmp_path_factory: pytest.TempPathFactory) -> Store:
    store = open_store(shutil.copytree(tiny_store.folder, tmp_path_factory.mktemp("cli") / "tiny"))
    fm.polysemanticity(store, tiny)
    return store


@pytest.fixture
def no_model(loads_tiny: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ffnmem.cli.options.ModelChoice.load", None)


@pytest.mark.usefixtures("no_model")
def test_survey(surveyed: Store) -> None:
    """Counts that are the table's, and the clearest neurons; and no model where the store has it all."""
    asked = ("polysemanticity", "--store", surveyed.folder, "--verdict", "unclear", "--top", 2)
    out, whole = " ".join(table(*asked).split()), fm.polysemanticity(surveyed)
    assert f"{(whole['verdict'] == 'unclear').sum()}" in out
    assert "the clearest unclear neurons" in out
    assert surveyed.fingerprint in out
    found = data(*asked)
    assert [row["layer"] for row in found["layers"]] == [0, 1]
    assert len(found["neurons"]) == 2
    first = found["neurons"][0]
    one = fm.meanings(surveyed, first["layer"], first["neuron"])
    assert [group["share"] for group in first["groups"]] == one.table["share"].tolist()
    assert found["provenance"]["polysemanticity"]["budget"] == MEANING_BUDGET


def test_measures_and_keeps(tiny_store: Store, tmp_path: Path) -> None:
    store = open_store(shutil.copytree(tiny_store.folder, tmp_path / "own"))
    args = ["polysemanticity", "--store", store.folder, "--draws", 20, "--seed", 3, "--above", 1.5, "--budget", 0]
    printed = csv(*args)
    expected = fm.polysemanticity(store, draws=20, seed=3, rule=fm.neurons.Rule(above=1.5), budget=None)
    assert file_of(store, "positive").is_file()
    assert list(printed.columns) == list(expected.columns)
    assert printed["verdict"].tolist() == expected["verdict"].tolist()
    assert len(printed) == 128


def test_layers_signs_and_verdicts(surveyed: Store) -> None:
    args = ["polysemanticity", "--store", surveyed.folder, "--layer", -1]
    found = csv(*args, "--sign", "both")
    assert set(found["layer"]) == {1}
    assert sorted(set(found["sign"])) == ["negative", "positive"]
    only = csv(*args, "--verdict", "inactive")
    assert set(only["verdict"]) == {"inactive"}
    assert len(only) == surveyed.stats(1)["dead"].sum()


@pytest.mark.usefixtures("no_model")
def test_one_neuron(surveyed: Store) -> None:
    one = fm.meanings(surveyed, 1, 5)
    out = table("polysemanticity", "neurons", "1.5", "--store", surveyed.folder)
    assert f"Neuron 1.5 of {surveyed.model}" in out
    assert out.count("«") == len(one.examples.query("rank <= 5"))
    found = data("polysemanticity", "neurons", "1.5", "--store", surveyed.folder)
    assert found["neurons"][0]["meanings"] == one.to_dict()["meanings"]
    printed = csv("polysemanticity", "neurons", "1.5,0.3", "--store", surveyed.folder, "--top", 1)
    assert set(zip(printed["layer"], printed["neuron"], strict=True)) == {(1, 5), (0, 3)}
    assert set(printed["rank"]) == {1}


def test_one_neuron_of_a_store_without_a_table(tiny_store: Store, tmp_path: Path) -> None:
    store = open_store(shutil.copytree(tiny_store.folder, tmp_path / "own"))
    out = table("polysemanticity", "neurons", "1.5", "--store", store.folder, "--sign", "both", "--draws", 20)
    assert "where its coefficient is negative" in out
    assert "no limit" in out
    assert not file_of(store, "positive").exists()


def test_plots(surveyed: Store, tmp_path: Path) -> None:
    """Of a neuron that never fires there is nothing to draw."""
    dead = surveyed.stats(1).query("dead")["neuron"].iloc[0]
    file = ("--store", surveyed.folder, "--plot", tmp_path / "a.svg")
    mistake("polysemanticity", "neurons", f"1.{dead}", *file, named=("no examples to draw",))
    for words, drawn in (((), "Verdicts on 128 neurons"), (("neurons", "1.5"), "cosine of whitened inputs")):
        run("polysemanticity", *words, *file)
        assert drawn in (tmp_path / "a.svg").read_text("utf-8")


def test_neuron_card_has_it(surveyed: Store, tiny_store: Store) -> None:
    """And says how to get it where it is not there: on the terminal only."""
    one = fm.meanings(surveyed, 1, 5)
    out = table("neuron", "1.5", "--store", surveyed.folder)
    assert f"{one.verdict.capitalize()}" in out
    assert "not measured yet" not in out
    assert data("neuron", "1.5", "--store", surveyed.folder)["neurons"][0]["meanings"][0]["verdict"] == one.verdict
    bare = run("neuron", "1.5", "--store", tiny_store.folder).stdout
    assert f"ffnmem polysemanticity --store {tiny_store.folder}" in bare.replace("\n", "")
    assert data("neuron", "1.5", "--store", tiny_store.folder)["neurons"][0]["meanings"] == []


def test_chance_is_kept_and_told(surveyed: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured once, then told with the verdicts, without a model; judged by the rule that is asked for; and never read
    from a damaged file."""
    own = open_store(shutil.copytree(surveyed.folder, tmp_path / "own"))
    found = data("polysemanticity", "chance", "--store", own.folder, "--draws", 20)
    assert [row["kind"] for row in found["shares"]] == ["own", "matched", "isotropic"]
    assert "random directions that fire as often" in table(
        "polysemanticity", "chance", "--store", own.folder, "--draws", 20
    )
    monkeypatch.setattr("ffnmem.cli.options.ModelChoice.load", None)
    out = " ".join(table("polysemanticity", "--store", own.folder).split())
    assert "verdict shares: monosemantic" in out
    assert "of random directions that fire as often" in out
    told = data("polysemanticity", "--store", own.folder, "--above", 40)["chance"]["positive"]
    assert {row["polysemantic"] for row in told["shares"]} == {0.0}
    assert data("polysemanticity", "--store", own.folder, "--layer", 0)["chance"] == {}
    path = own.folder / "chance-verdicts-positive.zip"
    path.write_bytes(path.read_bytes()[:-9])
    found = run("polysemanticity", "--store", own.folder, "--json")
    assert json.loads(found.stdout)["chance"] == {}
    assert "chance-verdicts-positive.zip is truncated or damaged" in found.stderr


def test_scores(atlas_store: Store) -> None:
    frame = csv("describe", "--store", atlas_store.folder, "3.17", "--score")
    assert frame["fuzzing"].notna().all()
    assert frame["intruder"].isna().all()
    assert "by chance detection 50%" in table(
        "describe", "--store", atlas_store.folder, "3.17", "--score", "--intruder"
    )


def test_an_endpoint(atlas_store: Store, tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    with serving(lambda number, body: said("DESCRIPTION: museums")) as server:
        asked = ["describe", "--store", atlas_store.folder, "3.17", "--endpoint", server.url, "--explainer-model", "m"]
        found = data(*asked, "--out", file)
        assert found["neurons"][0]["description"] == "museums"
        assert found["provenance"]["describe"]["explainer"] == f"m at {server.url}"
        data(*asked, "--out", file)
        assert len(server.requests) == 1
        told = table(*asked, "--rules", "--score")
    assert "judged by m" in " ".join(told.split())
    assert len(file.read_text("utf-8").splitlines()) == 2
    with serving(lambda number, body: (401, {}, b'{"error": {"message": "no"}}')) as server:
        mistake(*asked[:5], server.url, "--explainer-model", "m", named=("401", "no key was sent"))
