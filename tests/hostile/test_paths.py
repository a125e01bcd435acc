"""Any text where a path is due, and any kind of thing lying there: all doors that open or write something."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

import ffnmem as fm
from ffnmem.facts import formats
from ffnmem.vocabulary import projections

from .judging import answered, hostile
from .material import fresh, place, tiny, tiny_store

READERS: dict[str, Callable[[Any], Any]] = {
    "load": fm.load,
    "anatomy": fm.models.anatomy,
    "open_store": fm.open_store,
    "open_corpus": lambda path: list(fm.corpus.open_corpus(path)),
    "pack": lambda path: fm.corpus.pack(path, tiny(), fresh()),
    "load_facts": fm.load_facts,
    "Edit.load": fm.Edit.load,
    "SecondMoment.load": fm.editing.SecondMoment.load,
    "Scores.load": fm.evaluation.Scores.load,
    "load_planted": fm.planted.load_planted,
    "merge": lambda path: fm.merge([path], fresh()),
    "search_projection": lambda path: projections.search_projection(path, "Paris"),
}
WRITERS: dict[str, Callable[[Any], Any]] = {
    "pack": lambda path: fm.corpus.pack(["a text"], tiny(), path),
    "merge": lambda path: fm.merge([tiny_store()], path),
    "neuron_report": lambda path: fm.pages.neurons(tiny_store(), [(0, 1)], path),
    "write_facts": lambda path: formats.write_facts([], path),
    "project": lambda path: fm.project(tiny(), out=path),
}
SUFFIXES = ("", ".txt", ".csv", ".jsonl", ".parquet", ".txt.gz", ".txt.zst", ".safetensors", ".html", ".json")


@cache
def things() -> Path:
    """A folder with one of everything that can lie at a path."""
    folder = fresh()
    folder.mkdir()
    for suffix in SUFFIXES:
        os.mkfifo(folder / f"pipe{suffix}")
        (folder / f"zero{suffix}").symlink_to("/dev/zero")
        (folder / f"loop{suffix}").symlink_to(f"loop{suffix}")
        (folder / f"gone{suffix}").symlink_to("nothing")
        (folder / f"empty{suffix}").write_bytes(b"")
        (folder / f"folder{suffix}").mkdir()
    for name in ("manifest.json", "corpus.json", "config.json", "planted.json", "summary.json", "about.json"):
        inner = folder / f"piped-{name}"
        inner.mkdir()
        os.mkfifo(inner / name)
    return folder


def names() -> st.SearchStrategy[Any]:
    lying = st.builds(
        lambda kind, suffix: str(things() / f"{kind}{suffix}"),
        st.sampled_from(["pipe", "zero", "loop", "gone", "empty", "folder", "none"]),
        st.sampled_from(SUFFIXES),
    )
    piped = st.sampled_from(["manifest", "corpus", "config", "planted", "summary", "about"]).map(
        lambda name: str(things() / f"piped-{name}.json")
    )
    texts = st.one_of(
        st.text(st.characters(codec=None), max_size=12).map(lambda text: str(place() / "names") + "/" + text),
        st.text(st.characters(codec=None), max_size=12).map(lambda text: "~nosuchuser" + text),
        st.sampled_from(["\0", "a\0b", "\ud800", "\udcff", "x" * 300, "x" * 5000, "/x" * 2500, "a/" * 3000, "~"]),
        st.sampled_from(["/dev/zero", "/dev/stdin/x", "/dev/full/x", "[", "**/[", "*\0*", "hf:", "hf:/", "http://x/y"]),
    )
    either = st.one_of(lying, piped, texts)
    return st.one_of(either, either.filter(lambda text: "\0" not in text).map(Path))


@hostile(examples=50, reader=st.sampled_from(sorted(READERS)), path=names())
def test_any_path_is_read_or_refused_at_once(reader: str, path: Any) -> None:
    answered(f"read {reader}", lambda: READERS[reader](path))


@hostile(examples=40, writer=st.sampled_from(sorted(WRITERS)), path=names())
def test_any_path_is_written_or_refused(writer: str, path: Any) -> None:
    if str(path) == "~":
        return  # a folder of this machine's
    with contextlib.chdir(place()):
        answered(f"write {writer}", lambda: WRITERS[writer](path))
