"""Folders that are ours, and all others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ffnmem.core.checked_files import with_checksum
from ffnmem.core.errors import FileError
from ffnmem.core.folders import Kind, claimed, locked, making, remove_files

from ..helpers import refuses

NOTES = Kind("notes.json", "ffnmem notes", 2, "the notes", subfolders=("pages",))


def test_a_new_folder_is_marked_first(tmp_path: Path) -> None:
    """Killed at its first step, a run would not know its own folder again."""
    with claimed(tmp_path / "a" / "b", NOTES) as folder:
        assert [path.name for path in folder.iterdir()] == ["notes.json"]
        assert not NOTES.is_finished(folder)
        (folder / "page").write_text("x")
    with claimed(folder, NOTES):
        assert (folder / "page").read_text() == "x"
    with claimed(tmp_path / "run", NOTES, {"of": "Monday"}) as other:
        marked = {"kind": "ffnmem notes", "schema": 2, "of": "Monday"}
        assert json.loads((other / "notes.json").read_text()) == with_checksum(marked)
        assert NOTES.is_finished(other)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        "{}",
        '{"kind": "notes"}',
        '{"schema": 1}',
        '{"notes": 1}',
        "[" * 9999,
        '{"kind": "x", "ffnmem": 1}',
    ],
)
def test_folders_of_others_are_refused(tmp_path: Path, text: str) -> None:
    """Files of the user's would be overwritten."""
    (tmp_path / "notes.json").write_text(text)
    with refuses(FileError, OSError, str(tmp_path), "other things", "notes.json"), claimed(tmp_path, NOTES):
        raise AssertionError
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("notes.json", text)]


def test_newer_and_older_folders(tmp_path: Path) -> None:
    """A newer version's files would be written over by one that does not understand them."""
    for schema in (3, None, "2"):
        (tmp_path / "notes.json").write_text(json.dumps({"kind": "ffnmem notes", "schema": schema}))
        with refuses(FileError, OSError, "schema", "up to 2"), claimed(tmp_path, NOTES):
            raise AssertionError
    (tmp_path / "notes.json").write_text(json.dumps({"kind": "ffnmem notes", "schema": 1}))
    with claimed(tmp_path, NOTES) as folder:
        assert folder == tmp_path


def test_what_may_lie_beside(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    with pytest.raises(ZeroDivisionError), claimed(tmp_path, NOTES, beside=("store",)):
        raise ZeroDivisionError
    assert [path.name for path in tmp_path.iterdir()] == ["store"]
    with refuses(FileError, OSError, "store"), claimed(tmp_path, NOTES):
        raise AssertionError


def test_what_was_made_for_nothing_goes(tmp_path: Path) -> None:
    """A refused command would leave empty folders about, or take away the user's empty one."""
    with pytest.raises(ZeroDivisionError), claimed(tmp_path / "a" / "b", NOTES) as folder, locked(folder, "it"):
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "empty").mkdir()
    with pytest.raises(ZeroDivisionError), claimed(tmp_path / "empty", NOTES):
        raise ZeroDivisionError
    assert list((tmp_path / "empty").iterdir()) == []
    with pytest.raises(FileNotFoundError), claimed(tmp_path / "begun", NOTES) as folder:
        (folder / "page").write_text((folder / "none").name) and (folder / "none").read_text()
    assert sorted(path.name for path in (tmp_path / "begun").iterdir()) == ["notes.json", "page"]
    with pytest.raises(ZeroDivisionError), making(tmp_path / "x" / "y"):
        raise ZeroDivisionError
    assert not (tmp_path / "x").exists()


def test_leftovers_are_no_content(tmp_path: Path) -> None:
    """Killed while the first mark was written, a folder would be taken for somebody else's."""
    left = [tmp_path / ".ffnmem-notes.json-0123abcd.tmp", tmp_path / "pages" / ".ffnmem-one-0123abcd.tmp"]
    left[0].mkdir()
    with claimed(tmp_path, NOTES):
        left[1].mkdir(parents=True)
    with claimed(tmp_path, NOTES):
        assert not any(path.exists() for path in left)


def test_places_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for out, named in ((tmp_path / "file", "is a file"), (tmp_path / "file" / "below", "cannot make"), ("", "no path")):
        with refuses(FileError, OSError, named), claimed(out, NOTES):
            raise AssertionError
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_one_at_a_time(tmp_path: Path) -> None:
    with locked(tmp_path, "the notes"), refuses(FileError, OSError, "the notes"), locked(tmp_path, "the notes"):
        raise AssertionError
    with locked(tmp_path, "the notes"):
        pass


def test_only_named_files_are_removed(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in ("ours", "mine"):
        (folder / name).write_text("x")
    remove_files(folder, ("ours", "none"))
    assert [path.name for path in folder.iterdir()] == ["mine"]
    remove_files(folder, ("mine",))
    assert not folder.exists()
