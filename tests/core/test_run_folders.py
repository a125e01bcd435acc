"""Folders that keep each piece of a run: what is there is not made again, and nothing of another run is taken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from ffnmem.core.errors import FileError
from ffnmem.core.folders import Kind
from ffnmem.core.run_folders import run_folder

from ..helpers import refuses

NOTES = Kind("notes.json", "ffnmem notes", 1, "notes", subfolders=("pages",))
RUN: dict[str, Any] = {"model": "tiny", "fingerprint": "abc", "settings": {"window": 3, "kinds": ("a", "b")}, "seed": 0}


def pages(out: Path | None, count: int, run: Any = RUN, fails_at: int = -1) -> tuple[list[Any], list[int]]:
    """Tables, and which of them were made in this call."""
    made: list[int] = []

    def make(number: int) -> pd.DataFrame:
        if number == fails_at:
            raise KeyboardInterrupt
        made.append(number)
        return pd.DataFrame({"n": [number, -number]})

    with run_folder(out, NOTES, run) as folder:
        frames = [folder.kept(f"pages/{n}", pd.DataFrame, n, lambda n=n: make(n)) for n in range(count)]  # type: ignore[misc]
    return [frame["n"].tolist() for frame in frames], made


def test_what_is_there_is_not_made_again(tmp_path: Path) -> None:
    """A kill would cost hours again."""
    with pytest.raises(KeyboardInterrupt):
        pages(tmp_path / "run", 5, fails_at=3)
    assert pages(tmp_path / "run", 5) == (pages(None, 5)[0], [3, 4])
    assert pages(tmp_path / "run", 6)[1] == [5]
    assert pages(tmp_path / "run", 6, {**RUN, "model": "the same under another name"})[1] == []


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"fingerprint": "def"}, "fingerprint 'abc', not 'def'"),
        ({"settings": {"window": 4, "kinds": ["a", "b"]}}, "settings.window 3, not 4"),
        ({"settings": {"kinds": ["a", "b"]}}, "settings.window 3, not None"),
        ({"more": 1}, "more None, not 1"),
    ],
)
def test_another_run_is_refused(changes: dict[str, Any], says: str, tmp_path: Path) -> None:
    """Results of two settings in one table."""
    pages(tmp_path, 1)
    with refuses(FileError, OSError, f"{tmp_path} holds notes with {says}: name another folder"):
        pages(tmp_path, 1, {**RUN, **changes})


def test_pieces_of_others_and_damage_are_refused(tmp_path: Path) -> None:
    pages(tmp_path / "run", 2)
    pages(tmp_path / "other", 2, {**RUN, "seed": 1})
    first, second = (tmp_path / "run" / "pages" / f"{n}.zip" for n in range(2))
    whole = first.read_bytes()
    for data, says in (
        (second.read_bytes(), "of another run: remove it"),
        ((tmp_path / "other" / "pages" / "0.zip").read_bytes(), "of another run: remove it"),
        (whole[:-40], "truncated"),
        (b"", "no saved DataFrame"),
    ):
        first.write_bytes(data)
        with refuses(FileError, OSError, str(first), says):
            pages(tmp_path / "run", 2)
    first.write_bytes(whole)
    manifest = tmp_path / "run" / "notes.json"
    manifest.write_text(manifest.read_text().replace("abc", "abd"))
    with refuses(FileError, OSError, str(manifest), "damaged"):
        pages(tmp_path / "run", 2)
