"""A planted model on disk: whole or not at all, an ordinary model to load, and the same truth again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import ffnmem as fm
from ffnmem.core.errors import FfnmemError, FileError
from ffnmem.planted import Planted

from ..helpers import refuses
from .test_planting import SMALL


@pytest.fixture(
    scope="module", params=[*SMALL.items(), ("meanings", {**SMALL["meanings"], "experts": 2})], ids=lambda one: one[0]
)
def planted(request: pytest.FixtureRequest) -> Planted:
    kind, sizes = request.param
    return fm.planted.plant(kind, seed=5, **sizes)


@pytest.fixture(scope="module")
def known() -> Planted:
    return fm.planted.plant("facts", seed=5, **SMALL["facts"])


def test_there_and_back(planted: Planted, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Not one number or word of the truth is another one; weights are the same, those of what is saved too."""
    before = planted.model.fingerprint
    folder = planted.save(tmp_path / "planted")
    assert capfd.readouterr() == ("", "")
    back = fm.planted.load_planted(folder)
    assert back.model.fingerprint == planted.model.fingerprint == before == fm.load(folder).fingerprint
    pd.testing.assert_frame_equal(back.truth, planted.truth)
    assert (back.kind, back.seed, back.texts, back.facts) == (planted.kind, 5, planted.texts, planted.facts)
    assert back.settings == dict(planted.settings)
    assert back.recalled() == planted.recalled()
    assert [path.name for path in tmp_path.iterdir()] == ["planted"]
    again = back.save(tmp_path / "again")
    for name in ("truth.csv", "corpus.txt", "planted.json"):
        assert (again / name).read_bytes() == (folder / name).read_bytes()


def test_the_folder_is_an_ordinary_one(known: Planted, tmp_path: Path) -> None:
    """Texts read the same from the folder, its facts are facts, and its corpus has as many documents as texts."""
    folder = known.save(tmp_path / "planted")
    model = fm.load(folder)
    for text in known.texts[:5]:
        assert model.tokenize(text) == known.model.tokenize(text)
    assert fm.load_facts(folder / "facts.jsonl") == list(known.facts)
    assert [document.text for document in fm.corpus.open_corpus(folder / "corpus.txt")] == list(known.texts)
    store = fm.scan(model, str(folder / "corpus.txt"), tmp_path / "store")
    assert store.manifest["corpus"]["documents"] == len(known.texts)


def test_an_empty_folder_is_filled_and_a_full_one_is_not(known: Planted, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    known.save(tmp_path / "empty")
    for place in ("empty", "file"):
        (tmp_path / "file").write_text("mine", "utf-8")
        with refuses(FileError, OSError, place, "not empty"):
            known.save(tmp_path / place)
    with refuses(FileError, OSError, "no folder", "missing"):
        known.save(tmp_path / "missing" / "planted")
    assert (tmp_path / "file").read_text("utf-8") == "mine"


def test_a_failure_leaves_nothing(known: Planted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a folder would load and lack its truth."""

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ffnmem.planted.planting.write_whole", full)
    with refuses(FileError, OSError, "planted", "No space left"):
        known.save(tmp_path / "planted")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("file", "content", "named"),
    [
        ("planted.json", None, "planted.json"),
        ("planted.json", "{", "planted.json broken"),
        ("planted.json", '{"kind": "facts", "settings": {}, "columns": {}}', "truth.csv columns"),
        ("truth.csv", "layer,neuron\n0,1\n", "truth.csv columns"),
        ("truth.csv", ("\n0,0,", "\nzero,0,"), "truth.csv zero"),
        ("corpus.txt", None, "corpus.txt"),
        ("facts.jsonl", "{}", "facts.jsonl line 1"),
        ("model.safetensors", None, ""),
    ],
)
def test_a_broken_folder_is_refused(known: Planted, tmp_path: Path, file: str, content: Any, named: str) -> None:
    path = known.save(tmp_path / "planted") / file
    if content is None:
        path.unlink()
    else:
        path.write_text(content if isinstance(content, str) else path.read_text("utf-8").replace(*content), "utf-8")
    with refuses(FfnmemError, Exception, *named.split()):
        fm.planted.load_planted(path.parent)


def test_sheet_and_plain_values(known: Planted) -> None:
    """A layer's neurons under another, or files named that were not written."""
    table, facts = known.sheet().blocks
    truth = known.truth
    sorts = ["role", "position"]
    for *sort, _, second, _ in table.rows:
        here = truth[(truth["layer"] == 1) & (truth[sorts].astype(str) == sort).all(axis=1)]
        assert second == (f"{len(here):,}" if len(here) else "–")
    assert "jsonl" not in facts.rows["facts"]
    assert "folder" not in facts.rows
    written = known.sheet("a folder").blocks[1].rows
    assert written["try"].endswith("--model 'a folder'")
    values = json.loads(json.dumps(known.to_dict()))
    assert values["recalled"] == sum(known.recalled())
    assert sum(row["neurons"] for row in values["counts"]) == len(known.to_frame())
    assert known.model.fingerprint == values["fingerprint"]
