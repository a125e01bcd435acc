"""Second moments, edits, traces, scores, packed corpora and projections on disk, of which something is broken: what
was written, or an error of ours.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

import ffnmem as fm
from ffnmem.corpus import open_packed
from ffnmem.corpus.batches import Sequences
from ffnmem.editing import Edit, SecondMoment
from ffnmem.evaluation import Scores, evaluate
from ffnmem.planted import load_planted
from ffnmem.studies.running import FOLDER
from ffnmem.tracing import trace_facts
from ffnmem.vocabulary import read_projection

from ..corpus.packs import packed
from ..editing.edits import made as made_edit
from ..editing.made import made as made_moment
from ..editing.made import rows_of
from ..evaluation.test_scores import made_scores
from .breaking import BREAKS, PLACES, broken, linked, plain, same_or_refused
from .judging import answered, hostile
from .material import fresh, tiny


@dataclass(frozen=True)
class Saved:
    """Something in a folder: its files, how it is read back, and a file of another one."""

    folder: Path
    read: Callable[[Path], Any]
    other: Path | None = None

    @property
    def names(self) -> list[str]:
        return sorted(str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_file())


def moment(folder: Path) -> Any:
    found = SecondMoment.load(folder / "c.safetensors")
    both = SecondMoment.merge([found, made_moment(rows_of(40), rows_of(40, 30, seed=1), first=40)])
    numbers = [found.matrix(layer).tolist() for layer in found.layers]
    return found.layers, found.widths, found.count, numbers, found.to_frame().to_csv(), both.matrix(1).tolist()


def edit(folder: Path) -> Any:
    found = Edit.load(folder / "e.zip")
    return found.digest, found.to_dict(), found.numbers.to_csv(), [c.delta().tolist() for c in found.changes]


FACTS = [
    fm.Fact("Eiffel Tower", "city", "The {} is in the city of", "Paris", id="eiffel"),
    fm.Fact("Eiffel Tower", "city", "The {} is in", "Paris", id="other"),
]


def traces(folder: Path) -> Any:
    return trace_facts(tiny(), FACTS, kinds=("state", "ffn"), samples=2, window=1, out=folder).to_dict()


def scores(folder: Path) -> Any:
    found = Scores.load(folder / "scores.zip")
    return found.summary.to_csv(), found.cases.to_csv(), found.draws, found.seed


def evaluation(folder: Path) -> Any:
    return evaluate(tiny(), FACTS[:2], "none", metrics=("ES",), target="Rome", draws=5, out=folder).cases.to_csv()


def corpus(folder: Path) -> Any:
    found = open_packed(folder)
    texts = [found.document(i).tolist() for i in range(found.n_documents)]
    return found.n_tokens, found.vocab, found.token_counts.tolist(), texts, Sequences(found, 7, None).n_sequences


def projection(folder: Path) -> Any:
    path = folder / "p.parquet"
    one, all_ = read_projection(path, 1, 5), read_projection(path)
    return one.to_csv(), all_.to_csv(), fm.vocabulary.search_projection(path, "e", limit=20).to_csv()


@cache
def saved(kind: str) -> Saved:
    """One of each, made once."""
    folder = fresh()
    folder.mkdir()
    if kind == "moment":
        made_moment(rows_of(40), rows_of(40, 30, seed=1)).save(folder / "c.safetensors")
        return Saved(folder, moment)
    if kind == "edit":
        made_edit(tiny(), layers=(0, 1)).save(folder / "e.zip")
        return Saved(folder, edit)
    if kind == "traces":
        traces(folder)
        return Saved(folder, traces)
    if kind == "scores":
        made_scores(tiny()).save(folder / "scores.zip")
        return Saved(folder, scores)
    if kind == "evaluation":
        evaluation(folder)
        return Saved(folder, evaluation)
    if kind == "corpus":
        packed([5, 0, 12, 3, 9], folder)
        return Saved(folder, corpus)
    fm.project(tiny(), k=3, out=folder / "p.parquet")
    return Saved(folder, projection)


KINDS = ("moment", "edit", "traces", "scores", "evaluation", "corpus", "projection")


@cache
def right(kind: str) -> str:
    return plain(saved(kind).read(saved(kind).folder))


def read_back(kind: str, folder: Path) -> None:
    same_or_refused(kind, lambda: saved(kind).read(folder), right(kind))
    shutil.rmtree(folder)


@hostile(examples=40, kind=st.sampled_from(KINDS), which=PLACES, how=BREAKS)
def test_bytes(kind: str, which: float, how: tuple[str, float, int]) -> None:
    """A byte of any file of ours is another one, or is gone: nothing is read from it but what was written."""
    names = saved(kind).names
    name = names[int(which * len(names))]
    read_back(kind, linked(saved(kind).folder, {name: broken((saved(kind).folder / name).read_bytes(), how)}))


@hostile(
    examples=8,
    data=st.one_of(
        st.sampled_from([b"[" * 9_000, b'{"study": ' * 900, b"{}", b'{"study": 3}', b"9" * 5_000]), st.binary()
    ),
)
def test_any_study_and_any_planted_model(data: bytes) -> None:
    folder = fresh()
    folder.mkdir()
    for name in ("study.json", "planted.json"):
        (folder / name).write_bytes(data)
    answered("study", lambda: FOLDER.read_manifest(folder))
    answered("planted", lambda: load_planted(folder))
    shutil.rmtree(folder)
