"""Files of text as documents, one reader a format, compressed or not, with their problems counted."""

from __future__ import annotations

import csv
import gzip
import io
import json
import shutil
import tempfile
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedIOBase
from pathlib import Path
from typing import Any, BinaryIO

from ..core.errors import FfnmemError, FileError, listed, quoted
from ..core.files import check_ordinary
from ..core.foreign import first_line
from ..core.sheets import Column, Table

# Bytes of a corpus file: plain, gzip or zstd, read from front to back and never whole.
#
# Not by fsspec: its zstd stream (2026.9) gives a file that was cut off as a whole one, without a word.

COMPRESSIONS = (".gz", ".zst")
BLOCK = 1 << 20
INPUT = 1 << 13  # compressed bytes at a time, which can grow ten thousandfold
LONGEST = 1 << 28  # bytes of one line or document; beyond that the file is not what it was taken for
BOM = b"\xef\xbb\xbf"
UTF16 = (b"\xff\xfe", b"\xfe\xff")


@contextmanager
def opened(path: Path) -> Iterator[io.BufferedIOBase]:
    """The decompressed bytes of a file. Errors in the block that come from reading it raise FileError with its name."""
    from zstandard import ZstdError

    try:
        kind = check_ordinary(path).suffix.lower()
        with io.BufferedReader(path.open("rb", buffering=0), BLOCK) as raw:
            if kind not in COMPRESSIONS:
                yield raw
            else:
                plain = gzip.GzipFile(fileobj=raw) if kind == ".gz" else ZstdStream(raw)
                with io.BufferedReader(plain, BLOCK) as stream:
                    yield stream
    except EOFError:
        raise FileError(f"{path} ends before its compressed data do: it was cut off") from None
    except (gzip.BadGzipFile, zlib.error, ZstdError) as error:
        raise FileError(f"{path} cannot be decompressed: {error}") from None
    except FileError:
        raise
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror or error}") from None


class ZstdStream(io.RawIOBase):
    """Decompressed zstd, frame after frame. The library's own reader does not tell a cut-off file from a whole one."""

    def __init__(self, raw: BinaryIO) -> None:
        from zstandard import ZstdDecompressor

        self._raw = raw
        self._decompressor = ZstdDecompressor(max_window_size=1 << 31)  # what zstd --long=31 writes
        self._frame = self._decompressor.decompressobj()
        self._begun = False  # this frame has had input
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer).cast("B")  # type: ignore[arg-type]
        while not self._ready:
            rest = self._frame.unused_data if self._frame.eof else b""
            if self._frame.eof:
                self._frame, self._begun = self._decompressor.decompressobj(), False
            data = rest or self._raw.read(INPUT)
            if not data:
                if self._begun:
                    raise EOFError
                return 0
            self._begun = True
            self._ready = memoryview(self._frame.decompress(data))
        size = min(len(view), len(self._ready))
        view[:size], self._ready = self._ready[:size], self._ready[size:]
        return size


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
    "nul": "NUL characters, kept as they are",
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

    def record(self) -> dict[str, Any]:
        """As a manifest keeps it."""
        return {"kind": self.kind, "count": self.count, "first": self.first}

    def to_dict(self) -> dict[str, Any]:
        """The same with its meaning."""
        return {**self.record(), "meaning": self.meaning}


def problem_table(problems: Iterable[Problem]) -> Table:
    """Each kind of problem, how often it occurs, and where first."""
    records = [problem.to_dict() for problem in problems]
    wide = (Column(name, wraps=True) for name in ("first", "meaning"))
    return Table.of(records, Column("problem", of="kind"), Column("count", "count"), *wide)


class Problems:
    """Counts problems while a corpus is read."""

    def __init__(self, known: Iterable[Problem] = ()) -> None:
        self._found: dict[str, tuple[int, str]] = {p.kind: (p.count, p.first) for p in known}

    def add(self, kind: str, source: str, number: int | None = None) -> None:
        """Count one more of ``kind``, one of MEANINGS; the first of a kind keeps its place."""
        if kind not in MEANINGS:
            raise KeyError(kind)
        count, first = self._found.get(kind, (0, ""))
        place = first if count else (source if number is None else f"{source}:{number}")
        self._found[kind] = (count + 1, place)

    def table(self) -> tuple[Problem, ...]:
        """What was counted, in the order of MEANINGS."""
        return tuple(Problem(kind, *self._found[kind]) for kind in MEANINGS if kind in self._found)


def problems_from(records: Iterable[Mapping[str, Any]]) -> tuple[Problem, ...]:
    """The inverse of :meth:`Problem.record`; kinds that this version does not know raise KeyError."""
    known = [Problem(str(r["kind"]), int(r["count"]), str(r["first"])) for r in records]
    unknown = [problem.kind for problem in known if problem.kind not in MEANINGS]
    if unknown:
        raise KeyError(unknown[0])
    return Problems(known).table()


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
        problems.add("nul", source, number)
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


# One reader a file format: a file becomes documents, one at a time, with its problems counted.

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
