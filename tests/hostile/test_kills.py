"""Whatever writes, killed at any moment and run again, ends as if nothing had happened."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import strategies as st

import ffnmem as fm
from ffnmem.core.errors import FileError
from ffnmem.editing import Edit, second_moment
from ffnmem.evaluation import evaluate, sequential
from ffnmem.studies import running

from ..editing.edits import made
from ..evaluation.made import FACTS
from ..scanning.texts import tiny_texts
from .judging import hostile
from .killing import Operation, snapshot
from .material import place, tiny, tiny_store

TEXTS = tiny_texts()[:9]
SMALL: dict[str, Any] = {"k": 3, "sample": 8, "draws": 4, "frequent": 8, "checkpoint_seconds": 0.0}
FEW: dict[str, Any] = {"keys": 3, "prefixes": 2, "n_sequences": 8, "updates": 2}
AT_ONCE = 8  # kills of each operation in the bounded run


@cache
def edit(seed: int) -> Edit:
    return made(tiny(), (0, 1), seed=seed)


def own_editor(_model: fm.Model, facts: list[fm.Fact]) -> list[Edit]:
    return [made(tiny(), (1,), seed=len(fact.subject), fact=fact) for fact in facts]


def scan(root: Path, **more: Any) -> None:
    fm.scan(tiny(), TEXTS, root / "out", batch_tokens=128, **SMALL, **more)


def shards(root: Path) -> None:
    for index in range(2):
        fm.scan(tiny(), TEXTS, root / f"shard{index}", shard=(index, 2), **SMALL)


def new(out: Path, call: Callable[[], Any]) -> None:
    """What makes a new folder is refused where that is there, whole."""
    if not out.exists():
        call()
        return
    with pytest.raises(FileError):
        call()


def merge(root: Path) -> None:
    new(root / "out", lambda: fm.merge([root / "shard0", root / "shard1"], root / "out"))


def export(root: Path) -> None:
    new(root / "out", lambda: edit(1).export(tiny(), root / "out"))


def evaluation(root: Path) -> None:
    evaluate(tiny(), FACTS[:2], own_editor, metrics=("ES", "NS"), draws=20, out=root / "out")


def sequence(root: Path) -> None:
    sequential(tiny(), FACTS[:2], own_editor, metrics=("ES", "NS"), draws=20, drift=TEXTS, out=root / "out")


def study(root: Path, store: bool = True) -> None:
    source: Any = tiny_store() if store else TEXTS
    options = {} if store else {"scan_options": {"k": 3, "sample": 8, "draws": 4, "frequent": 8}}
    with mock.patch.object(
        running, "png", lambda study, figure, dark=False: figure.name.encode()
    ):  # drawing takes long
        fm.studies.run("geva2021", tiny(), source, root / "out", **options, **FEW)


def traces(root: Path) -> None:
    fm.tracing.trace_facts(tiny(), FACTS[:2], kinds=("state",), samples=2, noise=0.5, out=root / "out")


OPERATIONS = [
    Operation("scan", scan),
    Operation("pack", lambda root: fm.corpus.pack(TEXTS, tiny(), root / "out")),
    Operation(
        "moment", lambda root: second_moment(tiny(), TEXTS, root / "c", batch_tokens=128, checkpoint_seconds=0.0)
    ),
    Operation("evaluate", evaluation),
    Operation("sequential", sequence),
    Operation("study", study),
    Operation("edit save", lambda root: edit(1).save(root / "edit"), lambda root: edit(2).save(root / "edit")),
]
MORE = [
    *OPERATIONS,
    Operation("rescored scan", lambda root: scan(root, dtype="bfloat16")),
    Operation(
        "pack over another",
        lambda root: fm.corpus.pack(TEXTS, tiny(), root / "out"),
        lambda root: fm.corpus.pack(TEXTS[:2], tiny(), root / "out"),
    ),
    Operation("merge", merge, shards),
    Operation("export", export),
    Operation("study with its scan", lambda root: study(root, store=False)),
    Operation("traces", traces),
    Operation("projection", lambda root: fm.project(tiny(), k=3, out=root / "values.parquet")),
    Operation("finished scan of more", scan, lambda root: scan(root, shard=(1, 2))),
    Operation(
        "values of a store",
        lambda root: fm.open_store(root / "out", model=tiny()).search("e"),
        lambda root: scan(root, project=False),
    ),
]
needs_fork = pytest.mark.skipif(
    not hasattr(os, "fork"), reason="killing children needs fork, which this system has not"
)


@needs_fork
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_killed_at_every_so_many_events(operation: Operation) -> None:
    """A killed run would leave other bytes, temporary files, or not be known again."""
    place()
    count, left = operation.in_peace()
    assert not [name for name in left if ".ffnmem-" in name and not name.startswith(".hidden")]
    for step in range(AT_ONCE):
        operation.survives((2 * step + 1) * count // (2 * AT_ONCE))


@needs_fork
@hostile(examples=2, operation=st.sampled_from(MORE), events=st.lists(st.integers(0, 2**31), min_size=1, max_size=3))
def test_killed_at_any_events(operation: Operation, events: list[int]) -> None:
    place()
    operation.survives(*events)


def test_that_a_snapshot_sees_every_change(tmp_path: Path) -> None:
    """The tests above would compare nothing."""
    (tmp_path / "file").write_text("x")
    before = snapshot(tmp_path)
    (tmp_path / "file").write_text("y")
    assert snapshot(tmp_path) != before
    (tmp_path / "file").write_text("x")
    assert snapshot(tmp_path) == before
    (tmp_path / ".ffnmem-x-0123abcd.tmp").mkdir()
    assert snapshot(tmp_path) != before
