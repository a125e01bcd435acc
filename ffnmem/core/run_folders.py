"""Folders of long runs: each piece is kept as soon as it is there, so that the same call goes on with it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .checked_files import digest_of, is_whole
from .errors import FileError, quoted
from .files import make_folder, user_path
from .folders import Kind, claimed
from .progress import log
from .provenance import Live
from .saved import load_result, save_result


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run; without a ``path``, nothing is kept.

    Attributes:
        path: of the folder.
        run: a digest of all that the pieces depend on.
    """

    path: Path | None
    run: str = ""

    def kept(self, name: str, kind: Any, key: Any, make: Callable[[], Any], live: Sequence[Live] = ()) -> Any:
        """A piece of the run: read if it is there, else made and kept, whole or not at all.

        Args:
            name: of its file, such as ``"steps/00001"``.
            kind: its class, or another annotation.
            key: what tells it from other pieces, as plain values.
            make: makes it. live: the models or stores that it holds.

        Raises: FileError: a file that is damaged or of something else, or cannot be written.
        """
        if self.path is None:
            return make()
        file = self.path / f"{name}.zip"
        run = digest_of({"run": self.run, "key": key})
        if file.exists():
            return load_result(kind, file, live, run)
        piece = make()
        make_folder(file.parent)
        save_result(piece, file, kind, run)
        return piece


@contextmanager
def run_folder(out: str | Path | None, kind: Kind, run: Mapping[str, Any]) -> Iterator[RunFolder]:
    """The folder of a run: new, empty, or of the same run; one that keeps nothing where there is no ``out``.

    Args:
        out: the folder. kind: of which kind.
        run: all that its pieces depend on, as plain values; ``model`` is only a name for people.

    Raises: FileError: a folder that cannot be made, holds something else, or another run.
    """
    if out is None:
        yield RunFolder(None)
        return
    content = json.loads(json.dumps(run))  # as it is read back: tuples are lists there
    with claimed(out, kind, content) as path:
        before = read_run(path, kind)
        deciding = {name: value for name, value in content.items() if name != "model"}
        if difference := first_difference({name: before.get(name) for name in deciding}, deciding):
            raise FileError(f"{path} holds {kind.what} with {difference}: name another folder")
        try:
            yield RunFolder(path, digest_of(deciding))
        except KeyboardInterrupt:
            log.info("stopped: what is done is kept in %s; the same call goes on from there", out)
            raise


def read_run(out: str | Path, kind: Kind) -> dict[str, Any]:
    """What the run in a folder depends on; empty where there is none. Raises FileError."""
    folder = user_path(out)
    content = kind.read_manifest(folder)
    if content and not is_whole(content):
        raise FileError(f"{folder / kind.manifest} is damaged: its checksum does not match: name another folder")
    return content


def first_difference(before: Mapping[str, Any], now: Mapping[str, Any], at: str = "") -> str:
    """The first value that two mappings do not share, in words; empty where they are equal."""
    for name in {**before, **now}:
        old, new = before.get(name), now.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            if difference := first_difference(old, new, f"{at}{name}."):
                return difference
        elif old != new:
            return f"{at}{name} {quoted(old)}, not {quoted(new)}"
    return ""
