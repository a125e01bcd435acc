"""Reports by a settings file: what it may say, what it writes, and that a run replaces the one before."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest

import ffnmem as fm
from ffnmem.core.errors import FileError, InputError
from ffnmem.pages.settings_file import FORMATS, json_text, read_settings
from ffnmem.scanning import Store

from ..helpers import PROMPT
from .page import Page

ALL = f"""
store = "STORE"
model = "MODEL"
out = "nightly"
formats = ["html", "json", "csv", "md"]
neurons = ["1.5", "0.63"]

[[prompts]]
name = "mine"
prompt = "{PROMPT}"
target = " Paris"
foil = " Rome"

[[prompts]]
prompt = "{PROMPT}"
"""
OUT = 'out = "nightly"\n'


def written(folder: Path, text: str) -> Path:
    path = folder / "nightly.toml"
    path.write_text(text, "utf-8")
    return path


@pytest.fixture
def settings(tiny: fm.Model, tiny_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("ffnmem.pages.settings_file.load", lambda name: {"MODEL": tiny}[name])
    return written(tmp_path, ALL.replace("STORE", str(tiny_store.folder)))


def test_it_writes_what_is_asked_for(settings: Path, tiny: fm.Model) -> None:
    seen: list[tuple[str, int, int]] = []
    folder = fm.pages.reports(settings, progress=lambda *step: seen.append(step))
    assert folder == settings.parent / "nightly", "beside the file, from wherever it is called"
    names = {f"{name}.{form}" for name in ("mine", "prompt-2", "neurons") for form in FORMATS}
    assert {path.name for path in folder.iterdir()} - {".lock"} == names | {"index.html", "reports.json"}
    attribution = fm.attribute(fm.capture(tiny, PROMPT), " Paris", " Rome")
    found = json.loads((folder / "mine.json").read_text("utf-8"))
    assert found == json.loads(json_text(attribution.to_dict(20)))
    table = pd.read_csv(folder / "mine.csv")
    assert table["logit"].tolist() == pytest.approx(attribution.to_frame()["logit"].tolist())
    assert [one["neuron"] for one in json.loads((folder / "neurons.json").read_text("utf-8"))["neurons"]] == [5, 63]
    index = Page((folder / "index.html").read_text("utf-8"))
    links = [attrs["href"] for tag, attrs in index.tags if tag == "a"]
    assert set(links) == names
    assert seen == [("reports", done, 3) for done in (1, 2, 3)]


def test_a_models_path_is_from_the_files_folder(
    tiny: fm.Model, tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The night's job runs in another folder than the day's."""
    (tmp_path / "models").mkdir()
    shutil.copytree(tiny_folder, tmp_path / "models" / "tiny")
    monkeypatch.chdir(tmp_path / "models")
    for model in ("models/tiny", "./models/tiny"):
        file = written(tmp_path, f'{OUT}model = "{model}"\nformats = ["json"]\n[[prompts]]\nprompt = "{PROMPT}"\n')
        folder = fm.pages.reports(file)
    found = json.loads((folder / "prompt-1.json").read_text("utf-8"))
    assert found["provenance"]["fingerprint"] == tiny.fingerprint


@pytest.mark.parametrize(
    ("given", "from_folder"),
    [("./mine", True), ("../mine", True), ("a/b/mine", True), ("mine.gguf", True), ("there", True),
     ("gpt2", False), ("owner/mine", False), ("atlas", False), ("/mine", False)],
)  # fmt: skip
def test_names_of_models_are_no_paths(tmp_path: Path, given: str, from_folder: bool) -> None:
    for name in ("there", "atlas"):
        (tmp_path / name).mkdir()
    asked = read_settings(written(tmp_path, f'{OUT}model = "{given}"\n[[prompts]]\nprompt = "x"\n'))
    assert asked.model == (str(tmp_path / given) if from_folder else given)


def test_neurons_lead_to_the_site(settings: Path, tiny_store: Store) -> None:
    """From where a page lies in the end, not from where it is made."""
    fm.pages.site(tiny_store, settings.parent / "site")
    folder = fm.pages.reports(written(settings.parent, 'site = "site"\n' + settings.read_text("utf-8")))
    page = Page((folder / "mine.html").read_text("utf-8"))
    found = [attrs["href"] for tag, attrs in page.tags if tag == "a" and "site/" in attrs.get("href", "")]
    assert found
    assert all((folder / way).is_file() for way in found), found[0]


def test_a_run_replaces_the_one_before(settings: Path) -> None:
    """What the file no longer asks for goes; what is not ours stays."""
    folder = fm.pages.reports(settings)
    (folder / "mine.txt").write_text("mine")
    text = settings.read_text("utf-8").replace('name = "mine"', 'name = "other"')
    fm.pages.reports(written(settings.parent, text.replace(', "md"]', "]")))
    assert (folder / "mine.txt").exists()
    assert not (folder / "mine.html").exists()
    assert not list(folder.glob("*.md"))
    assert (folder / "other.html").exists()


def test_a_failing_run_leaves_the_one_before(settings: Path) -> None:
    folder = fm.pages.reports(settings)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    text = settings.read_text("utf-8").replace('" Rome"', '""')
    with pytest.raises(InputError):
        fm.pages.reports(written(settings.parent, text))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert not list(folder.parent.glob(".ffnmem*"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("out = ", "is no TOML"),
        ("out = " + "[" * 5000, "is no TOML"),
        ('outt = "a"', r"unknown key 'outt' \(perhaps 'out' was meant\): it takes out, model, store"),
        ('model = "a"', "out is missing"),
        (OUT, "asks for nothing"),
        (OUT + "[[prompts]]\npromt = 'a'", r"\[\[prompts\]\] number 1: unknown key 'promt' \(perhaps 'prompt'"),
        (OUT + "[[prompts]]\ntarget = 'a'", "number 1: prompt is missing: it takes prompt, target, name, foil"),
        (OUT + "[[prompts]]\nprompt = 3", "prompt: Input should be a valid string, not 3"),
        (OUT + "[[facts]]\nprompt = 'a'", "subject is missing"),
        (OUT + 'prompts = ["a"]', "prompts: 0: .*PromptSettings, not 'a'"),
        (OUT + 'neurons = ["3.17"]', "neurons are of a store"),
        (OUT + 'neurons = ["3,17"]', "names no neuron"),
        (OUT + "neurons = [3.17]", "neurons: 0: a neuron's name must be a text, not 3.17"),
        (OUT + 'formats = ["pdf"]', "formats: 0: Input should be 'html', 'json', 'csv' or 'md', not 'pdf'"),
        (OUT + "top = true", "top: Input should be a valid integer, not True"),
        (OUT + "[[prompts]]\nprompt = 'a'\nname = '../x'", "name: String should match pattern .*, not '../x'"),
        (OUT + "[[prompts]]\nprompt = 'a'\nname = '" + "x" * 61 + "'", r"pattern .*\{1,60\}"),
        (OUT + "[[prompts]]\nprompt = 'a'\nname = 'x'\n" * 2, "the name 'x' is there twice"),
        (OUT + "[[prompts]]\nprompt = 'a'\nname = 'Index'", "the name 'index' is that of a file of the reports' own"),
        (OUT + "[[prompts]]\nprompt = 'a'\nname = 'reports'", "'reports' is that of a file of the reports' own"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        read_settings(written(tmp_path, text))
    assert "nightly.toml" in str(caught.value) or "names no neuron" in said
    assert "\n" not in str(caught.value)


def test_other_folders_are_refused(settings: Path) -> None:
    (settings.parent / "nightly").mkdir()
    (settings.parent / "nightly" / "mine.txt").write_text("mine")
    with pytest.raises(FileError, match="other things in it"):
        fm.pages.reports(settings)
    with pytest.raises(FileError, match="cannot be read"):
        fm.pages.reports(settings.parent / "none.toml")
