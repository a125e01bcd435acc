"""Files of text as documents, one reader a format, compressed or not, with their problems counted."""

from __future__ import annotations

import csv
import io
import json
import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..core.errors import FfnmemError, FileError, listed, quoted, warn
from ..core.files import check_ordinary
from ..core.foreign import first_line

# Bytes of a corpus file: plain, gzip or zstd, read from front to back and never whole.
#
# By pyarrow, not by fsspec, whose zstd stream (2026.9) gives a file that was cut off as a whole one, without a word.

COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
BLOCK = 1 << 20
LONGEST = 1 << 28  # bytes of one line or document; beyond that the file is not what it was taken for
BOM = b"\xef\xbb\xbf"
UTF16 = (b"\xff\xfe", b"\xfe\xff")


@contextmanager
def opened(path: Path) -> Iterator[io.BufferedIOBase]:
    """The decompressed bytes of a file. Errors in the block that come from reading it raise FileError with its name."""
    import pyarrow as pa

    check_ordinary(path)
    try:
        raw = pa.input_stream(str(path), compression=COMPRESSIONS.get(path.suffix.lower()))
        with io.BufferedReader(raw, BLOCK) as stream:
            yield stream
    except FileError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise FileError(f"{path} cannot be read: {first_line(error)}") from None


def lines(stream: io.BufferedIOBase, path: Path) -> Iterator[bytes]:
    """Lines with their ends, a byte order mark left out; raises FileError for UTF-16 and for a line without end."""
    first = True
    while line := stream.readline(LONGEST + 1):
        if first:
            if line.startswith(UTF16):
                raise FileError(f"{path} is UTF-16: convert it to UTF-8")
            line, first = line.removeprefix(BOM), False
        if len(line) > LONGEST:
            raise FileError(f"{path} has a line of more than {LONGEST >> 20} MiB, so it is no text of lines")
        yield line


def without_end(line: bytes) -> bytes:
    """A line without its line feed, or carriage return and line feed."""
    if line.endswith(b"\n"):
        return line[:-2] if line.endswith(b"\r\n") else line[:-1]
    return line


# What a corpus holds, and what is wrong with it: documents, and problems that are counted and stop nothing.

MEANINGS = {
    "invalid_utf8": "bytes that are no UTF-8 (or half a surrogate pair), replaced by \N{REPLACEMENT CHARACTER}",
    "nul": "NUL characters, as files have that are no text, skipped",
    "empty": "no text but whitespace, skipped",
    "broken_record": "no JSON object, or no CSV row (a quote that is not closed, or stands inside a field), skipped",
    "missing_text": "a record without the text column, or with nothing in it, skipped",
    "not_text": "a text that is no string, skipped",
    "skipped_file": "a file of another type in a folder, or a pipe or device, skipped",
    "special_text": "the name of a special token in the text, tokenised as ordinary text",
    "no_tokens": "a document of which the tokenizer left nothing, kept with no tokens",
}
"""Every kind of problem, and what was done about it. Each counts documents, records or files, not characters."""


@dataclass(frozen=True)
class Document:
    """One text of a corpus.

    Attributes:
        text: never empty, always valid Unicode.
        source: the file, relative to the folder that was opened, or the name of the corpus.
        number: where in it, from 1: the line of a text or JSON file, the row of a table, the item of an iterable.
    """

    text: str
    source: str
    number: int


@dataclass(frozen=True)
class Problem:
    """One kind of problem: how many documents (records, files) have it, and the first place where it occurred."""

    kind: str
    count: int
    first: str

    @property
    def meaning(self) -> str:
        """What the kind is, and what was done about it."""
        return MEANINGS[self.kind]

    def to_dict(self) -> dict[str, Any]:
        """The same with its meaning."""
        return {**asdict(self), "meaning": self.meaning}


class Problems:
    """Counts problems while a corpus is read."""

    def __init__(self, known: Iterable[Problem] = ()) -> None:
        self._by_kind = {problem.kind: problem for problem in known}

    def add(self, kind: str, source: str, number: int | None = None) -> bool:
        """Count one more of ``kind``, one of MEANINGS, and say whether it is the first, which keeps its place."""
        before = self._by_kind.get(kind)
        if before is None:
            before = Problem(kind, 0, source if number is None else f"{source}:{number}")
        self._by_kind[kind] = replace(before, count=before.count + 1)
        return not before.count

    def table(self) -> tuple[Problem, ...]:
        """What was counted, in the order of MEANINGS."""
        return tuple(self._by_kind[kind] for kind in MEANINGS if kind in self._by_kind)


def clean(raw: Any, source: str, number: int, problems: Problems) -> Document | None:
    """A document of a raw value (str or bytes), its problems counted; None where nothing is left to keep."""
    if raw is None:
        problems.add("missing_text", source, number)
        return None
    if not isinstance(raw, str | bytes):
        problems.add("not_text", source, number)
        return None
    text, valid = decoded(raw)
    if not valid:
        problems.add("invalid_utf8", source, number)
    if "\0" in text:
        if problems.add("nul", source, number):
            warn(f"{source}:{number} has NUL characters, so it is no text: documents with such are skipped")
        return None
    if not text or text.isspace():
        problems.add("empty", source, number)
        return None
    return Document(text, source, number)


def decoded(raw: str | bytes) -> tuple[str, bool]:
    """Valid Unicode, and whether ``raw`` was so already. JSON can hold half of a surrogate pair, which no tokenizer
    takes."""
    if isinstance(raw, bytes):
        try:
            return raw.decode("utf-8"), True
        except UnicodeDecodeError:
            return raw.decode("utf-8", "replace"), False
    try:
        if not raw.isascii():
            raw.encode("utf-8")
    except UnicodeEncodeError:
        return raw.encode("utf-16", "surrogatepass").decode("utf-16", "replace"), False
    return raw, True


# One reader a file format: a file becomes numbered records (or texts), one at a time, with its problems counted.

ROWS = 64  # of a Parquet file at a time
Records = Iterator[tuple[int, Any]]


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
        return from_records(READERS[self.format](self, problems), self.column, self.name, problems, FileError)


def format_of(path: Path) -> str | None:
    """The format of a file by its name, compressed or not; None for what is no corpus file."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in COMPRESSIONS:
        suffixes.pop()
    return suffixes[-1] if suffixes and suffixes[-1] in READERS else None


def read_text(file: CorpusFile, problems: Problems) -> Records:
    """Paragraphs, lines or the whole of a text file; line ends become line feeds."""
    with opened(file.path) as stream:
        numbered = enumerate(map(without_end, lines(stream, file.path)), start=1)
        yield from numbered if file.division == "line" else joined(numbered, file, file.division == "file")


def joined(numbered: Iterable[tuple[int, bytes]], file: CorpusFile, whole: bool) -> Records:
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


def read_jsonl(file: CorpusFile, problems: Problems) -> Records:
    """One JSON object a line; blank lines are none."""
    with opened(file.path) as stream:
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


def read_csv(file: CorpusFile, problems: Problems) -> Records:
    """Comma-separated values under a line of names; quoted fields may hold line breaks, and be of any length."""
    header: Sequence[str] | None = None
    number = 0
    csv.field_size_limit(max(LONGEST, csv.field_size_limit()))  # of the whole module, and never lowered again
    with opened(file.path) as stream:
        for row, valid in csv_rows(map(decoded, lines(stream, file.path))):
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
                continue
            if not valid:
                problems.add("invalid_utf8", file.name, number)
            yield number, dict(zip(header or (), row, strict=False))


def csv_rows(texts: Iterable[tuple[str, bool]]) -> Iterator[tuple[list[str] | None, bool]]:
    """Rows of lines, None for one that is no CSV, each with whether its bytes were valid.

    A quote that is not closed takes everything up to the next one, or to the end, into its field. That is seen where
    the next quote stands in the middle of a field, the file ends, or a row of several lines has another number of
    fields than the first; only the line where the row begins is given up then, and those behind it are read again.
    """
    source, again, taken = iter(texts), deque[tuple[str, bool]](), list[tuple[str, bool]]()
    columns: int | None = None

    def take() -> Iterator[str]:
        while (line := again.popleft() if again else next(source, None)) is not None:
            taken.append(line)
            yield line[0]

    reader = csv.reader(take(), strict=True)
    while True:
        taken.clear()
        try:
            row = next(reader, None)
        except csv.Error:
            row = None
        if not taken:
            return
        columns = columns or len(row or ())
        if row is None or (len(taken) > 1 and len(row) != columns):
            row = None
            again.extendleft(reversed(taken[1:]))
            del taken[1:]
            reader = csv.reader(take(), strict=True)
        yield row, all(valid for _, valid in taken)


def read_parquet(file: CorpusFile, problems: Problems) -> Records:
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
                batches = table.iter_batches(batch_size=ROWS, columns=[file.column], use_threads=False)
                values = (value for batch in batches for value in column_values(batch.column(0)))
                for number, value in enumerate(values, start=1):
                    yield number, {file.column: value}
        except FfnmemError:
            raise
        except (pa.ArrowException, OSError) as error:
            raise FileError(f"{file.path} cannot be read as Parquet: {first_line(error)}") from None


def column_values(column: Any) -> list[Any]:
    """A column as Python values; text as bytes, because Parquet does not promise that it is UTF-8."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if str(column.type) in ("string", "large_string", "string_view"):
        column = column.cast(pa.large_binary())
    return column.to_pylist()


def from_records(
    records: Iterable[tuple[int, Any]], column: str, name: str, problems: Problems, kind: type[FfnmemError]
) -> Iterator[Document]:
    """Documents of numbered records (mappings, or texts themselves); raises ``kind`` if none has the column."""
    columns: Sequence[str] | None = None  # of the first record
    has_column = False
    for number, record in records:
        if isinstance(record, Mapping):
            value = record.get(column)
            has_column = has_column or column in record
            columns = columns or [str(key) for key in record]
        else:
            value, has_column = record, True
        document = clean(value, name, number, problems)
        if document is not None:
            yield document
    if columns is not None and not has_column:
        raise no_column(name, column, columns, kind)


def no_column(name: str, column: str, columns: Sequence[str], kind: type[FfnmemError]) -> FfnmemError:
    has = f"its columns are {listed([repr(c) for c in columns], 20)}" if columns else "it has no columns"
    return kind(f"{name} has no column {quoted(column)}: {has}; choose one with text=… (--text)")


READERS: Mapping[str, Callable[[CorpusFile, Problems], Records]] = {
    ".txt": read_text,
    ".jsonl": read_jsonl,
    ".csv": read_csv,
    ".parquet": read_parquet,
}
