"""One reader a file format: a file becomes documents, one at a time, with its problems counted."""

from __future__ import annotations

import csv
import json
import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BufferedIOBase
from pathlib import Path
from typing import Any

from ..errors import FfnmemError, FileError, InputError, listed, quoted
from ..files import check_ordinary
from ..foreign import first_line
from .problems import Document, Problems, clean, decoded
from .streams import BLOCK, COMPRESSIONS, LONGEST, lines, opened, without_end

ROWS = 64  # of a Parquet file at a time


@dataclass(frozen=True)
class CorpusFile:
    """A file, the name it has in messages, its format (``.txt`` …), and how to read it."""

    path: Path
    name: str
    format: str
    column: str
    division: str

    def read(self, problems: Problems) -> Iterator[Document]:
        """The documents. Raises FileError where the file is broken as a whole."""
        return READERS[self.format](self, problems)


def format_of(path: Path) -> str | None:
    """The format of a file by its name, compressed or not; None for what is no corpus file."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in COMPRESSIONS:
        suffixes.pop()
    return suffixes[-1] if suffixes and suffixes[-1] in READERS else None


def read_text(file: CorpusFile, problems: Problems) -> Iterator[Document]:
    """Paragraphs, lines or the whole of a text file; line ends become line feeds."""
    with opened(file.path) as stream:
        numbered = enumerate(map(without_end, lines(stream, file.path)), start=1)
        if file.division == "line":
            parts: Iterable[tuple[int, bytes]] = ((n, line) for n, line in numbered)
        else:
            parts = joined(numbered, file, whole=file.division == "file")
        for number, part in parts:
            document = clean(part, file.name, number, problems)
            if document is not None:
                yield document


def joined(numbered: Iterable[tuple[int, bytes]], file: CorpusFile, whole: bool) -> Iterator[tuple[int, bytes]]:
    """Lines joined to paragraphs, or all of them, with the number of the first line of each."""
    kept: list[bytes] = []
    begin, size = 1, 0
    for number, line in numbered:
        if not whole and (not line or line.isspace()):
            if kept:
                yield begin, b"\n".join(kept)
            kept, begin, size = [], number + 1, 0
            continue
        kept.append(line)
        size += len(line) + 1
        if size > LONGEST:
            other = "'paragraph' or 'line'" if whole else "'line'"
            raise FileError(
                f"{file.path} has a document of more than {LONGEST >> 20} MiB from line {begin} on: "
                f"say what a document is with documents={other}"
            )
    if kept:
        yield begin, b"\n".join(kept)


def read_jsonl(file: CorpusFile, problems: Problems) -> Iterator[Document]:
    """One JSON object a line; blank lines are none."""
    with opened(file.path) as stream:
        yield from from_records(json_records(stream, file, problems), file.column, file.name, problems, FileError)


def json_records(
    stream: BufferedIOBase, file: CorpusFile, problems: Problems
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, line in enumerate(lines(stream, file.path), start=1):
        text, valid = decoded(line)
        if not text.strip():
            continue
        try:
            record = json.loads(text)
        except (ValueError, RecursionError):
            record = None
        if not isinstance(record, dict):
            problems.add("broken_record", file.name, number)
            continue
        if not valid:
            problems.add("invalid_utf8", file.name, number)
        yield number, record


def read_csv(file: CorpusFile, problems: Problems) -> Iterator[Document]:
    """Comma-separated values under a line of names; quoted fields may hold line breaks, and be of any length."""
    with opened(file.path) as stream:
        yield from from_records(csv_records(stream, file, problems), file.column, file.name, problems, FileError)


def csv_records(
    stream: BufferedIOBase, file: CorpusFile, problems: Problems
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    header: Sequence[str] | None = None
    number = 0
    for row, valid in csv_rows(Rewindable(decoded(line) for line in lines(stream, file.path))):
        if row == []:  # a blank line
            continue
        if header is None and row is not None:
            header = row
            if file.column not in header:
                raise no_column(file.name, file.column, header, FileError)
            continue
        number += 1
        if row is None:
            problems.add("broken_record", file.name, number)
        else:
            if not valid:
                problems.add("invalid_utf8", file.name, number)
            yield number, dict(zip(header or (), row, strict=False))


class Rewindable:
    """Lines, each with whether it was valid, that can be given again from the second line of a row on."""

    def __init__(self, source: Iterable[tuple[str, bool]]) -> None:
        self.source = iter(source)
        self.row: list[tuple[str, bool]] = []  # what was given of this row
        self.again: deque[tuple[str, bool]] = deque()

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self.again.popleft() if self.again else next(self.source)
        self.row.append(line)
        return line[0]

    def rewind(self) -> None:
        self.again.extendleft(reversed(self.row[1:]))
        del self.row[1:]


def csv_rows(texts: Rewindable) -> Iterator[tuple[list[str] | None, bool]]:
    """Rows, None for one that is no CSV, each with whether its bytes were valid.

    A quote that is not closed takes everything up to the next one, or to the end, into its field. That is seen where
    the next quote stands in the middle of a field, the file ends, or a row of several lines has another number of
    fields than the first; only the line where the row begins is given up then. The limit on fields is the csv
    module's, so it is lent and given back.
    """
    reader = csv.reader(texts, strict=True)
    columns: int | None = None
    while True:
        texts.row.clear()
        limit = csv.field_size_limit(LONGEST)
        try:
            row: list[str] | None = next(reader)
        except StopIteration:
            return
        except csv.Error:
            row = None
        finally:
            csv.field_size_limit(limit)
        if row:
            columns = columns or len(row)
        if row is None or (len(texts.row) > 1 and len(row) != columns):
            row = None
            texts.rewind()
            reader = csv.reader(texts, strict=True)
        yield row, all(valid for _, valid in texts.row)


def read_parquet(file: CorpusFile, problems: Problems) -> Iterator[Document]:
    """One column of a Parquet file, some rows at a time. Compressed from outside, it is unpacked to disk first."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with tempfile.TemporaryFile() as spool:
        source: Any = check_ordinary(file.path)
        if file.path.suffix.lower() in COMPRESSIONS:
            with opened(file.path) as stream:
                shutil.copyfileobj(stream, spool, BLOCK)
            spool.seek(0)
            source = spool
        try:
            with pq.ParquetFile(source, buffer_size=BLOCK, pre_buffer=False) as table:
                if file.column not in table.schema_arrow.names:
                    raise no_column(file.name, file.column, table.schema_arrow.names, FileError)
                number = 0
                for batch in table.iter_batches(batch_size=ROWS, columns=[file.column], use_threads=False):
                    for value in column_values(batch.column(0)):
                        number += 1
                        document = clean(value, file.name, number, problems)
                        if document is not None:
                            yield document
        except FfnmemError:
            raise
        except (pa.ArrowException, OSError) as error:
            raise FileError(f"{file.path} cannot be read as Parquet: {first_line(error)}") from None


def column_values(column: Any) -> list[Any]:
    """A column as Python values; text as bytes, because Parquet does not promise that it is UTF-8."""
    import pyarrow as pa

    kinds = pa.types
    if kinds.is_dictionary(column.type):
        column = column.dictionary_decode()
    if kinds.is_large_string(column.type):
        column = column.cast(pa.large_binary())
    elif kinds.is_string(column.type) or kinds.is_string_view(column.type):
        column = column.cast(pa.binary())
    return column.to_pylist()


def from_records(
    records: Iterable[tuple[int, Any]], column: str, name: str, problems: Problems, kind: type[FfnmemError]
) -> Iterator[Document]:
    """Documents of numbered records (mappings, or texts themselves); raises ``kind`` if none has the column."""
    columns: Sequence[str] | None = None  # of the first record, until one has the column
    found = False
    for number, record in records:
        if isinstance(record, Mapping):
            value = record.get(column)
            found = found or column in record
            columns = columns or [str(key) for key in record]
        else:
            value, found = record, True
        document = clean(value, name, number, problems)
        if document is not None:
            yield document
    if columns is not None and not found:
        raise no_column(name, column, columns, kind)


def no_column(name: str, column: str, columns: Sequence[str], kind: type[FfnmemError]) -> FfnmemError:
    has = f"its columns are {listed([repr(c) for c in columns], 20)}" if columns else "it has no columns"
    return kind(f"{name} has no column {quoted(column)}: {has}; choose one with text=… (--text)")


READERS: Mapping[str, Callable[[CorpusFile, Problems], Iterator[Document]]] = {
    ".txt": read_text,
    ".jsonl": read_jsonl,
    ".csv": read_csv,
    ".parquet": read_parquet,
}


def from_iterable(items: Iterable[Any], column: str, name: str, problems: Problems) -> Iterator[Document]:
    """Documents of strings, or of mappings with the text column."""
    return from_records(enumerate(items, start=1), column, name, problems, InputError)
