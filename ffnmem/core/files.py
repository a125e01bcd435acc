"""Files and folders that appear whole or not at all, and what a killed program leaves of them."""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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
    try:
        text.encode("utf-8")
        path = Path(text).expanduser()
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        pass  # what is to be written is not there yet
    except UnicodeEncodeError:
        raise FileError(f"{quoted(text)} is no path in UTF-8: rename the file or folder") from None
    except (OSError, ValueError, RuntimeError) as error:  # too long, a NUL, a circle of links, no such user
        raise FileError(f"{quoted(text)} is no path: {getattr(error, 'strerror', None) or error}") from None
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
    clear_abandoned(path.resolve().parent, path.resolve().name)
    return path


def check_new_folder(folder: str | Path) -> Path:
    """The path of a folder to make; raises FileError where something lies there already or nothing can be made."""
    path = user_path(folder)
    if not path.parent.is_dir():
        raise FileError(f"cannot write {folder}: there is no folder {path.parent}")
    clear_abandoned(path.resolve().parent, path.resolve().name)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise FileError(f"{folder} is there already and not empty: name a new folder")
    return path


def make_folder(folder: Path, parents: bool = False) -> None:
    """Make a folder if it is missing, with ``parents`` those that it lies in, too; raises FileError."""
    try:
        folder.mkdir(exist_ok=True, parents=parents)
    except OSError as error:
        raise FileError(f"cannot make {folder}: {error.strerror or error}") from None


# -- what appears whole ----------------------------------------------------------------------------------------------

# Whatever is written lies in a temporary folder beside its place until it is whole, and so does what other libraries
# leave when they are killed. The writer holds a lock in it, of which the system lets go when the writer dies; then the
# next writer of the same place removes the folder.

TEMPORARY = re.compile(r"\.ffnmem-(.{1,40})-\w{8}\.tmp", re.DOTALL)
WRITER_LOCK = "lock"


@contextmanager
def workspace(path: Path) -> Iterator[tuple[Path, Path]]:
    """``path`` behind its links, and a temporary folder beside it, which goes when the block ends. Raises FileError."""
    from filelock import FileLock

    with writing(path):
        target = path.resolve()  # through a link, so that the link stays one
        clear_abandoned(target.parent, target.name)
        folder = Path(mkdtemp(".tmp", f".ffnmem-{target.name[:40]}-", target.parent))
        lock = FileLock(folder / WRITER_LOCK, timeout=0)
        lock.acquire()
    try:
        yield target, folder
    finally:
        lock.release()
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary name to write ``path``'s new content to, renamed to it when the block ends well.

    An older file stays until the new one is complete. Raises FileError.
    """
    with workspace(path) as (target, folder), writing(path):
        yield folder / target.name
        (folder / target.name).replace(target)


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file that appears whole or not at all. Text becomes UTF-8. Raises FileError."""
    data = content.encode("utf-8") if isinstance(content, str) else content
    with replacing(path) as temporary:
        temporary.write_bytes(data)


@contextmanager
def appearing(path: Path) -> Iterator[Path]:
    """A folder under a temporary name, renamed to ``path`` (new or empty) when the block ends well.

    Raises FileError.
    """
    with workspace(path) as (target, folder), writing(path):
        (folder / "whole").mkdir()  # with the rights of an ordinary folder, which the temporary one has not
        yield folder / "whole"
        (folder / "whole").replace(target)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raise FileError where the block, which writes ``path``, cannot: a full disk, for one.

    safetensors and torch raise errors of their own for that; a RuntimeError that is not of torch's writer passes.
    """
    try:
        yield
    except FfnmemError:
        raise
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror or error}") from None
    except library_errors() as error:
        if isinstance(error, RuntimeError) and TORCH_WRITER not in str(error):
            raise
        said = "the disk may be full" if isinstance(error, RuntimeError) else error
        raise FileError(f"cannot write {path}: {said}") from None


TORCH_WRITER = "inline_container.cc"  # the source that a message of torch.save names


def library_errors() -> tuple[type[Exception], ...]:
    from safetensors import SafetensorError

    return SafetensorError, RuntimeError


def is_temporary(path: Path) -> bool:
    """Whether this is a folder in which something of ours is or was being written: nobody else's are named like it."""
    return TEMPORARY.fullmatch(path.name) is not None and path.is_dir() and not path.is_symlink()


def clear_abandoned(folder: Path, name: str | None = None) -> None:
    """Remove the temporary folders in a folder whose writers are dead: all of them, or those of one file's name."""
    from filelock import FileLock

    with suppress(OSError):  # no folder yet, or none that may be read: whoever writes there will say so
        for path in [path for path in folder.iterdir() if is_temporary(path)]:
            if name is not None and path.name[len(".ffnmem-") : -len("-01234567.tmp")] != name[:40]:
                continue
            with suppress(OSError), FileLock(path / WRITER_LOCK, timeout=0):  # a Timeout is an OSError
                shutil.rmtree(path, ignore_errors=True)


def readable(path: Path) -> None:
    """Give a file the permissions of any new one: safetensors makes files that only their owner can read."""
    mask = os.umask(0o022)  # there is no way to ask but to set it
    os.umask(mask)
    path.chmod(0o666 & ~mask)
