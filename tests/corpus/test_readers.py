"""Each format, compressed or not: its documents, and every problem that it can have."""

from __future__ import annotations

import csv
import gzip
import json
import tracemalloc
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffnmem.core.errors import FfnmemWarning, FileError, InputError, unwarned
from ffnmem.corpus import Problem, open_corpus, readers
from ffnmem.corpus.packing import corpus_hash
from ffnmem.corpus.readers import MEANINGS

from ..helpers import refuses

TEXTS = ["one", "zwei – deux 🙂", 'a "quoted" text, with\na line break', "  leading and trailing  ", "x" * 200_000]


def write(path: Path, texts: list[str]) -> None:
    """A file of the kind that its name says, a document a text, beside a column of numbers if there are columns."""
    if path.suffix == ".txt":
        path.write_bytes("\n\n".join(texts).encode())
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps({"id": i, "text": text}) + "\n" for i, text in enumerate(texts)))
    elif path.suffix == ".csv":
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([["id", "text"], *([i, text] for i, text in enumerate(texts))])
    else:
        pq.write_table(pa.table({"id": range(len(texts)), "text": texts}), path, row_group_size=2)


KINDS = (".txt", ".jsonl", ".csv", ".parquet")
COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".zst": lambda data: pa.Codec("zstd").compress(data, asbytes=True),
}


def texts_and_problems(source: Any, **options: Any) -> tuple[list[str], dict[str, tuple[int, str]]]:
    corpus = open_corpus(source, **options)
    with unwarned():
        texts = [document.text for document in corpus]
    assert all(problem.meaning == MEANINGS[problem.kind] for problem in corpus.problems)
    return texts, {p.kind: (p.count, p.first) for p in corpus.problems}


def made(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("end", COMPRESS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_format_holds_the_same(tmp_path: Path, kind: str, end: str) -> None:
    """The same documents and the same hash, whatever file they come from, and where each stands in it."""
    path = tmp_path / f"a{kind}"
    write(path, TEXTS)
    path = made(tmp_path / f"a{kind}{end}", COMPRESS[end](path.read_bytes()))
    corpus = open_corpus(path)
    numbers = [1, 3, 5, 8, 10] if kind == ".txt" else [1, 2, 3, 4, 5]
    found = [(document.text, document.source, document.number) for document in corpus]
    assert found == [(text, path.name, n) for text, n in zip(TEXTS, numbers, strict=True)]
    assert corpus_hash(corpus) == corpus_hash(open_corpus(TEXTS))
    assert corpus.problems == ()


@pytest.mark.parametrize("kind", KINDS)
def test_memory_is_flat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Ten times more documents in a file, and no more memory."""
    monkeypatch.setattr(readers, "BLOCK", 1 << 13)

    def peak(n: int) -> int:
        path = tmp_path / f"{n}{kind}"
        write(path, ["a text of some words " * 10] * n)
        tracemalloc.start()
        assert sum(1 for _ in open_corpus(path)) == n
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    peak(10)
    assert peak(1500) < 1.2 * peak(150) + 50_000  # all of it would be 330,000


@pytest.mark.parametrize("end", [".gz", ".zst"])
def test_compressed_streams(tmp_path: Path, end: str) -> None:
    """Parallel compressors write many members, and `cat` joins files; what is cut off or damaged is no shorter text."""
    lines = b"".join(b"line %d of a text\n" % i for i in range(5000))
    compress, path = COMPRESS[end], tmp_path / f"a.txt{end}"
    data = compress(lines)
    path.write_bytes(b"".join(map(compress, (lines, b"", b"end"))))
    assert texts_and_problems(path, documents="line")[0] == [*lines.decode().splitlines(), "end"]
    for broken in (data[:5], data[: len(data) // 2], data[:-1], b"no compressed data", data + b"garbage behind"):
        path.write_bytes(broken)
        with refuses(FileError, OSError, str(path), "cannot be read"):
            texts_and_problems(path)


@pytest.mark.parametrize(
    ("raw", "text", "kinds"),
    [
        (b"zwei \xe2\x80\x93", "zwei –", []),
        (b"bad \xff byte", "bad � byte", ["invalid_utf8"]),
        ("half \ud83d a pair", "half � a pair", ["invalid_utf8"]),
        ("", None, ["empty"]),
        (" \n\u3000", None, ["empty"]),
        (None, None, ["missing_text"]),
        (3.5, None, ["not_text"]),
        ("binary \0", None, ["nul"]),
    ],
    ids=repr,
)
def test_values(raw: Any, text: str | None, kinds: list[str]) -> None:
    """Every kind of value is kept, mended or skipped as MEANINGS says, and counted with its first place."""
    corpus = open_corpus(["before", raw, raw])
    with pytest.warns(FfnmemWarning, match="list:2 has NUL") if kinds == ["nul"] else nullcontext():
        assert [(d.text, d.number) for d in corpus] == [("before", 1), *((text, n) for n in (2, 3) if text is not None)]
    assert corpus.problems == tuple(Problem(kind, 2, "list:2") for kind in kinds)


# -- text ------------------------------------------------------------------------------------------------------------


@given(st.lists(st.text("ab\0 é\ufeff\ufffe", max_size=8), min_size=1), st.sampled_from(["\n", "\r\n"]), st.booleans())
def test_lines_and_their_ends(tmp_path_factory: pytest.TempPathFactory, parts: list[str], end: str, mark: bool) -> None:
    """Either line end, with or without a byte order mark, which is no part of the text."""
    path = tmp_path_factory.mktemp("lines") / "a.txt"
    path.write_bytes(end.join(parts).encode("utf-8-sig" if mark else "utf-8"))
    kept = [part.removeprefix("" if mark or i else "\ufeff") for i, part in enumerate(parts)]
    assert texts_and_problems(path, documents="line")[0] == [part for part in kept if part.strip() and "\0" not in part]


BAD, NUL = {"invalid_utf8": (1, "a.txt:6")}, {"nul": (1, "a.txt:8")}


@pytest.mark.parametrize(
    ("documents", "texts", "problems"),
    [
        (None, ["one\ntwo", "three �"], BAD | NUL),
        ("line", ["one", "two", "three �"], {**BAD, **NUL, "empty": (6, "a.txt:3")}),
        (
            "file",
            [],
            {"invalid_utf8": (1, "a.txt:1"), "nul": (1, "a.txt:1"), "empty": (1, "c.txt:1")},
        ),
    ],
)
def test_documents_of_text(
    tmp_path: Path, documents: Any, texts: list[str], problems: dict[str, tuple[int, str]]
) -> None:
    """Blank lines separate, whatever their whitespace; byte order mark and carriage returns go."""
    made(tmp_path / "a.txt", b"\xef\xbb\xbfone\r\ntwo\r\n\r\n\n  \t\nthree \xff\n\nnul \x00\n")
    made(tmp_path / "b.txt", b"")
    made(tmp_path / "c.txt", b"\n \n")
    assert texts_and_problems(tmp_path, documents=documents) == (texts, problems)


def test_long_documents_and_what_is_no_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of lines taken for paragraphs, or a disk image called .txt, would fill the memory."""
    monkeypatch.setattr(readers, "LONGEST", 100)
    path = tmp_path / "a.txt"
    for data, documents, named in (
        (b"short\n\n" + b"a line\n" * 30, "paragraph", ["from line 3", "documents='line'"]),
        (b"a line\n" * 30, "file", ["from line 1", "'paragraph' or 'line'"]),
        (b"x" * 100 + b"\n" + b"y" * 101, "line", ["line of more than"]),
        ("one\n".encode("utf-16"), "line", ["UTF-16", "UTF-8"]),
    ):
        with refuses(FileError, OSError, str(path), *named):
            texts_and_problems(made(path, data), documents=documents)
    assert len(texts_and_problems(made(path, b"short\n\n" + b"a line\n" * 30), documents="line")[0]) == 31


# -- records ---------------------------------------------------------------------------------------------------------


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
    assert texts == ["one", "bad � byte", "half � pair", "wins"]
    assert problems == {
        "invalid_utf8": (2, "a.jsonl:10"),
        "nul": (1, "a.jsonl:12"),
        "empty": (1, "a.jsonl:13"),
        "broken_record": (4, "a.jsonl:3"),
        "missing_text": (2, "a.jsonl:8"),
        "not_text": (1, "a.jsonl:7"),
    }


def test_csv_problems(tmp_path: Path) -> None:
    rows = b"""\xef\xbb\xbfid,text
1,one\r

2
3,"two
lines, and ""quotes""\"
4,bad \xff byte
5,lone \r return
6,
7,more,columns"""
    texts, problems = texts_and_problems(made(tmp_path / "a.csv", rows))
    assert texts == ["one", 'two\nlines, and "quotes"', "bad � byte", "more"]
    assert problems == {
        "invalid_utf8": (1, "a.csv:4"),
        "empty": (1, "a.csv:6"),
        "broken_record": (1, "a.csv:5"),
        "missing_text": (1, "a.csv:2"),
    }


MANY = "text,n\n" + "".join(f'"row {n}{"" if n == 1 else chr(34)},{n}\n' for n in range(500))
"""The second row opens a quote and does not close it."""


@pytest.mark.parametrize(
    ("content", "texts", "broken"),
    [
        (MANY, [f"row {n}" for n in range(500) if n != 1], 1),
        ('text\none\n"two\n' + "more text\n" * 11, ["one", *["more text"] * 11], 1),  # further than a field may be long
        ('text,n\n"one,1\ntwo,2\n5 inch"\n', ["two", '5 inch"'], 1),  # closed by a quote that is another's
        ('text,n\n"a\nb\n\nc",1\n"say ""no""",2\n', ["a\nb\n\nc", 'say "no"'], 0),  # as it should be
    ],
)
def test_a_quote_that_is_not_closed_costs_one_line_and_is_counted(
    content: str, texts: list[str], broken: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One quote would swallow all rows up to the next into one document, and nobody would be told."""
    monkeypatch.setattr(readers, "LONGEST", 100)
    found, problems = texts_and_problems(made(tmp_path / "texts.csv", content.encode()))
    assert found == texts
    assert problems.get("broken_record", (0, ""))[0] == broken


KINDS_OF_TEXT = [pa.string(), pa.large_string(), pa.binary(), pa.dictionary(pa.int32(), pa.string())]


def test_parquet(tmp_path: Path) -> None:
    """Text of every kind, and text that is no UTF-8, which Parquet does not look at; columns of numbers and records."""
    path = tmp_path / "a.parquet"
    for kind in KINDS_OF_TEXT:
        pq.write_table(pa.table({"text": pa.array(["one", None, "zwei – deux", " "]).cast(kind)}), path)
        problems = {"missing_text": (1, "a.parquet:2"), "empty": (1, "a.parquet:4")}
        assert texts_and_problems(path) == (["one", "zwei – deux"], problems)
    bad = pa.Array.from_buffers(pa.string(), 1, pa.array([b"bad \xff"], pa.binary()).buffers())
    pq.write_table(pa.table({"text": bad, "number": [1], "record": [{"record": "x"}]}), path)
    assert texts_and_problems(path) == (["bad �"], {"invalid_utf8": (1, "a.parquet:1")})
    for column in ("number", "record"):
        assert texts_and_problems(path, text=column) == ([], {"not_text": (1, "a.parquet:1")})
    write(path, TEXTS)
    whole = path.read_bytes()
    for end in ("", ".zst"):
        for data in (whole[:-30], b"PAR1 and nothing", b""):
            broken = made(tmp_path / f"a.parquet{end}", COMPRESS[end](data))
            with refuses(FileError, OSError, str(broken), "Parquet"):
                texts_and_problems(broken)


@pytest.mark.parametrize("kind", KINDS[1:])
def test_no_such_column(tmp_path: Path, kind: str) -> None:
    """If no record has it, the user meant another one."""
    path = tmp_path / f"a{kind}"
    write(path, TEXTS)
    with refuses(FileError, OSError, path.name, "'body'", "'id', 'text'", "--text"):
        texts_and_problems(path, text="body")
    with refuses(InputError, ValueError, "'text'", "'body', 'id'"):
        texts_and_problems([{"body": "x", "id": 3}] * 2)
