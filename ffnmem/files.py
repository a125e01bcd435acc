"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp

from .errors import FfnmemError, FileError, InputTypeError, quoted

KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def user_path(given: str | Path) -> Path:
    """A path as its user gave it, ``~`` resolved; whether anything is there is another question.

    Raises FileError for one that no file can have: empty, too long, with a NUL or half a character in it, below the
    home of a user who is none, or in a folder that may not be entered. InputTypeError for what is no path.
    """
    if not isinstance(given, str | os.PathLike) or isinstance(os.fspath(given), bytes):
        raise InputTypeError(f"a path must be a text or a Path, not {quoted(given)}")
    text = os.fspath(given)
    if not text.strip():
        raise FileError(f"{quoted(text)} is no path: name a file or a folder")
    if "\0" in text:
        raise FileError(f"{quoted(text)} is no path: it has a NUL character in it")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise FileError(f"{quoted(text)} is no path in UTF-8: rename the file or folder") from None
    try:
        path = Path(text).expanduser()
    except RuntimeError:
        raise FileError(f"{quoted(text)} cannot be resolved: there is no such user here") from None
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        pass  # what is to be written is not there yet
    except OSError as error:  # too long, a circle of links, a folder that may not be entered
        raise FileError(f"{quoted(text)} cannot be looked at: {error.strerror or error}") from None
    return path.absolute() if ":" in text else path  # pyarrow would take a relative one for an address


def check_ordinary(path: Path, shown: str | Path | None = None) -> Path:
    """``path`` if an ordinary file lies there, through links or not: others, such as pipes and devices, may never end.

    Raises FileError with the path, or the name in ``shown``.
    """
    name = path if shown is None else shown
    try:
        kind = stat.S_IFMT(path.stat().st_mode)
    except OSError as error:
        raise FileError(f"{name} cannot be read: {error.strerror or error}") from None
    if kind != stat.S_IFREG:
        raise FileError(f"{name} is {KINDS.get(kind, 'something else')}, and no ordinary file")
    return path


def user_folder(given: str | Path) -> Path:
    """A path as :func:`user_path` has it, of a folder to read from if there is one.

    Raises FileError besides where a pipe or a device lies directly in it, which would be waited for.
    """
    path = user_path(given)
    if path.is_dir():
        try:
            with os.scandir(path) as entries:
                strange = [e.path for e in entries if not e.is_file() and not e.is_dir() and Path(e.path).exists()]
        except OSError as error:
            raise FileError(f"{given} cannot be read: {error.strerror or error}") from None
        if strange:
            check_ordinary(Path(strange[0]))
    return path


def check_destination(out: str | Path) -> Path:
    """The path that a file will be written to; raises FileError before any work is done for nothing."""
    path = user_path(out)
    if path.is_dir():
        raise FileError(f"{out} is a folder: name a file in it, such as {path / 'report.html'}")
    if not path.parent.is_dir():
        raise FileError(f"cannot write {out}: there is no folder {path.parent}")
    if path.exists() and not path.is_file():
        raise FileError(f"{out} is no ordinary file: name a new file or one to replace")
    return path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary name beside ``path`` to write to, renamed to it when the block ends well and removed when it fails.

    An older file stays until the new one is complete. Raises FileError.
    """
    target = path.resolve()  # through a link, so that the link stays one
    temporary = target.with_name(f".{target.name[:80]}.{secrets.token_hex(4)}.tmp")
    try:
        yield temporary
        temporary.replace(target)
    except FfnmemError:
        raise
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror or error}") from None
    finally:
        temporary.unlink(missing_ok=True)


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file that appears whole or not at all. Text becomes UTF-8. Raises FileError."""
    data = content.encode("utf-8") if isinstance(content, str) else content
    with replacing(path) as temporary, temporary.open("xb") as file:
        file.write(data)


def check_new_folder(folder: str | Path) -> Path:
    """The path of a folder to make; raises FileError where something lies there already or nothing can be made."""
    path = user_path(folder)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise FileError(f"{folder} is there already and not empty: name a new folder")
    if not path.parent.is_dir():
        raise FileError(f"cannot write {folder}: there is no folder {path.parent}")
    return path


@contextmanager
def appearing(path: Path) -> Iterator[Path]:
    """A temporary folder beside ``path``, renamed to it when the block ends well and removed when it fails."""
    temporary: Path | None = None
    try:
        target = path.resolve()
        temporary = Path(mkdtemp(prefix=f".{target.name[:80]}.", suffix=".tmp", dir=target.parent))
        (temporary / "whole").mkdir()  # with the rights of an ordinary folder, which a temporary one has not
        yield temporary / "whole"
        (temporary / "whole").replace(target)
    except FfnmemError:
        raise
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror or error}") from None
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


def readable(path: Path) -> None:
    """Give a file the permissions of any new one: safetensors makes files that only their owner can read."""
    path.chmod(0o666 & ~current_umask())


def current_umask() -> int:
    """What new files are made without; there is no way to ask but to set it."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
