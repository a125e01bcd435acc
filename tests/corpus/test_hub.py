"""Data sets of the hub: names, and what is said when there is none; the hub itself is never asked."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import huggingface_hub
import pytest

from ffnmem.core.errors import FfnmemError, FileError, InputError, MissingExtraError
from ffnmem.corpus import open_corpus

from ..helpers import refuses


@pytest.mark.parametrize("source", ["hf:", "hf:a/", "hf:a/b/c/d", "hf:a:", "hf:/a", "hf::train", "hf: "])
def test_no_names(source: str) -> None:
    with refuses(InputError, ValueError, repr(source), "hf:owner/name"):
        open_corpus(source)


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with refuses(MissingExtraError, ImportError, "hf:a/b", "pip install 'ffnmem[hf]'"):
        open_corpus("hf:a/b")


class Hub:
    """A hub with one data set, ``owner/name``, and the library that streams it."""

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
        if name != "owner/name" and name != "plain":
            raise huggingface_hub.errors.RepositoryNotFoundError.__new__(huggingface_hub.errors.RepositoryNotFoundError)

    def load_dataset(self, *args: Any, **options: Any) -> Any:
        self.asked.append((*args, options))
        return self

    def __iter__(self) -> Iterator[Any]:
        for record in self.records:
            if isinstance(record, Exception):
                raise record
            yield record


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    return Hub(monkeypatch)


@pytest.mark.parametrize(
    ("source", "asked"),
    [
        ("hf:plain", ("plain", None, "train")),
        ("hf:plain:test", ("plain", None, "test")),
        ("hf:owner/name", ("owner/name", None, "train")),
        ("hf:plain/config", ("plain", "config", "train")),
        ("hf:owner/name/c-1:train[:10%]", ("owner/name", "c-1", "train[:10%]")),
    ],
)
def test_streaming(hub: Hub, source: str, asked: tuple[str, str | None, str]) -> None:
    """An owner's data set comes before a configuration; never downloaded whole, and as often as it is asked for."""
    corpus = open_corpus(source)
    assert hub.asked == [(*asked[:2], {"split": asked[2], "streaming": True})]
    for _ in range(2):
        assert [(d.text, d.number) for d in corpus] == [("one", 1), ("two", 3)]
        assert [p.kind for p in corpus.problems] == ["empty"]
    assert corpus.stamp() is None
    assert corpus.repeatable


def test_what_can_go_wrong(hub: Hub) -> None:
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


@pytest.mark.parametrize("source", ["hf:a/b", "hf:a--b", "hf:-a/b"])
def test_without_a_network(monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    """The real library says so at once, and what no name can be; the tests run with the hub switched off."""
    monkeypatch.setitem(sys.modules, "datasets", ModuleType("datasets"))
    with refuses(FileError, FfnmemError, source, "cannot be opened"):
        open_corpus(source)
