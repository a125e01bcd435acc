"""What ffnmem wrote, with something of it broken or exchanged: the same answers as before, or an error of ours."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import strategies as st

import ffnmem as fm
from ffnmem.corpus import open_packed
from ffnmem.corpus.batches import Sequences
from ffnmem.editing import Edit, SecondMoment
from ffnmem.evaluation import Scores, evaluate
from ffnmem.neurons.inputs import read_background
from ffnmem.scanning import open_store
from ffnmem.tracing import trace_facts

from ..corpus.packs import packed
from ..editing.edits import made as made_edit
from ..editing.made import made as made_moment
from ..editing.made import rows_of
from ..evaluation.test_scores import made_scores
from .material import BREAKS, answered, broken, fresh, hostile, tiny, tiny_store

FACTS = [fm.Fact("Eiffel Tower", "city", f"The {{}} is in{end}", "Paris", id=end) for end in ("", " the city of")]
Read = Callable[[Path], Any]


def moment(folder: Path) -> Any:
    found = SecondMoment.load(folder / "c.safetensors")
    both = SecondMoment.merge([found, made_moment(rows_of(40), rows_of(40, 30, seed=1), first=40)])
    return found.widths, found.count, [found.matrix(layer).tolist() for layer in found.layers], both.matrix(1).tolist()


def edit(folder: Path) -> Any:
    found = Edit.load(folder / "e.zip")
    return found.digest, found.to_dict(), found.numbers.to_csv(), [c.delta().tolist() for c in found.changes]


def corpus(folder: Path) -> Any:
    found = open_packed(folder)
    texts = [found.document(i).tolist() for i in range(found.n_documents)]
    return found.vocab, found.token_counts.tolist(), texts, Sequences(found, 7, None).n_sequences


def joined(folder: Path) -> Any:
    """What a merge makes of a store."""
    found = fm.merge([open_store(folder)], out := fresh())
    answer = found.stats().to_csv() + found.examples(1, 17).to_csv() + found.histogram(0, 3).to_csv()
    shutil.rmtree(out)
    return answer


def card(folder: Path) -> Any:
    """Versions and devices are left out: they are as somebody wrote them down."""
    record = open_store(folder).neuron(0, 5).to_dict()
    return {name: value for name, value in record.items() if name != "provenance"}


SAVED: Mapping[str, tuple[Callable[[Path], Any], list[Read]]] = {
    "moment": (lambda at: made_moment(rows_of(40), rows_of(40, 30, seed=1)).save(at / "c.safetensors"), [moment]),
    "edit": (lambda at: made_edit(tiny(), layers=(0, 1)).save(at / "e.zip"), [edit]),
    "scores": (
        lambda at: made_scores(tiny()).save(at / "scores.zip"),
        [lambda at: Scores.load(at / "scores.zip").summary.to_csv(), lambda at: Scores.load(at / "scores.zip").cases],
    ),
    "traces": (
        lambda at: trace_facts(tiny(), FACTS, kinds=("state", "ffn"), samples=2, window=1, out=at),
        [lambda at: trace_facts(tiny(), FACTS, kinds=("state", "ffn"), samples=2, window=1, out=at).to_dict()],
    ),
    "evaluation": (
        lambda at: evaluate(tiny(), FACTS, "none", metrics=("ES",), target="Rome", draws=5, out=at),
        [lambda at: evaluate(tiny(), FACTS, "none", metrics=("ES",), target="Rome", draws=5, out=at).cases],
    ),
    "corpus": (lambda at: packed([5, 0, 12, 3, 9], at), [corpus]),
    "store": (
        lambda at: shutil.copytree(tiny_store().folder, at, dirs_exist_ok=True),
        [
            lambda at: [getattr(open_store(at), name) for name in ("model", "fingerprint", "n_tokens", "settings")],
            lambda at: open_store(at).stats(),
            lambda at: open_store(at).examples(1, 17),
            lambda at: open_store(at).histogram(0, 3),
            lambda at: open_store(at).by_token(1, 17),
            lambda at: open_store(at).by_position(0, 3),
            lambda at: open_store(at).values(1, 17),
            card,
            lambda at: fm.neurons.search(open_store(at), "e"),
            lambda at: fm.neurons.search(open_store(at), "e", where="examples"),
            lambda at: read_background(open_store(at), 1).rows.tolist(),
            joined,
        ],
    ),
}


@cache
def saved(kind: str) -> tuple[Path, list[str]]:
    """A folder with one of each, made once, and what is read from it."""
    write, reads = SAVED[kind]
    (folder := fresh()).mkdir()
    write(folder)
    return folder, [plain(read(folder)) for read in reads]


def plain(value: Any) -> Any:
    """A result as text that tells any two numbers apart."""
    return value.to_csv() if isinstance(value, pd.DataFrame) else repr(value)


def check(kind: str, changed: Mapping[str, bytes]) -> None:
    """Where some files have other bytes, each question is answered as it was, or refused."""
    (folder, right), target = saved(kind), fresh()
    shutil.copytree(folder, target, copy_function=os.link, ignore=shutil.ignore_patterns(".*"))
    for name, data in changed.items():
        (target / name).unlink()
        (target / name).write_bytes(data)
    for read, expected in zip(SAVED[kind][1], right, strict=True):
        found = answered(lambda read=read: plain(read(target)))  # type: ignore[misc]
        assert not isinstance(found, str) or found == expected, f"{kind}: {found[:500]}\ninstead of {expected[:500]}"
    shutil.rmtree(target)


def files(kind: str) -> list[Path]:
    return sorted(path for path in saved(kind)[0].rglob("[!.]*") if path.is_file())


@pytest.mark.parametrize("kind", SAVED)
def test_a_flipped_bit(kind: str) -> None:
    """In every file, at some places in it: it would go into every number that is read from there."""
    for file in files(kind):
        data = file.read_bytes()
        for at in (int(share * len(data)) for share in (0.3, 0.6, 0.97)):
            bent = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
            check(kind, {str(file.relative_to(saved(kind)[0])): bent})


@hostile(examples=30, kind=st.sampled_from(sorted(SAVED)), which=st.floats(0, 1, exclude_max=True), how=BREAKS)
def test_any_bytes(kind: str, which: float, how: tuple[str, float, int]) -> None:
    file = files(kind)[int(which * len(files(kind)))]
    check(kind, {str(file.relative_to(saved(kind)[0])): broken(file.read_bytes(), how)})
