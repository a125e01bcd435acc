"""Files of ours that may be replaced, and nobody else's: told before any work is done for nothing."""

from __future__ import annotations

import os
import re

from ..core.errors import FileError
from ..core.files import check_destination, user_path

ENDS = 1 << 16  # bytes
FIGURES = (".png", ".svg", ".pdf")
PAGE = rb'<meta name="generator" content="ffnmem '
TABLE = rb"ffnmem.*PAR1$"  # in the notes behind the rows of a Parquet file
FIGURE = rb"Software\0ffnmem |<dc:title>ffnmem |/Creator \(ffnmem "
OWN = rb'^.{8}\{"__metadata__":\{"ffnmem"|ffnmem result: \w+$'  # an edit, a second moment; any other result
GRAPH = rb'"generator": \{\s*"name": "ffnmem"'
"""What the first or the last 64 KiB of a file of ours have that no other has, as a pattern."""


def check_replaceable(file: str, mark: bytes | None) -> None:
    """Raise FileError before any work is done for nothing: for what cannot be written, and for a file of another kind.

    A page or an edit made again takes the place of the older one. A text, or a model's weights, are somebody's work.

    Args:
        file: to be written.
        mark: what one of the same kind that we wrote has in it; None where that cannot be told.
    """
    path, ours = check_destination(file), False
    if not path.is_file() or not path.stat().st_size:
        return
    if mark is not None:
        try:
            with path.open("rb") as opened:
                parts = [opened.read(ENDS)]
                opened.seek(max(0, path.stat().st_size - ENDS))
                parts.append(opened.read())
        except OSError as error:
            raise FileError(f"{file} cannot be looked at: {error.strerror or error}") from None
        ours = any(re.search(mark, part, re.DOTALL) for part in parts)
    if not ours:
        what = "" if mark is None else ", and nothing that ffnmem wrote"
        raise FileError(f"{file} is there already{what}: name another file, or remove it")


OF_OURS = re.compile(rb'"kind": "ffnmem ')  # in the manifest of every folder of ours


def check_folder(folder: str) -> None:
    """Raise FileError before any work is done for nothing: for a folder that cannot be made, and one with things in it
    of which none says that we wrote it. Of which kind it is, and of which run, says who writes there."""
    path = user_path(folder)
    there = next(one for one in (path, *path.absolute().parents) if one.exists())
    if not there.is_dir():
        raise FileError(f"{folder} is a file: name a folder" if there == path else f"{there} is a file, and no folder")
    if not os.access(there, os.W_OK):
        raise FileError(f"{there} cannot be written to")
    inside = sorted(path.iterdir()) if there == path else []
    if inside and not any(OF_OURS.search(one.read_bytes()[:ENDS]) for one in path.glob("*.json") if one.is_file()):
        raise FileError(f"{folder} is a folder with other things in it ({inside[0].name}): name a new one")
