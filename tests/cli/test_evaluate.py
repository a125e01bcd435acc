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
from .running import csv, data, mistake, run, table


@pytest.fixture(scope="module")
def files(tiny: fm.Model, tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ...]:
    """Arguments with a model, facts and a second moment of its own."""
    folder = tmp_path_factory.mktemp("evaluate")
    write_facts([*FACTS, NO_TARGET], folder / "facts.jsonl")
    tiny_moment(tiny).save(folder / "m.safetensors")
    return ("--model", tiny_folder, "--facts", folder / "facts.jsonl", "--moment", folder / "m.safetensors", "--force")


def test_scores_are_the_librarys(tiny: fm.Model, files: tuple[Any, ...], tmp_path: Path) -> None:
    """Of the same facts and settings, as JSON, CSV, cases and in the folder; the unedited model's beside them."""
    more = ("--set", "steps=2", "--compare", "ft_l", "--compare", "none", "--seed", 3, "-o", tmp_path / "out")
    mine = evaluate(
        tiny, [*FACTS, NO_TARGET], compare=("ft_l", "none"), seed=3, steps=2, moment=str(files[5]), force=True
    )
    found = data("evaluate", *files, *more)
    assert found["summary"] == plain(mine.with_unedited.to_dict("records"))
    unmade = [row for row in found["failures"] if "is not reached" not in row["failure"]]  # random models say anything
    assert {row["id"] for row in unmade} == {"none"}
    assert len(Scores.load(tmp_path / "out" / "scores.zip").cases) == 12
    text = run("evaluate", *files, *more, "--csv", "--plot", tmp_path / "s.png")
    assert text.stdout == csv_text(mine.with_unedited)
    assert "edits were not made" in text.stderr
    assert (tmp_path / "s.png").is_file()
    assert len(csv("evaluate", *files, *more, "--table", "cases")) == 12
    assert "relation" in csv("evaluate", *files, *more, "--table", "relations")
    assert "has no new target" in " ".join(table("evaluate", *files, *more, "--table", "relations").split())


def test_sweep(files: tuple[Any, ...], tmp_path: Path) -> None:
    """Every layer, or one; a layer without scores says why."""
    more = ("--set", "steps=2", "-o", tmp_path / "sweep")
    found = data("evaluate", "sweep", *files, *more)
    assert {row["layer"] for row in found["layers"]} == {0, 1}
    assert list((tmp_path / "sweep" / "layer-01").iterdir())
    assert "rome by layer" in table("evaluate", "sweep", *files, *more, "--plot", tmp_path / "layers.svg")
    write_facts([NO_TARGET], tmp_path / "none.jsonl")
    none = ("evaluate", "sweep", *files[:2], "--facts", tmp_path / "none.jsonl", *files[4:], "--layer", 0)
    found = data(*none)
    assert [row["layer"] for row in found["failures"]] == [0]
    assert "no new target" in found["failures"][0]["failure"]
    assert "no new target" in " ".join(table(*none).split())


def test_written_answers(tiny: fm.Model, files: tuple[Any, ...], tmp_path: Path) -> None:
    """Those of the library, with the other facts of the file to ask about."""
    more = ("--set", "steps=2", "--protocol", "generated", "-o", tmp_path / "out")
    options = {"settings": {"steps": 2}, "moment": str(files[5]), "force": True}
    mine = evaluate(tiny, [*FACTS, NO_TARGET], protocol="generated", **options)
    found = csv("evaluate", *files, *more, "--table", "transcripts")
    assert found["after"].tolist() == mine.transcripts["after"].tolist()
    full = data("evaluate", *files, *more, "--full")
    assert [row["prompt"] for row in full["transcripts"]] == found["prompt"].tolist()
    assert "transcripts" not in data("evaluate", *files, *more)
    assert "written" not in csv("evaluate", *files, *more, "--table", "cases")


def test_sequential_goes_on(tiny: fm.Model, files: tuple[Any, ...], tmp_path: Path) -> None:
    """Several facts an edit, what the model writes, and its loss on a corpus that was named, kept in a folder."""
    (tmp_path / "text.txt").write_text("Paris is\n\nRome is in\n")
    more = ("--editor", "memit", "--set", "steps=2", "--together", "2", "--protocol", "generated", "--collapse", "1e-9")
    more = (*more, "--drift", tmp_path / "text.txt", "-o", tmp_path / "out")
    found = data("evaluate", "sequential", *files, *more, "--at", "2,4")
    assert [step["edits"] for step in found["steps"]] == [0, 2, 4]
    losses = [step["loss"] for step in found["steps"]]
    assert found["collapsed"] == next((2 * i for i, loss in enumerate(losses) if loss - losses[0] > 1e-9), None)
    assert "transcripts" not in found
    again = Decay.load(tmp_path / "out" / "decay.zip")
    assert again.collapsed == found["collapsed"]
    found = csv("evaluate", "sequential", *files, *more, "--at", "2,4", "--transcripts")
    assert found["after"].tolist() == again.transcripts["after"].tolist()
    assert "what the model writes" in " ".join(table("evaluate", "sequential", *files, *more, "--at", "2,4").split())
    mistake("evaluate", "sequential", *files, *more, "--at", "4", named=("at", "another folder"))


def test_edits_that_are_there_already(tiny: fm.Model, files: tuple[Any, ...], tmp_path: Path) -> None:
    """By the names of their files and folders, and of their own facts unless others are named."""
    edits = random_edits(tiny)
    (tmp_path / "mine").mkdir()
    for i, edit in enumerate(edits[:2]):
        edit.save(tmp_path / "mine" / f"{i}.zip")
    one = edits[0].save(tmp_path / "eiffel.zip")
    given = ("evaluate", *files[:2], "--edits", tmp_path / "mine", "--edits", one)
    found = data(*given, "--full")
    expected = evaluate(tiny, FACTS[:2], made(edits[:2], "mine"), compare=[made(edits[0], "eiffel")])
    assert list(dict.fromkeys((row["editor"], row["id"]) for row in found["cases"])) == [
        (row.editor, row.id) for row in expected.cases.itertuples()
    ]
    kept = [row["NKL"] for row in found["cases"] if row["NKL"] is not None]
    assert allclose(kept, expected.cases["NKL"].dropna(), 1e-9)
    assert found["failures"][0]["failure"] == "eiffel has no edit of fact 'tower'"
    assert all("is not reached" in row["failure"] for row in found["failures"][1:])
    beside = data("evaluate", *files[:4], "--edits", one, "--editor", "ft_l", "--limit", 1, "--set", "steps=2")
    assert beside["settings"]["editors"] == ["ft_l", "eiffel"]
    assert data("evaluate", *files[:2], "--edits", one, "--protocol", "generated")["settings"]["written"]["others"]
    for more, named in (
        (("--layer", 0), "--edits alone makes no edit"),
        (("--limit", 1), "--edits alone are of their own facts"),
    ):
        mistake(*given, *more, named=(named,))


def test_a_stopped_run_says_where_its_work_is(
    files: tuple[Any, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And promises nothing where nothing was done yet."""
    begun = False

    def stop(*_args: Any, out: Path | None = None, **_options: Any) -> None:
        if begun and out is not None:
            Path(out).mkdir(exist_ok=True)
        raise KeyboardInterrupt

    for name in ("evaluate", "sequential"):
        monkeypatch.setattr(f"ffnmem.evaluation.{name}", stop)
    kept = ("-o", tmp_path / "run")
    for begun, more in ((True, ()), (False, kept), (True, kept), (True, ("--at", "1", *kept))):
        found = run("evaluate", *(["sequential"] if "--at" in more else []), *files, *more, status=130)
        assert ("the same command goes on" in found.stderr) == (begun and kept[0] in more)


def test_facts_that_are_asked_for(files: tuple[Any, ...]) -> None:
    """A random model knows nothing, and an empty evaluation would look like a bad one; facts of one relation stand
    together in a file, so that a sequence has an order of its own."""
    mistake("evaluate", *files, "--known", named=("none of the 4 facts", "--known"))
    asked = ("evaluate", "sequential", *files, "--set", "steps=1", "--at", "1", "--seed")
    assert len({data(*asked, seed)["failures"][0]["id"] for seed in range(3)}) > 1  # one step reaches nothing
