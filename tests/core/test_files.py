"""Files and folders that appear whole or not at all, folders that are ours, and runs that go on in theirs."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from ffnmem.core.checked_files import with_checksum
from ffnmem.core.errors import FileError, InputError, InputTypeError
from ffnmem.core.files import (
    appearing,
    check_destination,
    check_new_folder,
    check_ordinary,
    clear_abandoned,
    replacing,
    user_folder,
    user_path,
    workspace,
    write_whole,
)
from ffnmem.core.folders import Kind, claimed, locked, making, remove_files
from ffnmem.core.run_folders import run_folder

from ..helpers import refuses


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# -- what appears whole -----------------------------------------------------------------------------------------------


def test_a_file_is_replaced_behind_its_link(tmp_path: Path) -> None:
    """With a name as long as the system's, for which a temporary one must not be too long."""
    name = "ü" * 120
    (tmp_path / "link").symlink_to(name)
    write_whole(tmp_path / name, "one")
    write_whole(tmp_path / "link", "zwei – deux")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / name).read_text(encoding="utf-8") == "zwei – deux"
    assert names(tmp_path) == ["link", name]


@pytest.mark.parametrize(
    ("error", "seen"),
    [(OSError(28, "No space left on device"), FileError), (InputError("x"), InputError), (KeyError(), KeyError)],
)
def test_what_fails_leaves_what_was_there(error: Exception, seen: type[Exception], tmp_path: Path) -> None:
    """An error of ours passes as it is; a folder does not appear by half, a file stays as it was."""
    (tmp_path / "file").write_text("older")

    def write(block: Callable[[Path], Any], name: str) -> None:
        with block(tmp_path / name) as place:
            (place / "x" if place.is_dir() else place).write_text("half")
            assert not (tmp_path / "new").exists()
            raise error

    for block, name in ((replacing, "file"), (appearing, "new")):
        with pytest.raises(seen):
            write(block, name)
    with pytest.raises(UnicodeEncodeError):
        write_whole(tmp_path / "file", "newer \ud800")
    assert (tmp_path / "file").read_text() == "older"
    assert names(tmp_path) == ["file"]


def test_a_failed_rename_leaves_the_older_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Path, target: Any) -> Path:
        raise OSError(28, "No space left on device")

    (tmp_path / "page").write_text("older")
    monkeypatch.setattr(Path, "replace", fail)
    with refuses(FileError, OSError, "page: No space left on device"):
        write_whole(tmp_path / "page", "newer")
    assert (tmp_path / "page").read_text() == "older"
    assert names(tmp_path) == ["page"]


def test_a_folder_appears_whole(tmp_path: Path) -> None:
    with appearing(tmp_path / "done") as place:
        (place / "file").write_text("x")
        assert not (tmp_path / "done").exists()
    assert names(tmp_path) == ["done"]
    assert names(tmp_path / "done") == ["file"]


def test_what_a_killed_program_left_goes_and_nothing_else(tmp_path: Path) -> None:
    """Leftovers would pile up, or files of others and of programs that run would be deleted."""
    ours = tmp_path / ".ffnmem-page.html-0123abcd.tmp"
    others = [".backup.tmp", ".page.html.0123abcd.tmp", "ffnmem-page.html-0123abcd.tmp"]
    others += [".ffnmem-page.html-0123-abc.tmp", ".ffnmem-page.html-0123abcd.tmp2", ".ffnmem-other.html-0123abcd.tmp"]
    for place in (ours, *(tmp_path / name for name in others)):
        place.mkdir()
        (place / "file").write_text("x")
    (tmp_path / ".ffnmem-page.html-4567abcd.tmp").write_text("a file, and so none of ours")
    (tmp_path / ".ffnmem-page.html-89ababcd.tmp").symlink_to(tmp_path / ".backup.tmp")
    before = {*names(tmp_path)}
    with workspace(tmp_path / "page.html") as (_, alive):
        write_whole(tmp_path / "page.html", "one")
        assert {*names(tmp_path)} == before - {ours.name} | {"page.html", alive.name}
    clear_abandoned(tmp_path)
    assert {*names(tmp_path)} == before - {ours.name, ".ffnmem-other.html-0123abcd.tmp"} | {"page.html"}
    assert (tmp_path / ".backup.tmp" / "file").read_text() == "x"
    # Killed after its last rename, a program has nothing more to write when it is run again: checks clear too.
    for check, name in ((check_destination, "page.html"), (check_new_folder, "new")):
        (tmp_path / f".ffnmem-{name}-0123abcd.tmp").mkdir()
        assert check(tmp_path / name) == tmp_path / name
        assert not (tmp_path / f".ffnmem-{name}-0123abcd.tmp").exists()


def test_a_path_of_a_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert user_path("~/new/file") == tmp_path / "new" / "file"
    assert user_path("a:b") == tmp_path / "a:b"  # pyarrow would take a relative one for an address
    assert user_path("a") == Path("a")
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to("file")
    assert check_ordinary(tmp_path / "link") == tmp_path / "link"
    assert user_folder("~") == tmp_path
    for given in (None, 5, b"corpus.txt", ["corpus.txt"]):
        with refuses(InputTypeError, TypeError, "path", "text"):
            inspect.unwrap(user_path)(given)


@pytest.mark.parametrize(
    ("check", "given", "says"),
    [
        *((check, "", "no path") for check in (user_path, check_destination, check_new_folder)),
        (user_path, "a\0b", "null byte"),
        (user_path, "a" * 5000, "too long"),
        (user_path, "a\udcff", "UTF-8"),
        (user_path, "~nosuchuser/x", "home directory"),
        (user_path, "loop/x", "symbolic links"),
        (check_destination, ".", "is a folder"),
        (check_destination, "missing/page.html", "there is no folder"),
        (check_destination, "/dev/null", "no ordinary file"),
        (check_new_folder, "missing/new", "no folder"),
        (check_new_folder, "full", "not empty"),
        (check_new_folder, "full/file", "not empty"),
        *(
            (lambda path: check_ordinary(Path(path)), path, says)  # a pipe and a device would be read for ever
            for path, says in (("strange/pipe", "a pipe"), ("zero", "a device"), (".", "a folder"), ("none", "No such"))
        ),
        (user_folder, "strange", "strange/pipe is a pipe"),
    ],
)
def test_a_path_that_cannot_be(
    check: Callable[[Any], Any], given: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("full", "strange"):
        Path(name).mkdir()
    Path("full/file").write_text("x")
    os.mkfifo("strange/pipe")
    Path("zero").symlink_to("/dev/zero")
    Path("loop").symlink_to("loop")
    with refuses(FileError, OSError, says):
        check(given)


# -- folders that are ours --------------------------------------------------------------------------------------------

NOTES = Kind("notes.json", "ffnmem notes", 2, "the notes", subfolders=("pages",))


def test_a_new_folder_is_marked_first(tmp_path: Path) -> None:
    """Killed at its first step, a run would not know its own folder again."""
    with claimed(tmp_path / "a" / "b", NOTES) as folder:
        assert names(folder) == ["notes.json"]
        assert not NOTES.is_finished(folder)
        (folder / "page").write_text("x")
    with claimed(folder, NOTES):
        assert (folder / "page").read_text() == "x"
    with claimed(tmp_path / "run", NOTES, {"of": "Monday"}) as other:
        marked = {"kind": "ffnmem notes", "schema": 2, "of": "Monday"}
        assert json.loads((other / "notes.json").read_text()) == with_checksum(marked)
        assert NOTES.is_finished(other)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        *((text, "other things in it (notes.json)") for text in ("", "[]", "{", '{"kind": "notes"}', "[" * 9999)),
        *((f'{{"kind": "ffnmem notes", "schema": {schema}}}', "reads 2") for schema in ("1", "3", "null", '"2"')),
    ],
)
def test_folders_of_others_and_of_other_versions_are_refused(tmp_path: Path, text: str, says: str) -> None:
    """Files of the user's would be overwritten."""
    (tmp_path / "notes.json").write_text(text)
    with refuses(FileError, OSError, str(tmp_path), says), claimed(tmp_path, NOTES):
        raise AssertionError
    assert names(tmp_path) == ["notes.json"]
    assert (tmp_path / "notes.json").read_text() == text
    (tmp_path / "notes.json").write_text('{"kind": "ffnmem notes", "schema": 2}')
    with claimed(tmp_path, NOTES) as folder:
        assert folder == tmp_path


def test_what_was_made_for_nothing_goes(tmp_path: Path) -> None:
    """A refused command would leave empty folders about, or take away the user's."""
    for block in (lambda: claimed(tmp_path / "a" / "b", NOTES), lambda: making(tmp_path / "x" / "y")):
        with pytest.raises(ZeroDivisionError), block():
            raise ZeroDivisionError
    with pytest.raises(ZeroDivisionError), claimed(tmp_path / "a" / "b", NOTES) as folder, locked(folder, "it"):
        raise ZeroDivisionError
    assert names(tmp_path) == []
    (tmp_path / "users" / "store").mkdir(parents=True)
    with refuses(FileError, OSError, "store"), claimed(tmp_path / "users", NOTES):
        raise AssertionError
    with pytest.raises(FileExistsError), claimed(tmp_path / "begun", NOTES) as folder:
        [(folder / "page").touch(exist_ok=False) for _ in range(2)]
    assert names(tmp_path / "begun") == ["notes.json", "page"]


def test_leftovers_are_no_content(tmp_path: Path) -> None:
    """Killed while the first mark was written, a folder would be taken for somebody else's."""
    left = [tmp_path / ".ffnmem-notes.json-0123abcd.tmp", tmp_path / "pages" / ".ffnmem-one-0123abcd.tmp"]
    left[0].mkdir()
    with claimed(tmp_path, NOTES):
        left[1].mkdir(parents=True)
    with claimed(tmp_path, NOTES):
        assert not any(path.exists() for path in left)


def test_places_that_cannot_be_and_one_at_a_time(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for out, says in ((tmp_path / "file", "is a file"), (tmp_path / "file" / "below", "cannot make"), ("", "no path")):
        with refuses(FileError, OSError, says), claimed(out, NOTES):
            raise AssertionError
    assert names(tmp_path) == ["file"]
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
    assert names(folder) == ["mine"]
    remove_files(folder, ("mine",))
    assert not folder.exists()


# -- runs -------------------------------------------------------------------------------------------------------------

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
    assert pages(tmp_path / "run", 6, {**RUN, "model": "the same under another name"})[1] == [5]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"fingerprint": "def"}, "fingerprint 'abc', not 'def'"),
        ({"settings": {"kinds": ["a", "b"]}}, "settings.window 3, not None"),
        ({"more": 1}, "more None, not 1"),
    ],
)
def test_another_run_is_refused(changes: dict[str, Any], says: str, tmp_path: Path) -> None:
    """Results of two settings in one table."""
    pages(tmp_path, 1)
    with refuses(FileError, OSError, f"{tmp_path} holds the notes with {says}: name another folder"):
        pages(tmp_path, 1, {**RUN, **changes})


def test_pieces_of_others_and_damage_are_refused(tmp_path: Path) -> None:
    pages(tmp_path / "run", 2)
    pages(tmp_path / "other", 2, {**RUN, "seed": 1})
    first, second = (tmp_path / "run" / "pages" / f"{n}.zip" for n in range(2))
    whole, other = first.read_bytes(), (tmp_path / "other" / "pages" / "0.zip").read_bytes()
    for data, says in (
        (second.read_bytes(), "of another run: remove it"),
        (other, "of another run: remove it"),
        (whole[:-40], "truncated"),
    ):
        first.write_bytes(data)
        with refuses(FileError, OSError, str(first), says):
            pages(tmp_path / "run", 2)
    manifest = tmp_path / "run" / "notes.json"
    manifest.write_text(manifest.read_text().replace("abc", "abd"))
    with refuses(FileError, OSError, str(manifest), "damaged"):
        pages(tmp_path / "run", 2)
