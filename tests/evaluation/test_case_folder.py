"""Scores on disk."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from ffnmem.core.errors import FileError
from ffnmem.evaluation import Scores
from ffnmem.evaluation.scores import CASES, CHUNKS, MANIFEST, SUMMARY, CaseFolder

from ..helpers import refuses

RUN = {"model": "tiny", "fingerprint": "abc", "metrics": ["ES"], "contexts": ["{}"]}


def opened(out: Path, run: Mapping[str, Any]) -> CaseFolder:
    with CaseFolder.kept(out, run) as folder:
        assert folder is not None
        return folder


def test_round_trip(scores: Scores, tmp_path: Path) -> None:
    """A table, an interval or a setting that comes back as another one."""
    folder = scores.save(tmp_path / "new" / "scores")
    found = Scores.load(folder)
    pd.testing.assert_frame_equal(found.cases.astype(object), scores.cases.astype(object))
    pd.testing.assert_frame_equal(found.summary, scores.summary)
    assert found.to_dict() == scores.to_dict()
    assert json.loads((folder / SUMMARY).read_text())["summary"] == scores.to_dict()["summary"]


def test_damage(scores: Scores, tmp_path: Path) -> None:
    """Cases that were cut off or changed must not be averaged."""
    folder = scores.save(tmp_path / "scores")
    whole = (folder / CASES).read_bytes()
    for data in (whole[:-20], whole[:200] + bytes(60) + whole[260:], b""):
        (folder / CASES).write_bytes(data)
        with refuses(FileError, OSError, CASES):
            Scores.load(folder).summary.empty  # noqa: B018
    (folder / CASES).unlink()
    with refuses(FileError, OSError, CASES):
        Scores.load(folder)
    (folder / SUMMARY).write_text("[1")
    with refuses(FileError, OSError, SUMMARY):
        Scores.load(folder)
    (folder / SUMMARY).write_text(json.dumps({"kind": "other"}))
    with refuses(FileError, OSError, SUMMARY):
        Scores.load(folder)


def test_nothing_there(tmp_path: Path) -> None:
    """An evaluation that was stopped is told apart from an empty folder."""
    with refuses(FileError, OSError, "no scores"):
        Scores.load(tmp_path)
    opened(tmp_path / "run", RUN)
    with refuses(FileError, OSError, "not finished"):
        Scores.load(tmp_path / "run")


def test_chunks(scores: Scores, tmp_path: Path) -> None:
    """A chunk of other facts, or a broken one, must not be taken for a result."""
    folder = opened(tmp_path / "run", RUN)
    about = list(zip(scores.cases["editor"], scores.cases["id"], strict=True))
    assert folder.read(0, about) is None
    folder.write(0, scores.cases)
    again = opened(tmp_path / "run", RUN).read(0, about)
    assert again is not None
    pd.testing.assert_frame_equal(again.astype(object), scores.cases.astype(object))
    with refuses(FileError, OSError, "00000.parquet"):
        folder.read(0, about[:-1])
    folder.path(0).write_bytes(b"PAR1")
    with refuses(FileError, OSError, "00000.parquet", "remove it"):
        folder.read(0, about)
    assert [path.name for path in (tmp_path / "run" / CHUNKS).iterdir()] == ["00000.parquet"]


def test_another_run(tmp_path: Path) -> None:
    """Results of two settings in one table."""
    opened(tmp_path / "run", RUN)
    opened(tmp_path / "run", {**RUN, "model": "the same under another name"})
    with refuses(FileError, OSError, "contexts", "['{}']", "another folder"):
        opened(tmp_path / "run", {**RUN, "contexts": ["{}", "So {}"]})
    with refuses(FileError, OSError, "fingerprint"):
        opened(tmp_path / "run", {**RUN, "fingerprint": "def"})
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "a.txt").write_text("a")
    with refuses(FileError, OSError, "other things"):
        opened(tmp_path / "letters", RUN)
    (tmp_path / "run" / MANIFEST).write_text("{")
    with refuses(FileError, OSError, MANIFEST):
        opened(tmp_path / "run", RUN)
    (tmp_path / "file").write_text("")
    with refuses(FileError, OSError, "file"):
        opened(tmp_path / "file", RUN)


def test_scores_are_saved_only_where_scores_are(scores: Scores, tmp_path: Path) -> None:
    """Files of the user's with our names would be overwritten."""
    folder = scores.save(tmp_path / "scores")
    scores.save(folder)
    for name, text in ((CASES, "mine"), (SUMMARY, "{}"), (MANIFEST, "{}")):
        other = tmp_path / name
        other.mkdir()
        (other / name).write_text(text)
        with refuses(FileError, OSError, "other things", name):
            scores.save(other)
        assert [(path.name, path.read_text()) for path in other.iterdir()] == [(name, text)]
    with refuses(FileError, OSError, "is no path"):
        scores.save("")
