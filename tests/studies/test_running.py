"""``fm.studies.run``: scans if need be, runs, writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import ffnmem as fm
from ffnmem.core.errors import FileError, InputError
from ffnmem.scanning import Store
from ffnmem.studies import running
from ffnmem.studies.running import FOLDER

from ..helpers import refuses
from ..scanning.corpora import SMALL, digests
from ..scanning.texts import tiny_texts

FEW: dict[str, Any] = {"keys": 3, "prefixes": 2, "n_sequences": 8, "updates": 2}


def test_from_text_and_again(tiny: fm.Model, tmp_path: Path) -> None:
    """The scan lies in the folder and is opened at the next call; the same call writes the same files."""
    told: list[str] = []
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n\n".join(tiny_texts()), "utf-8")
    out = tmp_path / "deep" / "out"
    found = fm.studies.run(
        "geva2021", tiny, corpus, out, scan_options=SMALL, progress=lambda phase, *_: told.append(phase), **FEW
    )
    assert list(dict.fromkeys(told)) == ["pack", "scan", "project", "prefixes", "weights", "positions"]
    assert fm.open_store(out / "store", tiny).settings.k == SMALL["k"]
    before = digests(out)
    assert {"index.html", "study.json", "summary.csv", "changes.png"} <= set(before)
    told.clear()
    fm.studies.run(
        "geva2021", tiny, corpus, out, scan_options=SMALL, progress=lambda phase, *_: told.append(phase), **FEW
    )
    assert "scan" not in told
    assert digests(out) == before
    assert json.loads((out / "study.json").read_text("utf-8"))["settings"]["keys"] == FEW["keys"]
    assert found.name == "geva2021"


@pytest.mark.usefixtures("undrawn")
def test_from_a_store(tiny: fm.Model, tiny_store: Store, tmp_path: Path) -> None:
    """Nothing is scanned, and the store is not touched."""
    before = digests(tiny_store.folder)
    found = fm.studies.run("geva2021", tiny, tiny_store, tmp_path, seed=3, **FEW)
    assert digests(tiny_store.folder) == before
    assert not (tmp_path / "store").exists()
    assert found.settings["seed"] == 3
    assert found.provenance["fingerprint"] == tiny.fingerprint


def test_mistakes_before_any_work(
    tiny: fm.Model, atlas: fm.Model, tiny_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("scanned for nothing")

    monkeypatch.setattr("ffnmem.studies.running.scan", never)
    with refuses(InputError, ValueError, "'geva'"):
        fm.studies.run("geva", tiny, tiny_store, tmp_path / "out")
    with refuses(InputError, ValueError, "'keyz'", "keys"):
        fm.studies.run("geva2021", tiny, "corpus.txt", tmp_path / "out", keyz=3)
    with refuses(InputError, ValueError, "scan_options"):
        fm.studies.run("geva2021", tiny, tiny_store, tmp_path / "out", scan_options={"k": 3})
    with refuses(InputError, ValueError, "atlas"):
        fm.studies.run("geva2021", atlas, tiny_store, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    file = tmp_path / "file"
    file.touch()
    with refuses(FileError, OSError, "file", "folder"):
        fm.studies.run("geva2021", tiny, tiny_store, file)
    with refuses(FileError, OSError, "cannot make"):
        fm.studies.run("geva2021", tiny, tiny_store, file / "below")


def test_a_folder_with_something_else_is_refused(tiny: fm.Model, tiny_store: Store, tmp_path: Path) -> None:
    """Nothing of the user's is replaced, and one folder holds one study."""
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "summary.csv").write_text("mine", "utf-8")
    with refuses(FileError, OSError, "notes", "summary.csv", "other things", "the study"):
        fm.studies.run("geva2021", tiny, tiny_store, notes, **FEW)
    assert digests(notes).keys() == {"summary.csv"}
    (notes / "study.json").write_text('{"study": "geva2021"}', "utf-8")
    with refuses(FileError, OSError, "other things"):
        fm.studies.run("geva2021", tiny, tiny_store, notes, **FEW)
    FOLDER.mark(notes, {"study": "voita2023"})
    with refuses(FileError, OSError, "'voita2023'", "'geva2021'"):
        fm.studies.run("geva2021", tiny, tiny_store, notes, **FEW)
    (notes / "study.json").write_text(
        (notes / "study.json").read_text("utf-8").replace("voita2023", "geva2021"), "utf-8"
    )
    with refuses(FileError, OSError, "study.json is damaged", "checksum"):
        fm.studies.run("geva2021", tiny, tiny_store, notes, **FEW)
    (notes / "study.json").write_text("[", "utf-8")
    with refuses(FileError, OSError, "other things"):
        fm.studies.run("geva2021", tiny, tiny_store, notes, **FEW)
    assert (notes / "summary.csv").read_text("utf-8") == "mine"


@pytest.mark.usefixtures("undrawn")
def test_what_a_stopped_run_left_is_finished(tiny: fm.Model, tmp_path: Path) -> None:
    """Stopped during the scan: only a store. Stopped while writing: no page. The same call completes both."""
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n\n".join(tiny_texts()), "utf-8")
    out = tmp_path / "out"
    fm.scan(tiny, corpus, out / "store", **SMALL)
    fm.studies.run("geva2021", tiny, corpus, out, scan_options=SMALL, **FEW)
    before = digests(out)
    for name in ("index.html", "changes.png", "updates.csv"):
        (out / name).unlink()
    fm.studies.run("geva2021", tiny, corpus, out, scan_options=SMALL, **FEW)
    assert digests(out) == before


def test_a_figure_that_fails_leaves_the_tables(
    tiny: fm.Model, tiny_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hours of work would go with a picture; and the folder must not look whole."""
    out = tmp_path / "out"

    def fails(figure: object, dark: bool = False) -> bytes:
        raise MemoryError("no room for a canvas")

    with monkeypatch.context() as patch:
        patch.setattr(running, "png", fails)
        with pytest.raises(MemoryError):
            fm.studies.run("geva2021", tiny, tiny_store, out, **FEW)
    assert (out / "updates.csv").stat().st_size
    assert not (out / "index.html").exists()
    monkeypatch.setattr(running, "png", lambda figure, dark=False: b"")
    study = fm.studies.run("geva2021", tiny, tiny_store, out, **FEW)
    assert {path.stem for path in out.glob("*.csv")} == {table.name for table in study.tables}
    assert (out / "index.html").exists()
