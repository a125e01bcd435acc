"""``ffnmem evaluate``: the library's scores, by editor, by layer and one after another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ffnmem as fm
from ffnmem.core.json_values import plain
from ffnmem.evaluation import Decay, Scores, evaluate, made
from ffnmem.facts import write_facts
from ffnmem.show.records import csv_text

from ..evaluation.made import FACTS, NO_TARGET, random_edits, tiny_moment
from ..helpers import allclose
from .running import data, mistake, run, table


@pytest.fixture(scope="module")
def files(tiny: fm.Model, tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ...]:
    """Arguments with a model, facts and a second moment of its own."""
    folder = tmp_path_factory.mktemp("evaluate")
    write_facts([*FACTS, NO_TARGET], folder / "facts.jsonl")
    tiny_moment(tiny).save(folder / "m.safetensors")
    moment = ("--moment", folder / "m.safetensors", "--settings", "force=true", "--settings", "steps=2")
    return (folder / "facts.jsonl", "--model", tiny_folder, *moment)


def test_scores_are_the_librarys(tiny: fm.Model, files: tuple[Any, ...], tmp_path: Path) -> None:
    """Of the same facts and settings, as JSON, CSV, cases and in the folder; the unedited model's beside them."""
    more = ("--compare", "ft_l", "--compare", "none", "--seed", 3, "-o", tmp_path / "out")
    mine = evaluate(
        tiny, [*FACTS, NO_TARGET], compare=("ft_l", "none"), seed=3, settings={"steps": 2}, moment=files[4], force=True
    )
    found = data("evaluate", *files, *more)
    assert found["means"] == plain(mine.means.to_dict("records"))
    unmade = [row for row in found["failures"] if "is not reached" not in row["failure"]]  # random models say anything
    assert "none" in {row["id"] for row in unmade}
    assert len(Scores.load(tmp_path / "out" / "scores.zip").cases) == 12
    text = run("evaluate", *files, *more, "--csv", "--plot", tmp_path / "s.png")
    assert text.stdout == csv_text(mine.means)
    assert (tmp_path / "s.png").is_file()
    full = data("evaluate", *files, *more, "--full")
    assert len(full["cases"]) == 12
    assert full["relations"] == plain(mine.relations)
    assert "has no new target" in " ".join(table("evaluate", *files, *more).split())


def test_sweep(files: tuple[Any, ...], tmp_path: Path) -> None:
    """Every layer, or one; a layer without scores says why."""
    more = ("-o", tmp_path / "sweep")
    found = data("sweep", *files, *more)
    assert {row["layer"] for row in found["frame"]} == {0, 1}
    assert list((tmp_path / "sweep" / "layer-01").iterdir())
    assert "rome does best in layer" in table("sweep", *files, *more, "--plot", tmp_path / "layers.svg")
    write_facts([NO_TARGET], tmp_path / "none.jsonl")
    none = ("sweep", tmp_path / "none.jsonl", *files[1:], "--layers", 0)
    found = data(*none)
    assert [row["layer"] for row in found["failures"]] == [0]
    assert "no new target" in found["failures"][0]["failure"]
    assert "no new target" in " ".join(table(*none).split())


def test_written_answers(tiny: fm.Model, files: tuple[Any, ...]) -> None:
    """Those of the library, with the other facts of the file to ask about."""
    more = ("--protocol", "generated", "--others", files[0])
    options = {"settings": {"steps": 2}, "moment": str(files[4]), "force": True}
    every = [*FACTS, NO_TARGET]
    mine = evaluate(tiny, every, protocol="generated", others=every, **options)
    full = data("evaluate", *files, *more, "--full")
    assert [row["after"] for row in full["transcripts"]] == mine.transcripts["after"].tolist()
    assert "written" not in full["cases"][0]
    assert "What the model writes" in " ".join(table("evaluate", *files, *more).split())


def test_sequential_goes_on(files: tuple[Any, ...], tmp_path: Path) -> None:
    """Several facts an edit, what the model writes, and its loss on a corpus that was named, kept in a folder."""
    (tmp_path / "text.txt").write_text("Paris is\n\nRome is in\n")
    more = ("--editor", "memit", "--together", "2", "--protocol", "generated", "--collapse", "1e-9")
    more = (*more, "--drift", tmp_path / "text.txt", "-o", tmp_path / "out")
    found = data("sequential", *files, *more, "--at", "2,4")
    assert [step["edits"] for step in found["steps"]] == [0, 2, 4]
    losses = [step["loss"] for step in found["steps"]]
    assert found["collapsed"] == next((2 * i for i, loss in enumerate(losses) if loss - losses[0] > 1e-9), None)
    again = Decay.load(tmp_path / "out" / "decay.zip")
    assert (again.collapsed, again.verdict) == (found["collapsed"], found["verdict"])
    mistake("sequential", *files, *more, "--at", "4", named=("at", "another folder"))


def test_edits_that_are_there_already(tiny: fm.Model, files: tuple[Any, ...], tmp_path: Path) -> None:
    """By the names of their files and folders, beside editors, and of their own facts unless others are named."""
    edits = random_edits(tiny)
    (tmp_path / "mine").mkdir()
    for i, edit in enumerate(edits[:2]):
        edit.save(tmp_path / "mine" / f"{i}.zip")
    one = edits[0].save(tmp_path / "eiffel.zip")
    model = files[1:3]
    found = data("evaluate", tmp_path / "mine", *model, "--editor", tmp_path / "mine", "--compare", one, "--full")
    expected = evaluate(tiny, FACTS[:2], made(edits[:2], "mine"), compare=[made(edits[0], "eiffel")])
    assert list(dict.fromkeys((row["editor"], row["id"]) for row in found["cases"])) == [
        (row.editor, row.id) for row in expected.cases.itertuples()
    ]
    kept = [row["NKL"] for row in found["cases"] if row["NKL"] is not None]
    assert allclose(kept, expected.cases["NKL"].dropna(), 1e-9)
    assert found["failures"][0]["failure"] == "eiffel has no edit of fact 'tower'"
    assert all("is not reached" in row["failure"] for row in found["failures"][1:])
    beside = data("evaluate", *files[:3], "--compare", one, "--editor", "ft_l", "--limit", 1, "--full")
    assert {"setting": "editors", "is": ["ft_l", "eiffel"]} in beside["made_with"]


def test_a_stopped_run_says_where_its_work_is(
    files: tuple[Any, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And promises nothing where nothing is kept."""

    def stop(*_args: Any, **_options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ffnmem.evaluation.evaluating.Bench.table", stop)
    for more in ((), ("-o", tmp_path / "run")):
        found = run("evaluate", *files, *more, status=130)
        assert ("the same call goes on" in found.stderr) == bool(more)


def test_facts_that_are_asked_for(files: tuple[Any, ...]) -> None:
    """A random model knows nothing, and an empty evaluation would look like a bad one; facts of one relation stand
    together in a file, so that a sequence may have an order of its own."""
    mistake("evaluate", *files, "--known", named=("none of the 4 facts", "--known"))
    asked = ("sequential", *files, "--order", "drawn", "--at", "1", "--seed")
    assert len({data(*asked, seed)["failures"][0]["id"] for seed in range(3)}) > 1  # few steps reach nothing
