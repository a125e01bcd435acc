"""Opening a corpus: what every kind of source is, and what is said of those that are none."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import ffnmem as fm
from ffnmem.core.errors import FileError, InputError
from ffnmem.core.resources import embedded_corpus
from ffnmem.corpus import Corpus, Document, Packed, Problem, open_corpus, pack

from ..helpers import REPOSITORY, refuses


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A folder with files on two levels and some that are no corpus."""
    for name, data in {
        "b.txt": b"in b",
        "a/z.jsonl": b'{"text": "in z"}\n',
        "a/k.txt.gz": gzip.compress(b"in k\n\nin k too"),
        "a.txt": b"in a",
        "notes.pdf": b"%PDF",
        "a/data.json": b"{}",
    }.items():
        path = tmp_path / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return tmp_path / "tree"


def test_folders_are_read_in_the_order_of_names(tree: Path) -> None:
    """Recursively; what is no corpus file is counted."""
    corpus = open_corpus(tree)
    assert isinstance(corpus, Corpus)
    assert [(d.text, d.source, d.number) for d in corpus] == [
        ("in a", "a.txt", 1),
        ("in k", "a/k.txt.gz", 1),
        ("in k too", "a/k.txt.gz", 3),
        ("in z", "a/z.jsonl", 1),
        ("in b", "b.txt", 1),
    ]
    assert corpus.problems == (Problem("skipped_file", 2, "a/data.json"),)
    assert corpus.files == tuple(tree / name for name in ("a.txt", "a/k.txt.gz", "a/z.jsonl", "b.txt"))
    assert "4 files" in repr(corpus)
    assert corpus.name == "tree"


@pytest.mark.parametrize(
    ("pattern", "texts"),
    [
        ("*.txt", ["in a", "in b"]),
        ("**/*.txt*", ["in a", "in k", "in k too", "in b"]),
        ("[b]*", ["in b"]),
        ("?", ["in k", "in k too", "in z"]),
        ("*", ["in a", "in k", "in k too", "in z", "in b"]),
    ],
)
def test_patterns(tree: Path, pattern: str, texts: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """From anywhere or from here, in the order of names; a folder that matches is read as one."""
    assert [d.text for d in open_corpus(str(tree / pattern))] == texts
    monkeypatch.chdir(tree)
    assert [d.text for d in open_corpus(pattern)] == texts


def test_a_name_with_brackets_is_a_name(tree: Path) -> None:
    (tree / "[b].txt").write_text("brackets")
    assert [d.text for d in open_corpus(tree / "[b].txt")] == ["brackets"]


NO_PATHS = ("", "a\0b", "x" * 5000, "~nosuchuser/texts.txt", "a\udcff")


def test_nothing_found(tree: Path) -> None:
    (tree / "empty").mkdir()
    for source, named in (
        (tree / "empty", ["no file", ".parquet"]),
        (tree / "*.pdf", ["only 1 files of other types"]),
        (tree / "*.none", ["no file"]),
        (tree / "notes.pdf", ["no corpus file", ".jsonl"]),
        (tree / "none.txt", ["no corpus", "'atlas'"]),
        *((source, ["no corpus", "texts themselves go into a list"]) for source in NO_PATHS),
        ("A text itself. " * 100, ["no corpus", "…", "list", "too long"]),
    ):
        with refuses(FileError, OSError, *named):
            open_corpus(str(source))


@pytest.mark.parametrize("source", [3, b"bytes", {"text": "x"}, None], ids=repr)
def test_what_is_no_source(source: Any) -> None:
    with refuses(InputError, ValueError, type(source).__name__, "iterable of strings"):
        open_corpus(source)


def test_options_that_would_do_nothing(tree: Path) -> None:
    """An option that is ignored is an answer to another question."""
    for source, options, named in (
        (tree / "a/z.jsonl", {"documents": "line"}, ["'line'", ".jsonl"]),
        (["x"], {"documents": "line"}, ["'line'", "iterable"]),
        ("atlas", {"documents": "line"}, ["'line'"]),
        ("atlas", {"text": "body"}, ["'body'"]),
        (tree / "a.txt", {"text": "body"}, ["'body'", ".txt"]),
        ("hf:a/b", {"documents": "line"}, ["'line'", "data set"]),
        (open_corpus(["x"]), {"text": "body"}, ["'body'"]),
        (tree / "a.txt", {"documents": "chapter"}, ["'chapter'", "'paragraph'"]),
    ):
        with refuses(InputError, ValueError, *named):
            open_corpus(source, **options)
    assert [d.text for d in open_corpus(tree, documents="file", text="text")][1] == "in k\n\nin k too"


def test_every_reading_counts_anew() -> None:
    """Problems of two readings are not added up."""
    corpus = open_corpus(["one", "", "two"])
    assert open_corpus(corpus) is corpus
    assert corpus.problems == ()
    for _ in range(2):
        assert [d.text for d in corpus] == ["one", "two"]
        assert corpus.problems == (Problem("empty", 1, "list:2"),)


def test_an_iterator_is_read_once() -> None:
    """A second reading would silently be empty; nothing is read before it is asked for."""

    def texts() -> Iterator[str]:
        yield "one"
        yield "two"
        raise AssertionError("read ahead")

    corpus = open_corpus(texts())
    assert not corpus.repeatable
    assert list(islice(corpus, 2)) == [Document("one", "generator", 1), Document("two", "generator", 2)]
    with refuses(InputError, ValueError, "generator", "once"):
        list(corpus)


def test_stamps(tree: Path) -> None:
    """They change with bytes and reading, and not with names; only files have one."""
    stamp = open_corpus(tree / "a.txt").stamp()
    other = tree / "renamed.txt"
    other.write_bytes((tree / "a.txt").read_bytes())
    assert open_corpus(other).stamp() == stamp
    assert open_corpus(other, documents="line").stamp() != stamp
    other.write_bytes(b"in A")
    assert open_corpus(other).stamp() != stamp
    assert open_corpus(["x"]).stamp() is None
    corpus = open_corpus(other)
    other.unlink()
    with refuses(FileError, OSError, "renamed.txt"):
        corpus.stamp()


def test_a_packed_folder_is_opened_as_it_is(tiny: fm.Model, tmp_path: Path) -> None:
    found = pack(["one", "two"], tiny, tmp_path / "pack")
    opened = open_corpus(tmp_path / "pack")
    assert isinstance(opened, Packed)
    assert opened.hash == found.hash
    with refuses(InputError, ValueError, "'body'", "packed"):
        open_corpus(tmp_path / "pack", text="body")


def test_the_bundled_corpus() -> None:
    corpus = open_corpus("atlas")
    texts = [d.text for d in corpus]
    assert len(texts) > 4000
    assert corpus.problems == ()
    assert len(set(texts)) > 0.99 * len(texts)
    assert sum("Paris" in text for text in texts) > 20
    assert embedded_corpus("atlas").stat().st_size < 2**20


def test_the_recipe_writes_the_bundled_corpus(tmp_path: Path) -> None:
    """The same text; the same bytes too, where zlib is the same."""
    recipe = REPOSITORY / "data" / "recipe" / "corpus.py"
    for folder in ("one", "two"):
        subprocess.run(
            [sys.executable, recipe, "--out", tmp_path / folder], check=True, capture_output=True, timeout=60
        )
    one, two = (tmp_path / folder / "atlas.jsonl.gz" for folder in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()
    shipped = gzip.decompress(embedded_corpus("atlas").read_bytes())
    assert gzip.decompress(one.read_bytes()) == shipped
    assert set(json.loads(shipped.splitlines()[0])) == {"text"}


def test_pipes_are_refused_and_in_a_folder_skipped_and_counted(tmp_path: Path) -> None:
    """A pipe that nobody writes to would be read for ever, or nobody be told of what was left out."""
    os.mkfifo(tmp_path / "a.txt")
    with refuses(FileError, OSError, "a.txt", "a pipe"):
        open_corpus(tmp_path / "a.txt")
    (tmp_path / "b.txt").write_text("text")
    for source in (tmp_path, str(tmp_path / "*.txt")):
        corpus = open_corpus(source)
        assert [document.text for document in corpus] == ["text"]
        assert [(problem.kind, problem.count) for problem in corpus.problems] == [("skipped_file", 1)]
