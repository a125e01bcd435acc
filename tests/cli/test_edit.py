"""``ffnmem edit``: the library's edit, what it does on prompts, and the files it leaves."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

import ffnmem as fm
from ffnmem.cli.edit import MOST_DOUBTS
from ffnmem.cli.options import ModelChoice

from ..helpers import allclose
from .editing import ASKED, TUNED, saved
from .running import PROMPT, mistake, run
from .running import data as json_of

EIFFEL = ("The Eiffel Tower is located in the city of", "--subject", "Eiffel Tower", "--target", " Rome")


@pytest.fixture
def on_atlas(atlas: fm.Model, monkeypatch: pytest.MonkeyPatch) -> fm.Model:
    """Commands get the model that is loaded already."""
    monkeypatch.setattr(ModelChoice, "load", lambda choice: atlas)
    return atlas


def test_the_librarys_edit(on_atlas: fm.Model, tmp_path: Path) -> None:
    """The same edit as from a notebook, of the known fact, with its paraphrases and neighbours; saved as it is."""
    fact = next(f for f in fm.load_facts("atlas") if f.text == EIFFEL[0])
    mine = fm.rome(on_atlas, fact, " Rome")
    assert isinstance(mine, fm.Edit)
    before = on_atlas.fingerprint
    found = run("edit", *EIFFEL, "-o", tmp_path / "e.safetensors", "--json")
    assert found.stderr == f"ffnmem: wrote {tmp_path / 'e.safetensors'}\n"
    given = json_of("edit", "apply", tmp_path / "e.safetensors")
    assert given["edit"]["digest"] == mine.digest == fm.Edit.load(tmp_path / "e.safetensors").digest
    kinds = [row["kind"] for row in given["prompts"]]
    assert kinds == ["prompt"] + ["paraphrase"] * len(fact.paraphrases) + ["neighbour"] * len(fact.neighbours)
    first = given["prompts"][0]
    assert first["target_after"] > 0.5 > first["target_before"]
    assert (first["answer_before"], first["answer_after"]) == (" Paris", " Rome")
    assert given["drift"]["texts"] == 20
    assert allclose(given["changes"][0]["change"], mine.numbers["change"][0], 1e-6)
    assert given["memories"]["target"] == " Rome"
    assert on_atlas.fingerprint == before


def test_rome_with_a_moment_of_ones_own(tiny: fm.Model, tiny_folder: Path, tmp_path: Path) -> None:
    """The way of every model that ships without one: ffnmem moment, then ffnmem edit --moment."""
    from ..evaluation.made import tiny_moment

    tiny_moment(tiny).save(tmp_path / "m.safetensors")
    more = (
        "--moment",
        tmp_path / "m.safetensors",
        "--force",
        "--set",
        "steps=3",
        "--layer",
        0,
        "--seed",
        4,
        "--full",
        "--unreached",
    )
    found = json_of("edit", *ASKED, "--model", tiny_folder, *more, warning="changes layer 0")
    assert "changes layer 0" in found["warnings"][0]
    assert found["warnings"][0] == found["edit"]["warnings"][0]
    settings = found["edit"]["settings"]
    assert (settings["steps"], settings["layer"], settings["context_seed"]) == (3, 0, 4)
    assert not found["drift"]
    named = ("comes without a second moment",)
    mistake("edit", *ASKED, "--model", tiny_folder, named=named)


def test_own_paraphrases_and_neighbours(tiny_folder: Path) -> None:
    more = ("--paraphrase", "The city of the Eiffel Tower is", "--neighbour", "London is the city of")
    found = json_of("edit", *ASKED, *TUNED, "--model", tiny_folder, *more, warning="is not reached")
    rows = [(row["kind"], row["prompt"]) for row in found["prompts"]]
    assert rows == [("prompt", PROMPT), ("paraphrase", more[1]), ("neighbour", more[3])]
    out = run("edit", *ASKED, *TUNED, "--model", tiny_folder, *more, "--csv").stdout
    assert [row["prompt"] for row in csv.DictReader(io.StringIO(out))] == [PROMPT, more[1], more[3]]


def test_files(tiny: fm.Model, tiny_folder: Path, tmp_path: Path) -> None:
    """A checkpoint with the edit, an adapter, and a page; each named, and a second time refused before any work."""
    saved(tiny, tmp_path / "e.safetensors")
    files = ("--export", tmp_path / "edited", "--lora", tmp_path / "lora", "--report", tmp_path / "e.html")
    arguments = ("edit", "apply", tmp_path / "e.safetensors", "--model", tiny_folder, *files)
    assert run(*arguments).stderr.count("ffnmem: wrote ") == 3
    assert (tmp_path / "lora" / "adapter_config.json").is_file()
    assert "Eiffel Tower" in (tmp_path / "e.html").read_text("utf-8")
    assert fm.load(str(tmp_path / "edited")).fingerprint != tiny.fingerprint
    mistake(*arguments, named=(tmp_path / "edited", "not empty"))


def test_an_edit_of_another_model(atlas: fm.Model, tiny_folder: Path, tmp_path: Path) -> None:
    saved(atlas, tmp_path / "e.safetensors")
    mistake("edit", "apply", tmp_path / "e.safetensors", "--model", tiny_folder, named=("Eiffel Tower",))


def test_an_edit_that_is_not_reached(on_atlas: fm.Model, tmp_path: Path) -> None:
    """What runs next would take it for one that was; who knows may go on."""
    made = ("edit", *EIFFEL, "--set", "clamp=0.001", "-o", tmp_path / "e.safetensors", "--json")
    found = run(*made, status=1)
    assert found.stderr.count("is not reached: with it ' Rome' has a probability of 0.") == 1
    assert json.loads(found.stdout)["prompts"][0]["target_after"] < 0.5
    assert fm.Edit.load(tmp_path / "e.safetensors").unreached == (0,)
    assert "is not reached" in run(*made, "--unreached").stderr
    assert "is not reached" in run("edit", "apply", tmp_path / "e.safetensors", "--json").stderr
    mistake("edit", "apply", "e", "--unreached", named=("--unreached",))


def test_a_thousand_doubts_are_a_few_lines(tiny: fm.Model, tiny_folder: Path, tmp_path: Path) -> None:
    """A saved edit of many facts would push all that it shows out of the terminal."""
    edit, path = saved(tiny, tmp_path / "e.safetensors"), tmp_path / "doubtful.safetensors"
    replace(edit, warnings=tuple(f"doubt {i}" for i in range(1000))).save(path)
    arguments = ("edit", "apply", path, "--model", tiny_folder, "--json")
    found = run(*arguments)
    assert found.stderr.count("ffnmem: warning: ") == MOST_DOUBTS + 1
    assert f"{len(json.loads(found.stdout)['warnings']) - MOST_DOUBTS:,} more doubts" in found.stderr
