"""``ffnmem edit``: the library's edit, what it does on prompts, the files it leaves, and checkpoints taken back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import ffnmem as fm
from ffnmem.core.errors import InputError
from ffnmem.core.types import EDITORS as NAMES
from ffnmem.core.types import WITHOUT_MOMENT
from ffnmem.evaluation import EDITORS
from ffnmem.evaluation.editors import editor_options

from ..evaluation.made import tiny_moment
from ..helpers import allclose, refuses
from .running import PROMPT, data, mistake, run, saved

EIFFEL = ("edit", "The Eiffel Tower is located in the city of", "Eiffel Tower", " Rome")
TUNED = ("--editor", "ft_l", "--settings", "steps=2")


@pytest.fixture
def on_atlas(atlas: fm.Model, monkeypatch: pytest.MonkeyPatch) -> fm.Model:
    """Commands get the model that is loaded already."""
    monkeypatch.setattr(fm, "load", lambda *_, **__: atlas)
    return atlas


@pytest.fixture
def asked(tiny_folder: Path) -> tuple[object, ...]:
    return ("edit", PROMPT, "Eiffel Tower", " Rome", "--true", "Paris", "--model", tiny_folder)


def test_the_librarys_edit(on_atlas: fm.Model, tmp_path: Path) -> None:
    """The same edit as from a notebook, of the known fact, with its paraphrases and neighbours; saved as it is."""
    fact = next(f for f in fm.load_facts("atlas") if f.text == EIFFEL[1])
    mine, before = fm.rome(on_atlas, fact, " Rome"), on_atlas.fingerprint
    assert isinstance(mine, fm.Edit)
    made = run(*EIFFEL, "-o", tmp_path / "e.zip", "--json", "--full")
    assert made.stderr == f"ffnmem: wrote {tmp_path / 'e.zip'}\n"
    found = data("apply", tmp_path / "e.zip")
    assert "country of' with ' Italy'" in found["doubts"][0]["warning"]  # among what else is known of the tower
    assert found["provenance"]["edit"] == mine.digest == fm.Edit.load(tmp_path / "e.zip").digest
    assert found["verdict"].startswith("The model now says 'Rome' instead of 'Paris' (probability 96.3%")
    kinds = [row["kind"] for row in found["prompts"]]
    assert kinds == ["prompt", *["paraphrase"] * 3, *["neighbour"] * len(fact.neighbours), *["unrelated"] * 4]
    first = found["prompts"][0]
    assert first["target_after"] > 0.5 > first["target_before"]
    assert (first["answer_before"], first["answer_after"]) == (" Paris", " Rome")
    assert found["elsewhere"][0]["texts"] == 20
    assert allclose(found["changes"][0]["of_norm"], mine.numbers["change"][0], 1e-6)
    assert on_atlas.fingerprint == before


def test_a_moment_of_ones_own(asked: tuple[object, ...], tiny: fm.Model, tmp_path: Path) -> None:
    """The way of every model that ships without one: ffnmem moment, then ffnmem edit --moment."""
    tiny_moment(tiny).save(tmp_path / "m.safetensors")
    options = ("--force", "--settings", "steps=3", "--layer", 0, "--seed", 4)
    found = json.loads(
        run(*asked, "--moment", tmp_path / "m.safetensors", *options, "--json", "--full", status=1).stdout
    )
    assert "changes layer 0" in found["doubts"][0]["warning"]
    settings = {row["setting"]: row["is"] for row in found["settings"]}
    assert (settings["steps"], settings["layer"], settings["context_seed"]) == (3, 0, 4)
    assert not found["elsewhere"]


def test_what_the_model_itself_says(asked: tuple[object, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Not taken as the true fact, and scored, where it is no answer."""
    monkeypatch.setattr(
        "ffnmem.facts.questions.generate", lambda model, tokens, new: model.tokenize(" the city", False)
    )
    result = run(*asked[:4], *asked[6:], *TUNED, "--json", status=1)
    assert result.stderr.count("a function word") == 1
    assert json.loads(result.stdout)["prompts"][0]["true_after"] is None


def test_files(tiny: fm.Model, tiny_folder: Path, tmp_path: Path) -> None:
    """A checkpoint with the edit, an adapter, and a page; each named, and a second time refused before any work."""
    saved(tiny, tmp_path / "e.zip")
    files = ("--export", tmp_path / "edited", "--lora", tmp_path / "lora", "--html", tmp_path / "e.html")
    arguments = ("apply", tmp_path / "e.zip", "--model", tiny_folder, *files)
    assert run(*arguments, "--prompts", "The city of the Eiffel Tower is").stderr.count("ffnmem: wrote ") == 3
    assert (tmp_path / "lora" / "adapter_config.json").is_file()
    assert "Eiffel Tower" in (tmp_path / "e.html").read_text("utf-8")
    assert fm.load(str(tmp_path / "edited")).fingerprint != tiny.fingerprint
    mistake(*arguments, named=(tmp_path / "edited", "not empty"))


def test_an_edit_that_is_not_reached(asked: tuple[object, ...], tiny_folder: Path, tmp_path: Path) -> None:
    """What runs next would take it for one that was."""
    found = run(*asked, *TUNED, "-o", tmp_path / "e.zip", "--json", status=1)
    said = json.loads(found.stdout)
    assert "is not reached: with it ' Rome' has a probability of 0." in said["doubts"][0]["warning"]
    assert said["prompts"][0]["target_after"] < 0.5
    assert fm.Edit.load(tmp_path / "e.zip").unreached == (0,)
    assert "is not reached" in run("apply", tmp_path / "e.zip", "--model", tiny_folder, status=1).stdout


def test_several_files_are_one_edit(tiny: fm.Model, atlas: fm.Model, tiny_folder: Path, tmp_path: Path) -> None:
    """The checkpoint is the model with both; an edit of another model is refused."""
    files = tmp_path / "a.zip", tmp_path / "b.zip"
    first, second = (saved(tiny, file, seed=seed) for seed, file in enumerate(files))
    run("apply", *files, "--model", tiny_folder, "--export", tmp_path / "both")
    with (first + second).applied(tiny):
        assert fm.load(str(tmp_path / "both")).fingerprint == tiny.fingerprint
    saved(atlas, files[0])
    mistake("apply", files[0], "--model", tiny_folder, named=("Eiffel Tower",))


def test_names_are_the_librarys() -> None:
    """They stand apart, because the editors need torch."""
    assert tuple(EDITORS) == (*NAMES, "none")
    assert set(WITHOUT_MOMENT) == {name for name, e in EDITORS.items() if e.make is not None}
    assert all(hasattr(fm.editing, name.removesuffix("_original")) for name in NAMES)
    assert all("force" in e.options for name, e in EDITORS.items() if name != "none")


def test_own_options_and_settings() -> None:
    """ft_l has steps of its own; those of others are of v*."""
    for editors, chosen, expected in (
        (["rome"], {"steps": 3, "ridge": 0.1}, {"ridge": 0.1, "settings": {"steps": 3}}),
        (["ft_l"], {"steps": 3}, {"steps": 3}),
        (["memit", "ft_l"], {"layers": 2, "clamp": 2}, {"layers": 2, "settings": {"clamp": 2}}),
    ):
        assert editor_options(editors, chosen) == expected
    found = editor_options(["rome"], layer=0, moment="m", force=True, expert=3)
    assert found == {"layer": 0, "moment": "m", "force": True, "expert": 3}
    for editors, settings, given, named in (
        (["none"], None, {"force": True}, "force"),
        (["ft_l"], {"clamp": 1}, {}, "settings clamp does nothing"),
        (["memit"], None, {"expert": 3}, "expert does nothing"),
    ):
        with refuses(InputError, ValueError, named):
            editor_options(editors, settings, **given)
