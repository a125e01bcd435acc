"""Corpus files of every format with bytes changed, cut, doubled and swapped: read with problems counted, or refused."""

from __future__ import annotations

import gzip
import json
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

import ffnmem as fm

from .judging import answered, hostile
from .material import fresh, tiny

TEXTS = ['The Eiffel "Tower" is in Paris.', "two\nlines", "", "é日本", "a" * 300, "= 1 + 1"]


@cache
def files() -> dict[str, bytes]:
    """One small file of every format, by its suffix."""
    lines = "".join(json.dumps({"text": text, "n": n}, ensure_ascii=False) + "\n" for n, text in enumerate(TEXTS))
    cells = "".join('"' + text.replace('"', '""') + f'",{n}\r\n' for n, text in enumerate(TEXTS))
    table = fresh()
    pq.write_table(pa.table({"text": TEXTS, "n": range(len(TEXTS))}), table)
    plain = {
        ".txt": "\n\n".join(TEXTS).encode(),
        ".jsonl": lines.encode(),
        ".csv": b"text,n\r\n" + cells.encode(),
        ".parquet": table.read_bytes(),
    }
    packed = {f"{suffix}.gz": gzip.compress(data) for suffix, data in plain.items()}
    packed |= {f"{suffix}.zst": pa.Codec("zstd").compress(data, asbytes=True) for suffix, data in plain.items()}
    return plain | packed


@st.composite
def mutated(draw: st.DrawFn, data: bytes) -> bytes:
    """The bytes after a few changes."""
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        length = draw(st.integers(0, 12))
        new = draw(
            st.one_of(
                st.binary(max_size=6),
                st.sampled_from([b'"', b'"\n', b",", b"\0", b"\xff", b"\n", b"\r", b"{", b"[" * 3000, b"\xed\xa0\x80"]),
                st.just(data[start : start + length] * 2),
            )
        )
        data = data[:start] + new + data[start + length :]
    return data[: draw(st.integers(0, len(data)))] if draw(st.integers(0, 5)) == 0 else data


@st.composite
def broken_files(draw: st.DrawFn) -> tuple[str, bytes]:
    suffix = draw(st.sampled_from(sorted(files())))
    return suffix, draw(mutated(files()[suffix]))


@hostile(examples=80, file=broken_files(), column=st.sampled_from(["text", "text", "n", "none", "\0", ""]))
def test_any_corpus_file_is_read_or_refused(file: tuple[str, bytes], column: str) -> None:
    suffix, content = file
    path = fresh().with_suffix(suffix)
    path.write_bytes(content)

    def read() -> Any:
        corpus = fm.corpus.open_corpus(path) if suffix.startswith(".txt") else fm.corpus.open_corpus(path, text=column)
        documents = list(corpus)
        corpus.stamp()
        for document in documents:
            document.text.encode()  # no half characters
        assert all(problem.count > 0 and problem.meaning for problem in corpus.problems)
        return documents

    answered(f"read {suffix}", read)
    if suffix == ".csv" and column == "text":
        answered("pack", lambda: fm.corpus.pack(path, tiny(), fresh()))


@hostile(
    examples=30, rows=st.integers(2, 60), at=st.integers(0, 59), quote=st.sampled_from(['"x', '"', 'x"y"', '"x" y'])
)
def test_one_bad_quote_never_swallows_other_rows(rows: int, at: int, quote: str) -> None:
    """Whatever one row does with quotes, all others are read, or a problem is counted."""
    lines = [f'"row {n}",{n}' for n in range(rows)]
    lines[at % rows] = f"{quote},{at}"
    path = fresh().with_suffix(".csv")
    path.write_text("text,n\n" + "\n".join(lines) + "\n")
    corpus = fm.corpus.open_corpus(path)
    found = {document.text for document in corpus}
    lost = [n for n in range(rows) if n != at % rows and f"row {n}" not in found]
    assert len(lost) <= 1, lost
    assert not lost or corpus.problems


@hostile(
    examples=20,
    items=st.lists(
        st.one_of(
            st.text(st.characters(codec=None), max_size=5),
            st.none(),
            st.integers(),
            st.binary(max_size=3),
            st.dictionaries(
                st.sampled_from(["text", "body"]), st.one_of(st.text(max_size=3), st.integers()), max_size=2
            ),
        ),
        max_size=4,
    ),
)
def test_any_texts_in_memory(items: list[Any]) -> None:
    answered("texts", lambda: list(fm.corpus.open_corpus(items)))
    answered("pack texts", lambda: fm.corpus.pack(items, tiny(), fresh()))
