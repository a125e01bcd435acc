"""Files as numbered records."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ffnmem.core.errors import FileError
from ffnmem.facts.records import read_records

from ..helpers import refuses

ROWS = [{"a": "x", "b": [1, 2]}, {"a": "é\u2028", "b": []}]


@pytest.mark.parametrize("form", ["lines", "array", "pretty", "marked", "parquet"])
def test_the_same_records_of_every_form(tmp_path: Path, form: str) -> None:
    path = tmp_path / "file"
    texts = {
        "lines": "\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS),
        "array": json.dumps(ROWS),
        "pretty": json.dumps(ROWS, indent=1),
        "marked": "\ufeff" + json.dumps(ROWS),
    }
    if form == "parquet":
        pq.write_table(pa.Table.from_pylist(ROWS), path)
    else:
        path.write_text(texts[form], "utf-8")
    found = read_records(path, "file")
    assert [record for _, record in found] == ROWS
    assert [place for place, _ in found] == [f"{'line' if form == 'lines' else 'record'} {n}" for n in (1, 2)]


def test_one_object(tmp_path: Path) -> None:
    """A document over several lines would be read as lines, each of them broken."""
    path = tmp_path / "file.json"
    path.write_text(json.dumps(ROWS[0], indent=1))
    assert read_records(path, "file") == [("record 1", ROWS[0])]
    path.write_text(json.dumps(ROWS[0]))
    assert read_records(path, "file") == [("line 1", ROWS[0])]
    path.write_text("\n \n")
    assert read_records(path, "file") == []


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b'{"a": 1}\n{', ["line 2"]),
        (b'{"a": 1}\n3', ["line 2", "object"]),
        (b'[{"a": 1},\n {"b" 1}]', ["line 2", "column"]),
        (b'[{"a": 1}, 3]', ["record 2", "object"]),
        (b"nothing", ["line 1"]),
        (b"\xff\xfe", ["UTF-8"]),
        (b"PAR1 and no more", ["Parquet"]),
        (b"[" * 100_000, ["line 1"]),
        (b'{"a": ' + b"9" * 5000 + b"}", ["line 1"]),
    ],
    ids=lambda value: str(value)[:20],
)
def test_broken_files(tmp_path: Path, content: bytes, named: list[str]) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with refuses(FileError, OSError, "facts file", *named):
        read_records(path, "facts file")


def test_a_file_that_cannot_be_opened(tmp_path: Path) -> None:
    with refuses(FileError, OSError, "facts file", "is a folder"):
        read_records(tmp_path, "facts file")
