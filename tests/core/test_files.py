import inspect
import os
from pathlib import Path
from typing import Any

import pytest

from ffnmem.core.errors import FileError, InputError, InputTypeError
from ffnmem.core.files import (
    appearing,
    check_destination,
    check_new_folder,
    check_ordinary,
    clear_abandoned,
    replacing,
    user_path,
    workspace,
    write_whole,
)

from ..helpers import refuses


def test_writes_and_replaces(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    write_whole(path, "one")
    write_whole(path, "zwei – deux")
    assert path.read_text(encoding="utf-8") == "zwei – deux"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_rename_leaves_the_older_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "page.html"
    path.write_text("older")

    def fail(self: Path, target: Any) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(FileError, match=r"page\.html: No space left on device"):
        write_whole(path, "newer")
    assert path.read_text() == "older"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failure_while_writing_leaves_the_older_file(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("older")
    with pytest.raises(UnicodeEncodeError):
        write_whole(path, "newer \ud800")
    assert path.read_text() == "older"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    target, link = tmp_path / "target.html", tmp_path / "link.html"
    target.write_text("older")
    link.symlink_to(target)
    write_whole(link, "newer")
    assert link.is_symlink()
    assert target.read_text() == "newer"


def test_destinations_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="is a folder"):
        check_destination(tmp_path)
    with pytest.raises(FileError, match="there is no folder"):
        check_destination(tmp_path / "missing" / "page.html")
    with pytest.raises(FileError, match="no ordinary file"):
        check_destination("/dev/null")
    assert check_destination(tmp_path / "page.html") == tmp_path / "page.html"


def write_half(path: Path, error: Exception) -> None:
    with replacing(path) as temporary:
        temporary.write_text("half")
        raise error


def test_a_block_that_fails_leaves_the_older_file(tmp_path: Path) -> None:
    """Whatever goes wrong while another writes to the temporary name; our own errors pass as they are."""
    path = tmp_path / "rows.parquet"
    path.write_text("older")
    for error, seen in (
        (OSError(28, "No space left on device"), FileError),
        (InputError("x"), InputError),
        (KeyError(), KeyError),
    ):
        with pytest.raises(seen):
            write_half(path, error)
        assert path.read_text() == "older"
        assert list(tmp_path.iterdir()) == [path]
    with replacing(path) as temporary:
        temporary.write_text("newer")
    assert path.read_text() == "newer"
    assert list(tmp_path.iterdir()) == [path]


def test_a_new_folder_is_checked_before_work(tmp_path: Path) -> None:
    """Minutes of work would end in a folder that cannot be written."""
    assert check_new_folder(tmp_path / "new") == tmp_path / "new"
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("x")
    with refuses(FileError, OSError, "full", "not empty"):
        check_new_folder(tmp_path / "full")
    with refuses(FileError, OSError, "no folder"):
        check_new_folder(tmp_path / "missing" / "new")


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    with appearing(tmp_path / "done") as place:
        (place / "file").write_text("x")
        assert not (tmp_path / "done").exists()
    assert [path.name for path in (tmp_path / "done").iterdir()] == ["file"]

    def fail() -> None:
        with appearing(tmp_path / "failed") as place:
            (place / "file").write_text("x")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert [path.name for path in tmp_path.iterdir()] == ["done"]


def test_what_a_killed_program_left_goes_and_nothing_else(tmp_path: Path) -> None:
    """Leftovers would pile up, or files of others and of programs that run would be deleted."""
    ours = tmp_path / ".ffnmem-page.html-0123abcd.tmp"
    others = [".backup.tmp", ".tmpK9nrHs", ".page.html.0123abcd.tmp", "ffnmem-page.html-0123abcd.tmp"]
    others += [".ffnmem-page.html-0123-abc.tmp", ".ffnmem-page.html-0123abcd.tmp2", ".ffnmem-other.html-0123abcd.tmp"]
    for place in (ours, *(tmp_path / name for name in others)):
        place.mkdir()
        (place / "file").write_text("x")
    (tmp_path / ".ffnmem-page.html-4567abcd.tmp").write_text("a file, and so none of ours")
    (tmp_path / ".ffnmem-page.html-89ababcd.tmp").symlink_to(tmp_path / ".backup.tmp")
    before = {path.name for path in tmp_path.iterdir()}
    with workspace(tmp_path / "page.html") as (_, alive):
        write_whole(tmp_path / "page.html", "one")
        assert {path.name for path in tmp_path.iterdir()} == before - {ours.name} | {"page.html", alive.name}
    clear_abandoned(tmp_path)
    gone = {ours.name, ".ffnmem-other.html-0123abcd.tmp"}
    assert {path.name for path in tmp_path.iterdir()} == before - gone | {"page.html"}
    assert (tmp_path / ".backup.tmp" / "file").read_text() == "x"


def test_checks_clear_too(tmp_path: Path) -> None:
    """Killed after its last rename, a program has nothing more to write when it is run again."""
    (tmp_path / "page.html").write_text("whole")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_text("whole")
    for name in ("page.html", "folder"):
        (tmp_path / f".ffnmem-{name}-0123abcd.tmp").mkdir()
    check_destination(tmp_path / "page.html")
    with refuses(FileError, OSError, "not empty"):
        check_new_folder(tmp_path / "folder")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "page.html"]


def test_names_that_are_long_or_none(tmp_path: Path) -> None:
    """A temporary name longer than the system's, and an empty one that means the current folder."""
    name = "ü" * 120
    write_whole(tmp_path / name, "x")
    assert [path.name for path in tmp_path.iterdir()] == [name]
    for check in (check_destination, check_new_folder):
        with refuses(FileError, OSError, "no path"):
            check("")


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("", "no path"),
        ("  ", "no path"),
        ("a\0b", "null byte"),
        ("a" * 5000, "too long"),
        ("a/" * 5000, "too long"),
        ("a\udcff", "UTF-8"),
        ("~nosuchuser/x", "home directory"),
        ("loop/x", "symbolic links"),
    ],
)
def test_a_path_that_no_file_can_have(given: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message would be one of the operating system's, in a traceback."""
    monkeypatch.chdir(tmp_path)
    Path("loop").symlink_to("loop")
    for path in (given, Path(given)):
        if str(path) == ".":  # of an empty text, Path makes the folder that one is in
            continue
        with refuses(FileError, OSError, named):
            user_path(path)


@pytest.mark.parametrize("given", [None, 5, b"corpus.txt", ["corpus.txt"]])
def test_what_is_no_path(given: Any) -> None:
    """`expected str, bytes or os.PathLike object` says what Python takes, not what is due here."""
    with refuses(InputTypeError, TypeError, "path", "text"):
        inspect.unwrap(user_path)(given)


def test_a_path_of_a_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The home would not be resolved, or a file that is to be written refused because it is not there."""
    monkeypatch.setenv("HOME", str(tmp_path))
    assert user_path("~/new/file") == tmp_path / "new" / "file"
    assert user_path(tmp_path) == tmp_path


def test_only_ordinary_files_are_read(tmp_path: Path) -> None:
    """A pipe that nobody writes to and a link to /dev/zero would be read for ever."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "file").write_text("text")
    (tmp_path / "link").symlink_to("file")
    assert check_ordinary(tmp_path / "link") == tmp_path / "link"
    for name, kind in (("pipe", "a pipe"), ("zero", "a device"), (".", "a folder"), ("none", "No such file")):
        with refuses(FileError, OSError, name, kind):
            check_ordinary(tmp_path / name, name)
