"""Whatever writes, killed at any moment and run again, ends as if nothing had happened."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import random
from typing import Any

import pytest

import ffnmem as fm
from ffnmem.core.errors import FileError
from ffnmem.editing import Edit, second_moment
from ffnmem.evaluation import evaluate, sequential

from ..editing.edits import made
from ..evaluation.made import FACTS
from ..scanning.texts import tiny_texts
from .killing import Operation, snapshot
from .material import FUZZ, place, tiny

TEXTS = tiny_texts()[:9]
SMALL: dict[str, Any] = {"k": 3, "sample": 8, "draws": 4, "frequent": 8, "checkpoint_seconds": 0.0}
KILLS = 4 * max(FUZZ, 1)  # of each operation


@cache
def edit(seed: int) -> Edit:
    return made(tiny(), (0, 1), seed=seed)


def own_editor(_model: fm.Model, facts: list[fm.Fact]) -> list[Edit]:
    return [made(tiny(), (1,), seed=len(fact.subject), fact=fact) for fact in facts]


def scan(root: Path, project: bool = True) -> None:
    fm.scan(tiny(), TEXTS, root / "out", batch_tokens=128, project=project, **SMALL)


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


def traces(root: Path) -> None:
    fm.tracing.trace_facts(tiny(), FACTS[:2], kinds=("state",), samples=2, noise=0.5, out=root / "out")


OPERATIONS = [
    Operation("scan", scan),
    Operation("pack", lambda root: fm.corpus.pack(TEXTS, tiny(), root / "out")),
    Operation("merge", merge, shards),
    Operation(
        "moment", lambda root: second_moment(tiny(), TEXTS, root / "c", batch_tokens=128, checkpoint_seconds=0.0)
    ),
    Operation("evaluate", evaluation),
    Operation("sequential", sequence),
    Operation("traces", traces),
    Operation("edit save", lambda root: edit(1).save(root / "edit"), lambda root: edit(2).save(root / "edit")),
    Operation("export", export),
    Operation(
        "values of a store",
        lambda root: fm.neurons.search(fm.open_store(root / "out", model=tiny()), "e"),
        lambda root: scan(root, project=False),
    ),
]
OFTEN = ("scan", "pack", "moment", "evaluate", "traces", "edit save", "export")
"""In ``make test``: one of each loop and each writer; the others take the same ones."""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="killing children needs fork, which this system has not")
@pytest.mark.parametrize(
    "operation",
    [one if one.name in OFTEN else pytest.param(one, marks=pytest.mark.exhaustive) for one in OPERATIONS],
    ids=lambda operation: operation.name,
)
def test_a_killed_run_goes_on_to_the_same_bytes(operation: Operation) -> None:
    """It would leave other bytes, temporary files, or not be known again."""
    place()
    count, left = operation.in_peace()
    assert not [name for name in left if ".ffnmem-" in name and not name.startswith(".hidden")]
    for step in range(KILLS):
        operation.survives(int(count * (random() if FUZZ else (step + 0.5) / KILLS)))


def test_a_snapshot_sees_every_change(tmp_path: Path) -> None:
    """The test above would compare nothing."""
    (tmp_path / "file").write_text("x")
    before = snapshot(tmp_path)
    (tmp_path / "file").write_text("y")
    assert snapshot(tmp_path) != before
    (tmp_path / "file").write_text("x")
    assert snapshot(tmp_path) == before
    (tmp_path / ".ffnmem-x-0123abcd.tmp").mkdir()
    assert snapshot(tmp_path) != before
