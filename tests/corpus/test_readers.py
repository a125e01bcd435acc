"""Each format: its documents, and every problem that it can have."""

from __future__ import annotations

import csv
import gzip
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from ffnmem.core.errors import FileError, InputError
from ffnmem.corpus import open_corpus, readers
from ffnmem.corpus import readers as streams
from ffnmem.corpus.packing import corpus_hash
from ffnmem.corpus.readers import READERS, format_of

from ..helpers import refuses

TEXTS = ["one", "zwei – deux 🙂", 'a "quoted" text, with\na line break', "  leading and trailing  ", "x" * 200_000]


def write_text(path: Path, texts: list[str]) -> None:
    path.write_bytes("\n\n".join(texts).encode())


def write_jsonl(path: Path, texts: list[str]) -> None:
    path.write_text("".join(json.dumps({"id": i, "text": text}) + "\n" for i, text in enumerate(texts)))


def write_csv(path: Path, texts: list[str]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["id", "text"], *([i, text] for i, text in enumerate(texts))])


def write_parquet(path: Path, texts: list[str]) -> None:
    pq.write_table(pa.table({"id": range(len(texts)), "text": texts}), path, row_group_size=2)


WRITERS: dict[str, Callable[[Path, list[str]], None]] = {
    ".txt": write_text,
    ".jsonl": write_jsonl,
    ".csv": write_csv,
    ".parquet": write_parquet,
}
COMPRESS: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.compress}


def texts_and_problems(source: Any, **options: Any) -> tuple[list[str], dict[str, tuple[int, str]]]:
    corpus = open_corpus(source, **options)
    texts = [document.text for document in corpus]
    return texts, {p.kind: (p.count, p.first) for p in corpus.problems}


def made(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("end", COMPRESS)
@pytest.mark.parametrize("kind", WRITERS)
def test_every_format_holds_the_same(tmp_path: Path, kind: str, end: str) -> None:
    """The same documents and the same hash, whatever file they come from."""
    path = tmp_path / f"a{kind}{end}"
    WRITERS[kind](path, TEXTS)
    path.write_bytes(COMPRESS[end](path.read_bytes()))
    corpus = open_corpus(path)
    assert [document.text for document in corpus] == TEXTS
    assert corpus_hash(corpus) == corpus_hash(open_corpus(TEXTS))
    assert corpus.problems == ()
    assert {document.source for document in corpus} == {path.name}
    assert corpus.stamp() == open_corpus(path).stamp() is not None


def test_numbers_say_where(tmp_path: Path) -> None:
    """Lines of text and JSON files, rows of tables."""
    expected = {
        ".txt": [1, 3, 5, 8, 10],
        ".jsonl": [1, 2, 3, 4, 5],
        ".csv": [1, 2, 3, 4, 5],
        ".parquet": [1, 2, 3, 4, 5],
    }
    for kind, write in WRITERS.items():
        write(tmp_path / f"a{kind}", TEXTS)
        assert [document.number for document in open_corpus(tmp_path / f"a{kind}")] == expected[kind]


def test_formats_by_name() -> None:
    named = {"a.txt": ".txt", "a.b.JSONL": ".jsonl", "a.csv.gz": ".csv", "a.parquet.zst": ".parquet"}
    others = {"a": None, "a.gz": None, "a.pdf": None, "a.txt.bz2": None, "txt": None, ".txt": None}
    assert {name: format_of(Path(name)) for name in {**named, **others}} == {**named, **others}
    assert set(READERS) == set(WRITERS)


# -- text ------------------------------------------------------------------------------------------------------------

TEXT = b"\xef\xbb\xbfone\r\ntwo\r\n\r\n\n  \t\nthree \xff\n\nnul \x00\n"


def test_paragraphs(tmp_path: Path) -> None:
    """Blank lines separate, whatever their whitespace; byte order mark and carriage returns go."""
    texts, problems = texts_and_problems(made(tmp_path / "a.txt", TEXT))
    assert texts == ["one\ntwo", "three �", "nul \0"]
    assert problems == {"invalid_utf8": (1, "a.txt:6"), "nul": (1, "a.txt:8")}


def test_lines(tmp_path: Path) -> None:
    texts, problems = texts_and_problems(made(tmp_path / "a.txt", TEXT), documents="line")
    assert texts == ["one", "two", "three �", "nul \0"]
    assert problems == {"invalid_utf8": (1, "a.txt:6"), "nul": (1, "a.txt:8"), "empty": (4, "a.txt:3")}


def test_whole_files(tmp_path: Path) -> None:
    made(tmp_path / "a.txt", TEXT)
    made(tmp_path / "b.txt", b"")
    made(tmp_path / "c.txt", b"\n \n")
    texts, problems = texts_and_problems(tmp_path, documents="file")
    assert texts == ["one\ntwo\n\n\n  \t\nthree �\n\nnul \0"]
    assert problems == {"invalid_utf8": (1, "a.txt:1"), "nul": (1, "a.txt:1"), "empty": (1, "c.txt:1")}


def test_a_ten_megabyte_line(tmp_path: Path) -> None:
    path = made(tmp_path / "a.txt", b"one\n\n" + b"word " * 2_000_000 + b"\n\nend")
    texts, problems = texts_and_problems(path)
    assert list(map(len, texts)) == [3, 10_000_000, 3]
    assert not problems


def test_a_document_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of lines taken for paragraphs would be one document that fills the memory."""
    monkeypatch.setattr(readers, "LONGEST", 100)
    path = made(tmp_path / "a.txt", b"short\n\n" + b"a line\n" * 30)
    assert len(texts_and_problems(path, documents="line")[0]) == 31
    with refuses(FileError, OSError, str(path), "from line 3", "documents='line'"):
        texts_and_problems(path)
    with refuses(FileError, OSError, str(path), "from line 1", "'paragraph' or 'line'"):
        texts_and_problems(path, documents="file")


# -- JSON lines ------------------------------------------------------------------------------------------------------


def test_json_problems(tmp_path: Path) -> None:
    """Each line counts at most once a kind; none stops the others."""
    lines = [
        b'\xef\xbb\xbf{"text": "one"}\r',
        b"",
        b'{"text": "cut',
        b"[1, 2]",
        b'"text"',
        b"[" * 50_000,
        b'{"text": 3}',
        b'{"other": "x"}',
        b'{"text": null}',
        b'{"text": "bad \xff byte"}',
        b'{"text": "half \\ud83d pair"}',
        b'{"text": "\\u0000"}',
        b'{"text": "  "}',
        b'{"text": "last", "text": "wins"}',
    ]
    texts, problems = texts_and_problems(made(tmp_path / "a.jsonl", b"\n".join(lines)))
    assert texts == ["one", "bad � byte", "half � pair", "\0", "wins"]
    assert problems == {
        "invalid_utf8": (2, "a.jsonl:10"),
        "nul": (1, "a.jsonl:12"),
        "empty": (1, "a.jsonl:13"),
        "broken_record": (4, "a.jsonl:3"),
        "missing_text": (2, "a.jsonl:8"),
        "not_text": (1, "a.jsonl:7"),
    }


# -- CSV -------------------------------------------------------------------------------------------------------------


def test_csv_problems(tmp_path: Path) -> None:
    rows = [
        b"\xef\xbb\xbfid,text",
        b"1,one\r",
        b"",
        b"2",
        b'3,"two\nlines, and ""quotes"""',
        b"4,bad \xff byte",
        b"5,lone \r return",
        b"6,",
        b"7,more,columns",
    ]
    texts, problems = texts_and_problems(made(tmp_path / "a.csv", b"\n".join(rows)))
    assert texts == ["one", 'two\nlines, and "quotes"', "bad � byte", "more"]
    assert problems == {
        "invalid_utf8": (1, "a.csv:4"),
        "empty": (1, "a.csv:6"),
        "broken_record": (1, "a.csv:5"),
        "missing_text": (1, "a.csv:2"),
    }


def test_csv_limit_stays_the_users(tmp_path: Path) -> None:
    """Fields above the module's limit are read, and the limit is nobody else's business."""
    path = tmp_path / "a.csv"
    write_csv(path, ["y" * 500_000, "z"])
    limit = csv.field_size_limit()
    for document in open_corpus(path):
        assert csv.field_size_limit() == limit, document.number
    assert csv.field_size_limit() == limit


def test_a_quote_that_never_closes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would take the rest of a file into one field."""
    monkeypatch.setattr(readers, "LONGEST", 100)
    path = made(tmp_path / "a.csv", b'text\none\n"two\n' + b"more text\n" * 11 + b"end\n")
    texts, problems = texts_and_problems(path)
    assert texts[0] == "one"
    assert texts[-1] == "end"
    assert problems["broken_record"] == (1, "a.csv:2")


# -- Parquet ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind",
    [pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.dictionary(pa.int32(), pa.string())],
    ids=str,
)
def test_parquet_text_of_every_kind(tmp_path: Path, kind: Any) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": pa.array(["one", None, "zwei – deux", " "]).cast(kind)}), path)
    texts, problems = texts_and_problems(path)
    assert texts == ["one", "zwei – deux"]
    assert problems == {"missing_text": (1, "a.parquet:2"), "empty": (1, "a.parquet:4")}


def test_parquet_problems(tmp_path: Path) -> None:
    """Text that is no UTF-8, which Parquet does not look at, and a column of numbers."""
    path = tmp_path / "a.parquet"
    bad = pa.Array.from_buffers(pa.string(), 1, pa.array([b"bad \xff"], pa.binary()).buffers())
    pq.write_table(pa.table({"text": bad, "number": [1]}), path)
    assert texts_and_problems(path) == (["bad �"], {"invalid_utf8": (1, "a.parquet:1")})
    assert texts_and_problems(path, text="number") == ([], {"not_text": (1, "a.parquet:1")})


@pytest.mark.parametrize("end", COMPRESS)
def test_broken_parquet(tmp_path: Path, end: str) -> None:
    path = tmp_path / f"a.parquet{end}"
    write_parquet(path, TEXTS)
    for data in (path.read_bytes()[:-30], b"PAR1 and nothing", b""):
        made(path, COMPRESS[end](data))
        with refuses(FileError, OSError, str(path), "Parquet"):
            texts_and_problems(path)


# -- columns ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [".jsonl", ".csv", ".parquet"])
def test_no_such_column(tmp_path: Path, kind: str) -> None:
    """If no record has it, the user meant another one."""
    path = tmp_path / f"a{kind}"
    WRITERS[kind](path, TEXTS)
    with refuses(FileError, OSError, path.name, "'body'", "'id', 'text'", "--text"):
        texts_and_problems(path, text="body")
    assert texts_and_problems(path, text="text")[0] == TEXTS


def test_no_such_column_in_an_iterable() -> None:
    with refuses(InputError, ValueError, "'text'", "'body', 'id'"):
        texts_and_problems([{"body": "x", "id": 3}] * 2)


def test_iterables_of_both_kinds() -> None:
    texts, problems = texts_and_problems(["one", {"text": "two"}, {"body": "x"}, 3, None, b"bytes"])
    assert texts == ["one", "two", "bytes"]
    assert problems == {"missing_text": (2, "list:3"), "not_text": (1, "list:4")}


@pytest.mark.parametrize("kind", WRITERS)
def test_memory_is_flat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Ten times more documents in a file, and no more memory."""
    monkeypatch.setattr(streams, "BLOCK", 1 << 13)

    def peak(n: int) -> int:
        path = tmp_path / f"{n}{kind}"
        WRITERS[kind](path, ["a text of some words " * 10] * n)
        tracemalloc.start()
        assert sum(1 for _ in open_corpus(path)) == n
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    peak(10)
    assert peak(1500) < 1.2 * peak(150) + 50_000  # all of it would be 330,000


def unclosed(rows: int) -> str:
    """A CSV of so many rows of which the second opens a quote and does not close it."""
    return "text,n\n" + "".join(f'"row {n}{"" if n == 1 else chr(34)},{n}\n' for n in range(rows))


@pytest.mark.parametrize(
    ("content", "texts", "broken"),
    [
        (unclosed(500), [f"row {n}" for n in range(500) if n != 1], 1),
        ('text\n"one\ntwo\nthree\n', ["two", "three"], 1),  # to the end of the file
        ('text,n\n"one,1\ntwo,2\n5 inch"\n', ["two", '5 inch"'], 1),  # closed by a quote that is another's
        ('text\n"he said "no" to me"\nyes\n', ["yes"], 1),  # quotes that are not doubled
        ('text,n\n"a\nb\n\nc",1\n"say ""no""",2\n', ["a\nb\n\nc", 'say "no"'], 0),  # as it should be
    ],
)
def test_a_quote_that_is_not_closed_costs_one_line_and_is_counted(
    content: str, texts: list[str], broken: int, tmp_path: Path
) -> None:
    """One quote would swallow all rows up to the next into one document, and nobody would be told."""
    path = tmp_path / "texts.csv"
    path.write_text(content)
    corpus = open_corpus(path)
    assert [document.text for document in corpus] == texts
    assert sum(problem.count for problem in corpus.problems if problem.kind == "broken_record") == broken
