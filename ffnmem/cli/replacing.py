"""Files of ours that may be replaced, and nobody else's: told before any work is done for nothing."""

from __future__ import annotations

import re

from ..core.errors import FileError
from ..core.files import check_destination

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
