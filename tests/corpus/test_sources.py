"""Opening a corpus: what every kind of source is, and what is said of those that are none; the hub is never asked."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import huggingface_hub
import pytest

import ffnmem as fm
from ffnmem.core.errors import FfnmemError, FileError, InputError, MissingExtraError
from ffnmem.core.resources import embedded_corpus
from ffnmem.corpus import Corpus, Document, Packed, Problem, open_corpus, pack

from ..helpers import REPOSITORY, refuses


def texts_of(source: Any, **options: Any) -> list[str]:
    return [document.text for document in open_corpus(source, **options)]


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
    """Recursively; what is no corpus file is counted, and each reading counts anew."""
    corpus = open_corpus(tree)
    assert isinstance(corpus, Corpus)
    assert open_corpus(corpus) is corpus
    assert corpus.problems == ()
    for _ in range(2):
        assert [(d.text, d.source, d.number) for d in corpus] == [
            ("in a", "a.txt", 1),
            ("in k", "a/k.txt.gz", 1),
            ("in k too", "a/k.txt.gz", 3),
            ("in z", "a/z.jsonl", 1),
            ("in b", "b.txt", 1),
        ]
        assert corpus.problems == (Problem("skipped_file", 2, "a/data.json"),)
    assert corpus.files == tuple(tree / name for name in ("a.txt", "a/k.txt.gz", "a/z.jsonl", "b.txt"))
    assert corpus.name == "tree"
    assert texts_of(tree, documents="file", text="text")[1] == "in k\n\nin k too"


@pytest.mark.parametrize(
    ("pattern", "texts"),
    [
        ("*.txt", ["brackets", "in a", "in b"]),
        ("**/*.txt*", ["brackets", "in a", "in k", "in k too", "in b"]),
        ("[b]*", ["in b"]),
        ("[c].txt", ["brackets"]),  # a name, for there is such a file
    ],
)
def test_patterns(tree: Path, pattern: str, texts: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """From anywhere or from here, in the order of names; a folder that matches is read as one."""
    (tree / "[c].txt").write_text("brackets")
    assert texts_of(str(tree / pattern)) == texts
    monkeypatch.chdir(tree)
    assert texts_of(pattern) == texts


def test_what_is_no_source(tree: Path) -> None:
    (tree / "empty").mkdir()
    os.mkfifo(tree / "pipe.txt")  # that nobody writes to would be read for ever; in a folder it is skipped and counted
    assert "pipe.txt" not in {document.source for document in open_corpus(tree)}
    for source, named in (
        (tree / "empty", ["no file", ".parquet"]),
        (tree / "*.pdf", ["only 1 files of other types"]),
        (tree / "*.none", ["no file"]),
        (tree / "pipe.txt", ["a pipe"]),
        (tree / "notes.pdf", ["no corpus file", ".jsonl"]),
        (tree / "none.txt", ["no corpus", "'atlas'"]),
        *((source, ["no corpus", "texts themselves go into a list"]) for source in ("", "a\0b", "x" * 5000)),
        ("A text itself. " * 100, ["no corpus", "…", "list", "too long"]),
    ):
        with refuses(FileError, OSError, *named):
            open_corpus(str(source))
    for other in (3, b"bytes", {"text": "x"}, None):
        with refuses(InputError, ValueError, type(other).__name__, "iterable of strings"):
            open_corpus(other)


def test_options_that_would_do_nothing(tree: Path, tiny: fm.Model, tmp_path: Path) -> None:
    """An option that is ignored is an answer to another question."""
    found = pack(["one", "two"], tiny, tmp_path / "pack")
    opened = open_corpus(tmp_path / "pack")
    assert isinstance(opened, Packed)
    assert opened.hash == found.hash
    for source, options, named in (
        (tree / "a/z.jsonl", {"documents": "line"}, ["'line'", ".jsonl"]),
        (["x"], {"documents": "line"}, ["'line'", "iterable"]),
        ("atlas", {"text": "body"}, ["'body'"]),
        (tree / "a.txt", {"text": "body"}, ["'body'", ".txt"]),
        (tmp_path / "pack", {"text": "body"}, ["'body'", "packed"]),
        (tree / "a.txt", {"documents": "chapter"}, ["'chapter'", "'paragraph'"]),
    ):
        with refuses(InputError, ValueError, *named):
            open_corpus(source, **options)


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


@pytest.mark.exhaustive  # of what no user runs
def test_the_recipe_writes_the_bundled_corpus(tmp_path: Path) -> None:
    """The same text; the same bytes too, where zlib is the same."""
    corpus = open_corpus("atlas")
    texts = [document.text for document in corpus]
    assert corpus.problems == ()
    assert len(set(texts)) > 0.99 * len(texts) > 4000
    recipe = REPOSITORY / "data" / "recipe" / "corpus.py"
    for folder in ("one", "two"):
        subprocess.run(
            [sys.executable, recipe, "--out", tmp_path / folder], check=True, capture_output=True, timeout=60
        )
    one, two = ((tmp_path / folder / "atlas.jsonl.gz").read_bytes() for folder in ("one", "two"))
    assert one == two
    assert gzip.decompress(one) == gzip.decompress(embedded_corpus("atlas").read_bytes())
    assert [json.loads(line) for line in gzip.decompress(one).splitlines()] == [{"text": text} for text in texts]


# -- data sets of the hub --------------------------------------------------------------------------------------------


class Hub:
    """A hub with the data sets ``owner/name`` and ``plain``, and the library that streams them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.records: list[Any] = [{"text": "one"}, {"text": ""}, {"text": "two"}]
        self.refusal: Exception | None = None
        library = ModuleType("datasets")
        library.load_dataset = self.load_dataset  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "datasets", library)
        monkeypatch.setattr(huggingface_hub, "HfApi", lambda: self)

    def dataset_info(self, name: str, timeout: float) -> None:
        if self.refusal is not None:
            raise self.refusal
        if name not in ("owner/name", "plain"):
            raise huggingface_hub.errors.RepositoryNotFoundError.__new__(huggingface_hub.errors.RepositoryNotFoundError)

    def load_dataset(self, *args: Any, **options: Any) -> Any:
        self.asked.append((*args, options))
        return self

    def __iter__(self) -> Iterator[Any]:
        for record in self.records:
            if isinstance(record, Exception):
                raise record
            yield record


@pytest.mark.parametrize(
    ("source", "path", "config", "split"),
    [
        ("hf:plain", "plain", None, "train"),
        ("hf:plain:test", "plain", None, "test"),
        ("hf:owner/name", "owner/name", None, "train"),
        ("hf:plain/config", "plain", "config", "train"),
        ("hf:owner/name/c-1:train[:10%]", "owner/name", "c-1", "train[:10%]"),
    ],
)
def test_streaming(monkeypatch: pytest.MonkeyPatch, source: str, path: str, config: str | None, split: str) -> None:
    """An owner's data set comes before a configuration; never downloaded whole, and as often as it is asked for."""
    hub = Hub(monkeypatch)
    corpus = open_corpus(source)
    assert hub.asked == [(path, config, {"split": split, "streaming": True})]
    for _ in range(2):
        assert [(d.text, d.number) for d in corpus] == [("one", 1), ("two", 3)]
        assert [p.kind for p in corpus.problems] == ["empty"]
    assert corpus.stamp() is None
    assert corpus.repeatable


def test_what_can_go_wrong_with_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    for source in ("hf:", "hf:a/", "hf:a/b/c/d", "hf:a:", "hf:/a", "hf::train", "hf: "):
        with refuses(InputError, ValueError, repr(source), "hf:owner/name"):
            open_corpus(source)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "datasets", None)
        with refuses(MissingExtraError, ImportError, "hf:a/b", "pip install 'ffnmem[hf]'"):
            open_corpus("hf:a/b")
        patch.setitem(sys.modules, "datasets", ModuleType("datasets"))
        for source in ("hf:a/b", "hf:a--b"):  # of the real library; the tests run with the hub switched off
            with refuses(FileError, FfnmemError, source, "cannot be opened"):
                open_corpus(source)
    hub = Hub(monkeypatch)
    with refuses(FileError, OSError, "hf:nobody/none", "no such data set"):
        open_corpus("hf:nobody/none")
    hub.records = [{"body": "x"}]
    with refuses(FileError, OSError, "hf:owner/name", "'text'", "'body'"):
        list(open_corpus("hf:owner/name"))
    hub.records = [{"text": "one"}, ConnectionError("gone")]
    with refuses(FileError, OSError, "hf:owner/name", "record 2", "gone"):
        list(open_corpus("hf:owner/name"))
    hub.refusal = TimeoutError("too slow")
    with refuses(FileError, OSError, "hf:owner/name", "cannot be opened", "too slow"):
        open_corpus("hf:owner/name")
