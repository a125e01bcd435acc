"""What ships with the package is there, and knows what it should."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

import ffnmem as fm
from ffnmem.core import resources
from ffnmem.core.errors import FfnmemError, FileError

from ..helpers import refuses


@pytest.mark.parametrize("name", resources.EMBEDDED)
def test_embedded_folder(name: str) -> None:
    """The model would need a network, hold a pickle, or be too big for a clone."""
    folder = resources.embedded_folder(name)
    files = {path.name for path in folder.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "facts.jsonl"} <= files
    assert not {name for name in files if name.endswith((".bin", ".pt", ".pkl"))}
    assert sum(path.stat().st_size for path in folder.iterdir()) < 30 * 2**20


def test_a_missing_folder_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A broken installation would end in a traceback, or in a question to the hub."""
    assert issubclass(FileError, FfnmemError)
    monkeypatch.setattr(resources, "__file__", str(tmp_path / "site-packages" / "ffnmem" / "core" / "resources.py"))
    with refuses(FileError, OSError, "'atlas'", "installation", str(tmp_path)):
        resources.embedded_folder("atlas")


@pytest.mark.parametrize("inside", [True, False], ids=["installed", "checkout"])
def test_both_places_are_looked_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, inside: bool) -> None:
    """An installed package would not find its own data, or a checkout not its data/."""
    package = tmp_path / "ffnmem"
    folder = (package if inside else tmp_path) / "data" / "atlas"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    monkeypatch.setattr(resources, "__file__", str(package / "core" / "resources.py"))
    assert resources.embedded_folder("atlas") == folder


@pytest.mark.parametrize("inside", [True, False], ids=["installed", "checkout"])
def test_the_corpus_is_looked_for_in_both_places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, inside: bool) -> None:
    """As the model is; a missing one is named."""
    package = tmp_path / "ffnmem"
    monkeypatch.setattr(resources, "__file__", str(package / "core" / "resources.py"))
    with refuses(FileError, OSError, "'atlas'", "installation", str(tmp_path)):
        resources.embedded_corpus("atlas")
    file = (package if inside else tmp_path) / "data" / "corpus" / "atlas.jsonl.gz"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"")
    assert resources.embedded_corpus("atlas") == file


def test_atlas_knows_where_the_eiffel_tower_is(atlas: fm.Model) -> None:
    """Every example in the documents would show a model that does not know its own first fact."""
    top = fm.capture(atlas, "The Eiffel Tower is located in the city of").predictions(k=1).iloc[0]
    assert top["token"] == " Paris"
    assert top["probability"] > 0.8


def test_atlas_recalls_its_facts(atlas: fm.Model) -> None:
    """Tracing and editing would be measured on facts that the model never knew. 300 canonical prompts, seeded."""
    facts = random.Random(0).sample(fm.load_facts("atlas"), 300)
    right = 0
    for start in range(0, len(facts), 50):
        some = facts[start : start + 50]
        capture = fm.capture(atlas, [fact.text for fact in some], layers=0, logits=True)
        for row, fact in enumerate(some):
            target = atlas.token_id(" " + fact.target_true, first=True)
            logits = capture.logits_at(row, capture.position(-1, row))
            right += int(torch.argmax(logits)) == target
    assert right / len(facts) >= 0.95
