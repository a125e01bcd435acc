"""``ffnmem edit``: the library's edit, what it does on prompts, the files it leaves, and checkpoints taken back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import ffnmem as fm
from ffnmem.cli.edit import MOST_DOUBTS, EditorSettings
from ffnmem.cli.options import ModelChoice
from ffnmem.core.errors import InputError
from ffnmem.core.types import EDITORS as NAMES
from ffnmem.core.types import WITHOUT_MOMENT
from ffnmem.evaluation import EDITORS

from ..evaluation.made import tiny_moment
from ..helpers import allclose, refuses
from .running import PROMPT, csv, data, mistake, run, saved

EIFFEL = ("edit", "The Eiffel Tower is located in the city of", "--subject", "Eiffel Tower", "--target", " Rome")
TUNED = ("--editor", "ft_l", "--set", "steps=2", "--unreached")


@pytest.fixture
def on_atlas(atlas: fm.Model, monkeypatch: pytest.MonkeyPatch) -> fm.Model:
    """Commands get the model that is loaded already."""
    monkeypatch.setattr(ModelChoice, "load", lambda choice: atlas)
    return atlas


@pytest.fixture
def asked(tiny_folder: Path) -> tuple[object, ...]:
    given = ("--subject", "Eiffel Tower", "--target", " Rome", "--true", "Paris", "--model", tiny_folder)
    return ("edit", PROMPT, *given)


def test_the_librarys_edit(on_atlas: fm.Model, tmp_path: Path) -> None:
    """The same edit as from a notebook, of the known fact, with its paraphrases and neighbours; saved as it is."""
    fact = next(f for f in fm.load_facts("atlas") if f.text == EIFFEL[1])
    mine, before = fm.rome(on_atlas, fact, " Rome"), on_atlas.fingerprint
    assert isinstance(mine, fm.Edit)
    made = run(*EIFFEL, "-o", tmp_path / "e.zip", "--json")
    moved, wrote = made.stderr.splitlines()
    assert "country of' with ' Italy'" in moved  # among what else is known of the tower
    assert wrote == f"ffnmem: wrote {tmp_path / 'e.zip'}"
    found = data("edit", "apply", tmp_path / "e.zip", warning="1 of 4 prompts about what else is known")
    assert found["edit"]["digest"] == mine.digest == fm.Edit.load(tmp_path / "e.zip").digest
    kinds = [row["kind"] for row in found["prompts"]]
    assert kinds == ["prompt", *["paraphrase"] * 3, *["neighbour"] * len(fact.neighbours), *["unrelated"] * 4]
    first = found["prompts"][0]
    assert first["target_after"] > 0.5 > first["target_before"]
    assert (first["answer_before"], first["answer_after"]) == (" Paris", " Rome")
    assert found["drift"]["texts"] == 20
    assert allclose(found["changes"][0]["change"], mine.numbers["change"][0], 1e-6)
    assert found["memories"]["target"] == " Rome"
    assert on_atlas.fingerprint == before


def test_a_moment_of_ones_own(asked: tuple[object, ...], tiny: fm.Model, tmp_path: Path) -> None:
    """The way of every model that ships without one: ffnmem moment, then ffnmem edit --moment."""
    tiny_moment(tiny).save(tmp_path / "m.safetensors")
    options = ("--force", "--set", "steps=3", "--layer", 0, "--seed", 4, "--full", "--unreached")
    found = data(*asked, "--moment", tmp_path / "m.safetensors", *options, warning="changes layer 0")
    assert found["warnings"][0] == found["edit"]["warnings"][0]
    settings = found["edit"]["settings"]
    assert (settings["steps"], settings["layer"], settings["context_seed"]) == (3, 0, 4)
    assert not found["drift"]
    more = ("--paraphrase", "The city of the Eiffel Tower is", "--neighbour", "London is the city of")
    prompts = csv(*asked, *TUNED, *more)
    assert prompts["kind"].tolist() == ["prompt", "paraphrase", "neighbour"]
    assert prompts["prompt"].tolist() == [PROMPT, more[1], more[3]]


def test_what_the_model_itself_says(asked: tuple[object, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Not taken as the true fact, and scored, where it is no answer."""
    monkeypatch.setattr(
        "ffnmem.facts.questions.generate", lambda model, tokens, new: model.tokenize(" the city", False)
    )
    result = run(*asked[:6], *asked[8:], *TUNED, "--json")
    assert result.stderr.count("a function word") == 1
    assert json.loads(result.stdout)["prompts"][0]["true_after"] is None


def test_files(tiny: fm.Model, tiny_folder: Path, tmp_path: Path) -> None:
    """A checkpoint with the edit, an adapter, and a page; each named, and a second time refused before any work."""
    saved(tiny, tmp_path / "e.zip")
    files = ("--export", tmp_path / "edited", "--lora", tmp_path / "lora", "--html", tmp_path / "e.html")
    arguments = ("edit", "apply", tmp_path / "e.zip", "--model", tiny_folder, *files)
    assert run(*arguments, "--prompt", "The city of the Eiffel Tower is").stderr.count("ffnmem: wrote ") == 3
    assert (tmp_path / "lora" / "adapter_config.json").is_file()
    page = (tmp_path / "e.html").read_text("utf-8")
    assert "Eiffel Tower" in page
    assert "Where the fact was recalled" not in page
    assert fm.load(str(tmp_path / "edited")).fingerprint != tiny.fingerprint
    mistake(*arguments, named=(tmp_path / "edited", "not empty"))
    run(*arguments[:5], "--html", tmp_path / "e.html", "--trace")
    assert "Where the fact was recalled" in (tmp_path / "e.html").read_text("utf-8")


def test_a_thousand_doubts_are_a_few_lines(tiny: fm.Model, tiny_folder: Path, tmp_path: Path) -> None:
    """A saved edit of many facts would push all that it shows out of the terminal."""
    edit, path = saved(tiny, tmp_path / "e.zip"), tmp_path / "doubtful.zip"
    replace(edit, warnings=tuple(f"doubt {i}" for i in range(1000))).save(path)
    found = run("edit", "apply", path, "--model", tiny_folder, "--json")
    assert found.stderr.count("ffnmem: warning: ") == MOST_DOUBTS + 1
    assert f"{len(json.loads(found.stdout)['warnings']) - MOST_DOUBTS:,} more doubts" in found.stderr


def test_an_edit_that_is_not_reached(asked: tuple[object, ...], tiny_folder: Path, tmp_path: Path) -> None:
    """What runs next would take it for one that was; who knows may go on."""
    made = (*asked, *TUNED[:-1], "-o", tmp_path / "e.zip", "--json")
    found = run(*made, status=1)
    assert found.stderr.count("is not reached: with it ' Rome' has a probability of 0.") == 1
    assert json.loads(found.stdout)["prompts"][0]["target_after"] < 0.5
    assert fm.Edit.load(tmp_path / "e.zip").unreached == (0,)
    assert "is not reached" in run(*made, "--unreached").stderr
    assert "is not reached" in run("edit", "apply", tmp_path / "e.zip", "--model", tiny_folder, "--json").stderr
    mistake("edit", "apply", "e", "--unreached", named=("--unreached",))


def test_several_files_are_one_edit(tiny: fm.Model, atlas: fm.Model, tiny_folder: Path, tmp_path: Path) -> None:
    """The checkpoint is the model with both; an edit of another model is refused."""
    files = tmp_path / "a.zip", tmp_path / "b.zip"
    first, second = (saved(tiny, file, seed=seed) for seed, file in enumerate(files))
    run("edit", "apply", *files, "--model", tiny_folder, "--export", tmp_path / "both")
    with (first + second).applied(tiny):
        assert fm.load(str(tmp_path / "both")).fingerprint == tiny.fingerprint
    saved(atlas, files[0])
    mistake("edit", "apply", files[0], "--model", tiny_folder, named=("Eiffel Tower",))


def test_names_are_the_librarys() -> None:
    """They stand apart, because the editors need torch."""
    assert tuple(EDITORS) == (*NAMES, "none")
    assert set(WITHOUT_MOMENT) == {name for name, e in EDITORS.items() if e.make is not None}
    assert all(hasattr(fm.editing, name.removesuffix("_original")) for name in NAMES)
    assert all("force" in e.options for name, e in EDITORS.items() if name != "none")


def test_own_options_and_settings() -> None:
    """ft_l has steps of its own; those of others are of v*."""
    for editors, chosen, expected in (
        (["rome"], [("steps", 3), ("ridge", 0.1)], {"ridge": 0.1, "settings": {"steps": 3}}),
        (["ft_l"], [("steps", 3)], {"steps": 3}),
        (["memit", "ft_l"], [("layers", 2), ("clamp", 2)], {"layers": 2, "settings": {"clamp": 2}}),
    ):
        assert EditorSettings(settings=chosen).arguments(editors) == expected
    assert EditorSettings(moment="m", force=True).arguments(["rome"], 0) == {"layer": 0, "moment": "m", "force": True}
    assert EditorSettings().arguments(["rome"], expert=3) == {"expert": 3}
    for editors, settings, expert, named in (
        (["none"], EditorSettings(force=True), None, "--force"),
        (["ft_l"], EditorSettings(settings=[("clamp", 1)]), None, "--set clamp does nothing"),
        (["memit"], EditorSettings(), 3, "--expert does nothing"),
    ):
        with refuses(InputError, ValueError, named):
            settings.arguments(editors, expert=expert)
