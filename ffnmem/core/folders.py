"""Folders of ours: new, empty, or with a manifest that says that they are. Nothing in any other is touched."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from .._version import __version__
from .checked_files import with_checksum
from .errors import FfnmemError, FileError, listed, quoted
from .files import clear_abandoned, is_temporary, user_path, write_whole

LOCK = ".lock"  # in folders that one process at a time may write to
UNFINISHED = "unfinished"


@dataclass(frozen=True)
class Kind:
    """A kind of folder, and how one is known.

    Attributes:
        manifest: the file that says what the folder is.
        kind, schema: what it says, and the only version that is understood.
        what: what the folder is for, in messages.
        subfolders: folders in it that are written to as well.
    """

    manifest: str
    kind: str
    schema: int
    what: str
    subfolders: tuple[str, ...] = ()

    def mark(self, folder: Path, run: Mapping[str, Any] | None = None) -> None:
        """Write a manifest that says what the folder is for, and of which run, or that it is not finished.

        Raises FileError.
        """
        rest = {"ffnmem": __version__, UNFINISHED: True} if run is None else run
        content = {"kind": self.kind, "schema": self.schema, **rest}
        write_whole(folder / self.manifest, json.dumps(with_checksum(content), ensure_ascii=False, indent=1) + "\n")

    def read_manifest(self, folder: Path) -> dict[str, Any]:
        """What the folder's manifest says, whole or not; empty where there is none of this kind that can be read."""
        path = folder / self.manifest
        try:
            content = json.loads(path.read_bytes()) if path.is_file() else None
        except (OSError, ValueError, RecursionError):
            return {}
        return content if isinstance(content, dict) and content.get("kind") == self.kind else {}

    def is_finished(self, folder: Path) -> bool:
        """Whether there is a manifest, and none that was only the mark of a run."""
        return (folder / self.manifest).exists() and not self.read_manifest(folder).get(UNFINISHED)

    def check(self, folder: Path, inside: Collection[str]) -> None:
        """Raise FileError unless a folder that holds these things is of this kind."""
        content = self.read_manifest(folder)
        if not content:
            things = listed(sorted(inside), 3)
            raise FileError(f"{folder} is a folder with other things in it ({things}): name a new one for {self.what}")
        schema = content.get("schema")
        if schema != self.schema:
            raise FileError(
                f"{folder} has schema {quoted(schema)}; this version of ffnmem reads {self.schema}: name a new folder"
            )


@contextmanager
def claimed(out: str | Path, kind: Kind, run: Mapping[str, Any] | None = None) -> Iterator[Path]:
    """A folder to write to, made if missing, with those above it: new, empty, or of this kind.

    It is marked before anything else is written, so that a later run knows it after a kill. Where the block fails and
    has left nothing in it but the mark, that goes again, with the folders that were made.

    Args:
        out: the folder. kind: of which kind. run: what the manifest of a new one says, if it is not written in the end.

    Raises: FileError: a folder that cannot be made, or one of another kind or of another version.
    """
    folder = user_path(out)
    if folder.exists() and not folder.is_dir():
        raise FileError(f"{out} is a file: name a folder for {kind.what}")
    with making(folder):
        inside = names_in(folder)
        if inside:
            kind.check(folder, inside)
        for place in (folder, *(folder / name for name in kind.subfolders if not (folder / name).is_symlink())):
            clear_abandoned(place)
        if inside:
            yield folder
            return
        kind.mark(folder, run)
        try:
            yield folder
        except BaseException:
            with suppress(OSError):  # the block may have removed it
                if names_in(folder) <= {LOCK, kind.manifest}:
                    for name in (LOCK, kind.manifest):  # in this order: what is killed in between is known by the mark
                        (folder / name).unlink(missing_ok=True)
            raise


@contextmanager
def making(folder: Path) -> Iterator[None]:
    """Make a folder and those above it; where the block fails, those that were made and are empty go again.

    Raises FileError.
    """
    made: list[Path] = []
    try:
        try:
            for path in reversed([path for path in (folder, *folder.parents) if not path.exists()]):
                path.mkdir(exist_ok=True)
                made.append(path)
        except OSError as error:
            raise FileError(f"cannot make {folder}: {error.strerror or error}") from None
        yield
    except BaseException:
        for path in reversed(made):
            with suppress(OSError):  # there is something in it
                path.rmdir()
        raise


def names_in(folder: Path) -> set[str]:
    """What lies in a folder, besides what is or was being written. Raises FileError."""
    try:
        return {path.name for path in folder.iterdir() if not is_temporary(path)}
    except OSError as error:
        raise FileError(f"cannot read {folder}: {error.strerror or error}") from None


@contextmanager
def locked(folder: Path, what: str) -> Iterator[None]:
    """Keep other processes from writing to a folder meanwhile; raises FileError where one does.

    Args:
        folder: which. what: what they would be writing, in messages.
    """
    lock = FileLock(folder / LOCK, timeout=0)  # the system lets go of it when its holder dies
    try:
        with lock:
            yield
    except Timeout:
        raise FileError(f"another process is writing {what}: wait for it, or name another place") from None
    except OSError as error:
        if isinstance(error, FfnmemError) or error.filename != str(folder / LOCK):
            raise
        raise FileError(f"cannot write to {folder}: {error.strerror or error}") from None


def remove_files(folder: Path, names: Iterable[str]) -> None:
    """Remove files of ours by their names, in this order, then the folder if that was all; what else is there stays."""
    clear_abandoned(folder)
    with suppress(OSError):
        for name in names:
            (folder / name).unlink(missing_ok=True)
        folder.rmdir()
