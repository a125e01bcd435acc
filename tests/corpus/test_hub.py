"""Data sets of the hub: names, and what is said when there is none; the hub itself is never asked."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import huggingface_hub
import pytest

from ffnmem.core.errors import FileError, InputError, MissingExtraError
from ffnmem.corpus import open_corpus
from ffnmem.corpus.sources import HubName, read_name

from ..helpers import refuses


@pytest.mark.parametrize(
    ("source", "choices", "split"),
    [
        ("hf:wikitext", [("wikitext", None)], "train"),
        ("hf:wikitext:test", [("wikitext", None)], "test"),
        ("hf:a/b", [("a/b", None), ("a", "b")], "train"),
        ("hf:a/b/c-1:train[:10%]", [("a/b", "c-1")], "train[:10%]"),
    ],
)
def test_names(source: str, choices: list[tuple[str, str | None]], split: str) -> None:
    assert read_name(source) == HubName(tuple(choices), split)


@pytest.mark.parametrize("source", ["hf:", "hf:a/", "hf:a/b/c/d", "hf:a:", "hf:/a", "hf::train"])
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
        library.exceptions = SimpleNamespace(DatasetsError=type("DatasetsError", (Exception,), {}))  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "datasets", library)
        monkeypatch.setattr(huggingface_hub, "HfApi", lambda: self)

    def dataset_info(self, name: str, timeout: float) -> None:
        if self.refusal is not None:
            raise self.refusal
        if name != "owner/name" and name != "plain":
            error = huggingface_hub.errors.HfHubHTTPError.__new__(huggingface_hub.errors.HfHubHTTPError)
            error.response = SimpleNamespace(status_code=404)  # type: ignore[assignment]
            raise error

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


def test_streaming(hub: Hub) -> None:
    """Never downloaded whole, never with code of its own, and as often as it is asked for."""
    corpus = open_corpus("hf:owner/name/config:test")
    assert hub.asked == [("owner/name", "config", {"split": "test", "streaming": True})]
    for _ in range(2):
        assert [(d.text, d.number) for d in corpus] == [("one", 1), ("two", 3)]
        assert [p.kind for p in corpus.problems] == ["empty"]
    assert corpus.stamp() is None
    assert corpus.repeatable


def test_an_owners_data_set_comes_before_a_configuration(hub: Hub) -> None:
    open_corpus("hf:owner/name")
    open_corpus("hf:plain/config")
    assert [asked[:2] for asked in hub.asked] == [("owner/name", None), ("plain", "config")]


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
    with refuses(FileError, OSError, "hf:owner/name", "cannot be reached", "too slow"):
        open_corpus("hf:owner/name")


def test_without_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real library says so at once; the tests run with the hub switched off."""
    monkeypatch.setitem(sys.modules, "datasets", ModuleType("datasets"))
    with refuses(FileError, OSError, "hf:a/b", "cannot be reached"):
        open_corpus("hf:a/b")
