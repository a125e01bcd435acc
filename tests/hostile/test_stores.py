"""Stores of which something is broken, exchanged or made up: the same answers as before, or none."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

import ffnmem as fm
from ffnmem.scanning import Store, merge, open_store, scan

from ..scanning.texts import tiny_texts
from .breaking import BREAKS, broken, linked, plain, same_or_refused
from .judging import answered, hostile
from .material import fresh, tiny, tiny_store

TABLES = ("stats.parquet", "values.parquet")
FILES = (
    *("manifest.json", "state.safetensors", "tokenizer.json", *TABLES),
    *(f"corpus/{name}" for name in ("corpus.json", "tokens.bin", "documents.bin", "counts.bin")),
)

QUESTIONS: dict[str, Callable[[Store], Any]] = {
    "what it is": lambda s: (
        s.model,
        s.fingerprint,
        s.n_layers,
        s.n_tokens,
        s.complete,
        s.gated,
        s.settings,
    ),
    "stats": lambda s: s.stats(),
    "one's stats": lambda s: s.stats(1, 17),
    "examples": lambda s: s.examples(1, 17),
    "histogram": lambda s: s.histogram(0, 3),
    "by_token": lambda s: s.by_token(1, 17),
    "by_position": lambda s: s.by_position(0, 3),
    "values": lambda s: s.values(1, 17),
    "neuron": lambda s: without_provenance(s.neuron(0, 5).to_dict()),
    "search values": lambda s: s.search("e"),
    "search examples": lambda s: s.search("e", where="examples"),
}


def without_provenance(record: dict[str, Any]) -> dict[str, Any]:
    """What can be told apart: versions and devices are as somebody wrote them down."""
    return {name: value for name, value in record.items() if name != "provenance"}


def joined(store: Store) -> Any:
    """What a merge makes of it."""
    out = fresh()
    found = merge([store], out)
    answer = found.stats().to_csv() + found.examples(1, 17).to_csv() + found.histogram(0, 3).to_csv()
    shutil.rmtree(out)
    return answer


@cache
def right() -> dict[str, str]:
    """What the whole store answers."""
    return {name: plain(ask(tiny_store())) for name, ask in QUESTIONS.items()} | {"merge": plain(joined(tiny_store()))}


@cache
def other_store() -> Store:
    """A scan of the same sizes with other numbers."""
    return scan(tiny(), tiny_texts()[::-1], fresh(), k=3, sample=8, draws=4, frequent=8, seed=1)


def asked(folder: Path, merged: bool) -> None:
    """Everything that a store offers, of a folder that may be broken."""
    store = answered("open_store", lambda: open_store(folder))
    if isinstance(store, Store):
        for name, ask in QUESTIONS.items():
            same_or_refused(name, lambda ask=ask: ask(store), right()[name])  # type: ignore[misc]
        if merged:
            same_or_refused("merge", lambda: joined(store), right()["merge"])
            answered("verify", store.verify)
    shutil.rmtree(folder)


@hostile(examples=24, name=st.sampled_from(FILES), how=BREAKS, merged=st.booleans())
def test_bytes(name: str, how: tuple[str, float, int], merged: bool) -> None:
    """A byte of any file is another one, or is gone: nothing is answered from it but what was right."""
    data = (tiny_store().folder / name).read_bytes()
    asked(linked(tiny_store().folder, {name: broken(data, how)}), merged)


@hostile(examples=8, names=st.sets(st.sampled_from(FILES[1:]), min_size=1, max_size=4))
def test_files_of_another_store(names: set[str]) -> None:
    """A file of the same kind and size, whole but of another scan, is refused where it is read."""
    other = {name: (other_store().folder / name).read_bytes() for name in names}
    asked(linked(tiny_store().folder, other), True)


@hostile(
    examples=10,
    text=st.one_of(
        st.sampled_from(["[" * 9_000, '{"a":' * 2_000, '{"kind": "ffnmem store", "schema": 1}', "1" * 10_000, "null"]),
        st.binary(max_size=40),
    ),
    name=st.sampled_from(["manifest.json", "corpus/corpus.json", "tokenizer.json"]),
)
def test_any_text_for_a_manifest(text: str | bytes, name: str) -> None:
    data = text.encode() if isinstance(text, str) else text
    asked(linked(tiny_store().folder, {name: data}), False)


@hostile(examples=2, how=BREAKS, name=st.sampled_from(["polysemanticity-positive.parquet", "background.safetensors"]))
def test_what_is_kept_beside_a_store(how: tuple[str, float, int], name: str) -> None:
    """A damaged table of an earlier call is measured again, and never shown."""
    data = (measured()[0] / name).read_bytes()
    folder = linked(measured()[0], {name: broken(data, how)})
    same_or_refused("polysemanticity", lambda: polysemanticity(open_store(folder)), measured()[1])
    shutil.rmtree(folder)


def polysemanticity(store: Store) -> Any:
    return fm.polysemanticity(store, tiny(), draws=20)


@cache
def measured() -> tuple[Path, str]:
    """A store with what polysemanticity keeps beside it, and its answer."""
    folder = linked(tiny_store().folder, {})
    return folder, plain(polysemanticity(open_store(folder)))
