"""Workers: the same bytes as one process, whoever dies on the way."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import ffnmem as fm
from ffnmem.core.errors import FileError, InputError, WorkerError
from ffnmem.corpus import shards
from ffnmem.corpus.excerpts import Page
from ffnmem.scanning.state_file import StateFile
from ffnmem.scanning.tables import SHARDS, STATE

from ..helpers import refuses
from .corpora import SMALL, digests, texts

CORPUS = texts(3000, longest=3)


@pytest.fixture(scope="module")
def named(tiny_folder: Path) -> fm.Model:
    """The tiny model by a name that workers can load."""
    return fm.load(str(tiny_folder))


@pytest.fixture(scope="module")
def whole(named: fm.Model, tmp_path_factory: pytest.TempPathFactory) -> fm.scanning.Store:
    return fm.scan(named, CORPUS, tmp_path_factory.mktemp("workers") / "whole", **SMALL)


def test_that_two_workers_one_of_them_killed_give_the_bytes_of_one_process(
    named: fm.Model, whole: fm.scanning.Store, tmp_path: Path
) -> None:
    killed: list[int] = []

    def kill_one() -> None:
        deadline = time.monotonic() + 120
        while not killed and time.monotonic() < deadline:
            for child in multiprocessing.active_children():
                if child.pid is not None:
                    os.kill(child.pid, signal.SIGKILL)
                    killed.append(child.pid)
                    return
            time.sleep(0.05)

    killer = threading.Thread(target=kill_one)
    killer.start()
    told: list[tuple[str, int, int]] = []
    store = fm.scan(named, CORPUS, tmp_path / "out", workers=2, progress=lambda *news: told.append(news), **SMALL)
    killer.join()
    assert killed
    assert digests(store.folder) == digests(whole.folder)
    assert not (store.folder / SHARDS).exists()
    scanned = [done for phase, done, _ in told if phase == "scan"]
    assert scanned
    assert max(scanned) <= next(total for phase, _, total in told if phase == "scan")


def test_that_a_worker_that_always_dies_is_reported_and_the_rest_kept(
    named: fm.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "worker", die)
    monkeypatch.setattr(shards, "TRIES", 2)
    with refuses(WorkerError, RuntimeError, "died 2 times", "go on"):
        fm.scan(named, CORPUS[:50], tmp_path / "out", workers=2, **SMALL)
    assert (tmp_path / "out" / "corpus" / "corpus.json").exists()


def die(*_: object) -> None:
    os._exit(9)


def test_that_changed_weights_are_not_scanned_under_a_name(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = fm.load(str(tiny_folder))
    changed.ffn[0].values.data[0, 0] += 1
    monkeypatch.setattr(shards, "run_locally", in_this_process)
    with refuses(InputError, ValueError, "by its name", changed.fingerprint):
        fm.scan(changed, CORPUS[:50], tmp_path / "out", workers=2, **SMALL)


def in_this_process(tasks: Sequence[Any], work: shards.Work, progress: shards.Together) -> list[str]:
    return [
        work(task, lambda _phase, done, _total, index=index: progress(index, done)) for index, task in enumerate(tasks)
    ]


def test_that_a_scan_begun_by_workers_is_finished_by_as_many(
    named: fm.Model, whole: fm.scanning.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(tasks: Sequence[Any], work: shards.Work, progress: shards.Together) -> list[str]:
        in_this_process(tasks[:1], work, progress)
        raise KeyboardInterrupt

    monkeypatch.setattr(shards, "run_locally", stop)
    with pytest.raises(KeyboardInterrupt):
        fm.scan(named, CORPUS, tmp_path / "out", workers=2, **SMALL)
    left = tmp_path / "out" / SHARDS / "0-of-2" / STATE
    assert StateFile(left).progress.shard == (0, 2)
    monkeypatch.setattr(shards, "run_locally", in_this_process)
    for count in (1, 3):
        with refuses(FileError, OSError, "2 workers have begun"):
            fm.scan(named, CORPUS, tmp_path / "out", workers=count, **SMALL)
    store = fm.scan(named, CORPUS, tmp_path / "out", workers=2, **SMALL)
    assert digests(store.folder) == digests(whole.folder)


def test_that_shards_and_workers_and_begun_scans_exclude_each_other(
    named: fm.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with refuses(InputError, ValueError, "not both"):
        fm.scan(named, CORPUS[:50], tmp_path / "a", workers=2, shard=(0, 2), **SMALL)
    from ffnmem.scanning import passes

    end: Callable[..., None] = passes.Scanner.end
    calls: list[int] = []

    def twice(self: passes.Scanner, page: Page) -> None:
        if calls:
            raise KeyboardInterrupt
        calls.append(1)
        end(self, page)
        assert self.progress.batch == 1
        self.checkpoint()

    monkeypatch.setattr(passes.Scanner, "end", twice)
    with pytest.raises(KeyboardInterrupt):
        fm.scan(named, CORPUS[:500], tmp_path / "b", batch_tokens=64, **SMALL)
    with refuses(FileError, OSError, "begun by one process"):
        fm.scan(named, CORPUS[:500], tmp_path / "b", batch_tokens=64, workers=2, **SMALL)
