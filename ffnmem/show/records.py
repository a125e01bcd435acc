"""Data on standard output: strict JSON and CSV, in UTF-8 whatever the terminal's encoding."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from ..core.json_values import plain

if TYPE_CHECKING:
    import pandas as pd


def print_json(value: Any) -> None:
    text = json.dumps(plain(value), ensure_ascii=False, allow_nan=False, indent=2)
    write(text + "\n")


END = "\r\n"


class Lines:
    """What a writer of CSV with lines that end in ``END`` writes to, for lines that end in "\\n".

    A token may be a carriage return, which many readers take for the end of a line; Python's csv, and pandas with it,
    quotes one only if lines end in one (until Python 3.13).
    """

    def __init__(self, file: TextIO | io.StringIO) -> None:
        self.file = file

    def write(self, row: str) -> int:
        """A whole row: the writer hands over one at a time."""
        return self.file.write(row.removesuffix(END) + "\n")


def write_csv(frame: pd.DataFrame, file: TextIO | io.StringIO, *, header: bool = True) -> None:
    """A table as CSV that reads back as it is, without its index."""
    frame.to_csv(Lines(file), index=False, header=header, lineterminator=END)


def csv_text(frame: pd.DataFrame) -> str:
    """The same as a text."""
    buffer = io.StringIO()
    write_csv(frame, buffer)
    return buffer.getvalue()


def print_csv(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """One line a row under a line of names; what is missing is empty, lists are written as JSON arrays."""
    buffer = io.StringIO()
    writer = csv.DictWriter(Lines(buffer), columns, lineterminator=END)
    writer.writeheader()
    for row in rows:
        values = plain({name: row[name] for name in columns})
        writer.writerow({k: json.dumps(v, ensure_ascii=False) if isinstance(v, list) else v for k, v in values.items()})
    write(buffer.getvalue())


def write(text: str) -> None:
    """All of a text, in UTF-8; raises BrokenPipeError when nobody reads any more."""
    sys.stdout.flush()
    rest = memoryview(text.encode("utf-8"))
    while rest:  # an unbuffered stream may take a part, and fails only at the next one
        rest = rest[sys.stdout.buffer.write(rest) or 0 :]
    sys.stdout.buffer.flush()
