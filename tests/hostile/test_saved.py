"""Second moments, edits, traces, scores, packed corpora and projections on disk, of which something is broken: what
was written, or an error of ours.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

import ffnmem as fm
from ffnmem.core.checked_files import with_checksum
from ffnmem.corpus import open_packed
from ffnmem.corpus.batches import Sequences
from ffnmem.corpus.packed import manifest_text
from ffnmem.editing import Edit, SecondMoment
from ffnmem.evaluation import Scores
from ffnmem.evaluation.scores import CaseFolder
from ffnmem.planted import load_planted
from ffnmem.studies.running import FOLDER
from ffnmem.tracing import trace_fact
from ffnmem.tracing.settings import TraceSettings
from ffnmem.tracing.trace_folder import TraceFolder, kept_noise, run_of
from ffnmem.vocabulary import read_projection

from ..corpus.packs import packed
from ..editing.edits import made as made_edit
from ..editing.made import made as made_moment
from ..editing.made import rows_of
from ..evaluation.test_scores import made_scores
from .breaking import BREAKS, PLACES, VALUES, broken, linked, plain, reheaded, same_or_refused, with_value
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
    found = Edit.load(folder / "e.safetensors")
    return found.digest, found.to_dict(), found.numbers.to_csv(), [c.delta().tolist() for c in found.changes]


SETTINGS = TraceSettings(("state", "ffn"), 1, 0.5, "given", 2, 0, True)
FACTS = [
    fm.Fact("Eiffel Tower", "city", "The {} is in the city of", "Paris", id="eiffel"),
    fm.Fact("Eiffel Tower", "city", "The {} is in", "Paris", id="other"),
    fm.Fact("Eiffel Tower", "city", "The city of the {} is", "Paris", id="skipped"),
]


def traces(folder: Path) -> Any:
    noise = kept_noise(folder)
    with TraceFolder.kept(folder, run_of(tiny(), SETTINGS)) as there:
        assert there is not None
    return noise, [getattr(found, "to_dict", lambda found=found: found)() for found in map(there.read, FACTS)]


RUN = {"model": "tiny", "fingerprint": "abc", "metrics": ["ES"], "contexts": ["{}"]}


def scores(folder: Path) -> Any:
    found = Scores.load(folder)
    return found.summary.to_csv(), found.cases.to_csv(), found.draws, found.seed


def evaluation(folder: Path) -> Any:
    cases = made_scores(tiny()).cases
    about = list(zip(cases["editor"], cases["id"], strict=True))
    with CaseFolder.kept(folder, RUN) as there:
        assert there is not None
        found = there.read(0, about)
    return None if found is None else found.to_csv()


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
        made_edit(tiny(), layers=(0, 1)).save(folder / "e.safetensors")
        return Saved(folder, edit)
    if kind == "traces":
        options: dict[str, Any] = {"kinds": ("state", "ffn"), "samples": 2, "noise": 0.5, "window": 1}
        with TraceFolder.kept(folder, run_of(tiny(), SETTINGS)) as there:
            assert there is not None
            for fact in FACTS[:2]:
                there.write(fact, trace_fact(tiny(), fact.text, fact.subject, **options))
            there.write(FACTS[2], "not known")
        return Saved(folder, traces)
    if kind == "scores":
        made_scores(tiny()).save(folder)
        return Saved(folder, scores)
    if kind == "evaluation":
        with CaseFolder.kept(folder, RUN) as cases:
            assert cases is not None
            cases.write(0, made_scores(tiny()).cases)
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


@hostile(examples=30, kind=st.sampled_from(KINDS), which=PLACES, place=PLACES, value=st.one_of(st.just("gone"), VALUES))
def test_fields_whose_checksum_was_mended(kind: str, which: float, place: float, value: Any) -> None:
    """What somebody made up by hand, with checksums that fit, is no traceback: an error, or what it says."""
    names = [name for name in saved(kind).names if Path(name).suffix in (".json", ".safetensors")]
    if not names:
        return
    name = names[int(which * len(names))]
    data = (saved(kind).folder / name).read_bytes()
    if name.endswith(".json"):
        whole = {key: item for key, item in json.loads(data).items() if key != "checksum"}
        changed = with_value(whole, place, value)
        try:
            text = manifest_text(changed) if kind == "corpus" else json.dumps(with_checksum(changed))
            data = text.encode()
        except (RecursionError, UnicodeEncodeError):
            data = json.dumps(changed).encode()
    else:
        data = reheaded(data, lambda header: with_value(header, place, value))
    folder = linked(saved(kind).folder, {name: data})
    answered(f"mended {kind}", lambda: saved(kind).read(folder))
    shutil.rmtree(folder)


@hostile(examples=6, swap=st.permutations(range(3)))
def test_traces_that_changed_places(swap: list[int]) -> None:
    """A fact's trace in another fact's file is refused, not shown as that fact's."""
    there = TraceFolder(saved("traces").folder, {})
    paths = [there.path(fact) for fact in FACTS]
    names = [str(path.relative_to(there.folder)) for path in paths]
    data = {name: paths[at].read_bytes() for name, at in zip(names, swap, strict=True)}
    read_back("traces", linked(there.folder, data))


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
    answered("study", lambda: FOLDER.said(folder))
    answered("planted", lambda: load_planted(folder))
    shutil.rmtree(folder)
