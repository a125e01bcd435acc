"""Shards, merges and workers: the bytes of one scan, whoever dies on the way."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import FileError, InputError, MissingExtraError, WorkerError
from ffnmem.corpus import batches, shards
from ffnmem.corpus.excerpts import Page
from ffnmem.scanning import passes
from ffnmem.scanning.state_file import StateFile
from ffnmem.scanning.tables import SHARDS, STATE

from ..helpers import refuses
from ..neurons.gated import made
from .corpora import SMALL, digests, texts

CORPUS = texts(150)
MANY = texts(3000, longest=3)
Scans = tuple[fm.Model, fm.scanning.Store, list[fm.scanning.Store]]


# -- shards and merges -----------------------------------------------------------------------------------------------


@pytest.fixture
def small_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several units of work in a small corpus."""
    monkeypatch.setattr(batches, "UNIT", 50)


@pytest.fixture(scope="module", params=["classic bfloat16", "gated float32"])
def scans(request: pytest.FixtureRequest, tiny: fm.Model, tmp_path_factory: pytest.TempPathFactory) -> Scans:
    """A model, one scan of a corpus, and its three shards."""
    folder = tmp_path_factory.mktemp("merging")
    kind, dtype = request.param.split()
    model = tiny if kind == "classic" else made("llama")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "UNIT", 50)
        whole = fm.scan(model, CORPUS, folder / "whole", dtype=dtype, **SMALL)
        assert whole.manifest["units"]["total"] == 3
        parts = [fm.scan(model, CORPUS, folder / f"shard{i}", dtype=dtype, shard=(i, 3), **SMALL) for i in range(3)]
    return model, whole, parts


@pytest.mark.usefixtures("small_units")
def test_shards_in_any_order_and_grouping_give_the_bytes_of_one_scan(scans: Scans, tmp_path: Path) -> None:
    model, whole, parts = scans
    expected = digests(whole.folder)
    for part in parts:
        assert not part.complete
        assert part.examples(1, 5)["coefficient"].notna().all()  # of what it has not seen there is none
    for number, order in enumerate(itertools.permutations(parts)):
        joined = fm.merge(order, tmp_path / str(number))
        assert joined.complete
        assert digests(joined.folder) == expected
    a, b, c = parts
    for name, first, last in (("ab", [a, b], c), ("cb", [c, b], a)):
        part = fm.merge(first, tmp_path / name)
        assert not part.complete
        assert digests(fm.merge([part, last], tmp_path / f"{name} and one").folder) == expected
    finished = fm.scan(model, CORPUS, tmp_path / "ab", dtype=whole.settings.dtype, **SMALL)  # where it lies
    assert digests(finished.folder) == expected


def test_one_store_and_an_empty_shard(tiny: fm.Model, tmp_path: Path) -> None:
    whole = fm.scan(tiny, texts(30), tmp_path / "whole", **SMALL)
    full, empty = (fm.scan(tiny, texts(30), tmp_path / f"shard{i}", shard=(i, 2), **SMALL) for i in range(2))
    assert empty.n_tokens == 0
    assert empty.stats()["mean"].isna().all()
    assert not empty.stats()["dead"].any()
    assert empty.examples(0, 0).empty
    assert empty.neuron(0, 0).stats["count"] == 0
    assert digests(fm.merge([full, empty], tmp_path / "joined").folder) == digests(whole.folder)
    assert digests(fm.merge([whole], tmp_path / "copy").folder) == digests(whole.folder)


@pytest.mark.usefixtures("small_units")
def test_what_does_not_belong_together_is_refused(
    tiny: fm.Model, tiny_folder: Path, make_tiny: Callable[..., fm.Model], tmp_path: Path
) -> None:
    """Of the model, the weights decide and not the name, whose order does not either."""
    changed = make_tiny()
    changed.ffn[0].values.data[0, 0] += 1

    def scanned(name: str, model: fm.Model = tiny, corpus: list[str] = CORPUS, **more: Any) -> fm.scanning.Store:
        return fm.scan(model, corpus, tmp_path / name, **{"shard": (1, 3), **SMALL, **more})

    one, whole = scanned("one", shard=(0, 3)), scanned("whole", shard=(0, 1))
    refused: list[tuple[list[Any], Any, tuple[str, ...]]] = [
        ([one, scanned("k", k=5)], InputError, ("different scans", "k 4 and 5")),
        ([one, scanned("text", corpus=texts(40), shard=(0, 1))], InputError, ("different scans", "corpus")),
        ([one, scanned("model", model=changed)], InputError, ("different scans", "model")),
        ([whole, one], InputError, ("count twice",)),
        ([one, one.folder], InputError, ("count twice",)),
        ([], InputError, ("no stores",)),
    ]
    for stores, error, named in refused:
        with refuses(error, ValueError, *named):
            fm.merge(stores, tmp_path / "never")
    with refuses(FileError, OSError, "not empty"):
        fm.merge([one], one.folder)
    assert not (tmp_path / "never").exists()
    two = scanned("two", fm.load(str(tiny_folder)))
    ab, ba = fm.merge([one, two], tmp_path / "ab"), fm.merge([two, one], tmp_path / "ba")
    assert digests(ab.folder) == digests(ba.folder)


# -- workers ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def named(tiny_folder: Path) -> fm.Model:
    """The tiny model by a name that workers can load."""
    return fm.load(str(tiny_folder))


@pytest.fixture(scope="module")
def whole(named: fm.Model, tmp_path_factory: pytest.TempPathFactory) -> fm.scanning.Store:
    return fm.scan(named, MANY, tmp_path_factory.mktemp("workers") / "whole", **SMALL)


def test_two_workers_one_of_them_killed_give_the_bytes_of_one_process(
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
    store = fm.scan(named, MANY, tmp_path / "out", workers=2, progress=lambda *news: told.append(news), **SMALL)
    killer.join()
    assert killed
    assert digests(store.folder) == digests(whole.folder)
    assert not (store.folder / SHARDS).exists()
    scanned = [(done, total) for phase, done, total in told if phase == "scan"]
    assert scanned
    assert max(done for done, _ in scanned) <= scanned[0][1] == store.corpus.n_tokens


def test_a_worker_that_always_dies_is_reported_and_the_rest_kept(
    named: fm.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "worker", die)
    monkeypatch.setattr(shards, "TRIES", 1)
    with refuses(WorkerError, RuntimeError, "died 1 times", "exit status 9", "go on"):
        fm.scan(named, MANY[:50], tmp_path / "out", workers=2, **SMALL)
    assert (tmp_path / "out" / "corpus" / "corpus.json").exists()


def die(*_: object) -> None:
    os._exit(9)


def in_this_process(tasks: Sequence[Any], work: shards.Work, progress: shards.Together) -> list[str]:
    try:
        return [work(task, lambda _phase, done, _total, i=i: progress(i, done)) for i, task in enumerate(tasks)]
    finally:
        torch.set_num_threads(1)  # a worker takes its share of the cores: in forks of this process, passes would hang


def test_a_scan_begun_by_workers_is_finished_by_as_many(
    named: fm.Model, whole: fm.scanning.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(tasks: Sequence[Any], work: shards.Work, progress: shards.Together) -> list[str]:
        in_this_process(tasks[:1], work, progress)
        raise KeyboardInterrupt

    monkeypatch.setattr(shards, "run_locally", stop)
    with pytest.raises(KeyboardInterrupt):
        fm.scan(named, MANY, tmp_path / "out", workers=2, **SMALL)
    left = tmp_path / "out" / SHARDS / "0-of-2" / STATE
    assert StateFile(left).progress.shard == (0, 2)
    monkeypatch.setattr(shards, "run_locally", in_this_process)
    for count in (1, 3):
        with refuses(FileError, OSError, "2 workers have begun"):
            fm.scan(named, MANY, tmp_path / "out", workers=count, **SMALL)
    store = fm.scan(named, MANY, tmp_path / "out", workers=2, **SMALL)
    assert digests(store.folder) == digests(whole.folder)


def test_what_workers_cannot_scan(
    named: fm.Model, tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Changed weights under a name, a shard, what one process has begun, and Ray where there is none."""
    changed = fm.load(str(tiny_folder))
    changed.ffn[0].values.data[0, 0] += 1
    with monkeypatch.context() as patch:
        patch.setattr(shards, "run_locally", in_this_process)
        patch.setitem(sys.modules, "ray", None)
        with refuses(InputError, ValueError, "by its name", changed.fingerprint):
            fm.scan(changed, MANY[:50], tmp_path / "a", workers=2, **SMALL)
        with refuses(InputError, ValueError, "not both"):
            fm.scan(named, MANY[:50], tmp_path / "b", workers=2, shard=(0, 2), **SMALL)
        with refuses(MissingExtraError, ImportError, "pip install 'ffnmem[ray]'"):
            fm.scan(named, MANY[:50], tmp_path / "c", engine="ray", workers=2, **SMALL)
    end: Callable[..., None] = passes.Scanner.end
    calls: list[int] = []

    def twice(self: passes.Scanner, page: Page) -> None:
        if calls:
            raise KeyboardInterrupt
        calls.append(1)
        end(self, page)
        self.checkpoint()

    monkeypatch.setattr(passes.Scanner, "end", twice)
    with pytest.raises(KeyboardInterrupt):
        fm.scan(named, MANY[:500], tmp_path / "d", batch_tokens=64, **SMALL)
    with refuses(FileError, OSError, "begun by one process"):
        fm.scan(named, MANY[:500], tmp_path / "d", batch_tokens=64, workers=2, **SMALL)


RAY = f"""
import sys, ffnmem as fm
model, corpus, out = sys.argv[1:]
fm.scan(fm.load(model), corpus, out, engine="ray", workers=2, **{SMALL})
"""


@pytest.mark.exhaustive  # workers of this machine, one of them killed, stand for it in make test
def test_two_actors_give_the_bytes_of_one_process(tiny_folder: Path, whole: fm.scanning.Store, tmp_path: Path) -> None:
    """On a real local cluster of Ray."""
    pytest.importorskip("ray", reason="the extra ffnmem[ray] is not installed")
    program = [sys.executable, "-W", "ignore", "-c", RAY]
    arguments = [tiny_folder, whole.folder / "corpus", tmp_path / "out"]
    ran = subprocess.run([*program, *map(str, arguments)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert digests(tmp_path / "out") == digests(whole.folder)
