"""Files that appear whole or not at all."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import FfnmemError, FileError


def check_destination(out: str | Path) -> Path:
    """The path that a file will be written to; raises FileError before any work is done for nothing."""
    path = Path(out).expanduser()
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
