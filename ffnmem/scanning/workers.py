"""Shards of one scan side by side: processes of this machine or actors of a Ray cluster, and the merge of what they
found.

Each shard is a scan with a checkpoint of its own under ``OUT/shards``; one that dies is started again from there.
Sums are
exact and the order of examples is fixed by a rule, so the result does not depend on how the work was shared out.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..corpus import open_packed
from ..errors import FfnmemError, FileError, InputError, WorkerError
from ..models.loading import load
from .jobs import start
from .passes import Report, Scanner
from .reduction import available_cores
from .settings import ScanSettings
from .state import ScanState
from .state_file import Progress, StateFile
from .writing import CORPUS, STATE

ENGINES = ("local", "ray")
SHARDS = "shards"
TRIES = 3  # of each shard


@dataclass(frozen=True)
class ShardTask:
    """All that another process needs to scan one shard; every field is plain."""

    model: str
    fingerprint: str
    dtype: str
    device: str
    folder: str
    settings: dict[str, Any]
    shard: tuple[int, int]
    threads: int
    every: float

    @property
    def path(self) -> Path:
        index, count = self.shard
        return Path(self.folder) / SHARDS / f"{index}-of-{count}"


def run_shard(task: ShardTask, report: Report | None = None) -> str:
    """Scan a shard, from its checkpoint if it has one; returns the path of its state."""
    torch.set_num_threads(task.threads)
    settings = ScanSettings.from_dict(task.settings)
    model = load(task.model, dtype=task.dtype, device=task.device, prepend_bos=settings.prepend_bos)
    if model.fingerprint != task.fingerprint:
        raise InputError(
            f"workers load {task.model} by its name and find {model.fingerprint}, not the "
            f"{task.fingerprint} to be scanned: "
            "save the changed model to a folder and load it from there, or use one worker"
        )
    task.path.mkdir(parents=True, exist_ok=True)
    job = start(model, open_packed(Path(task.folder) / CORPUS), settings, task.path, task.shard)
    assert job is not None  # a shard has no manifest, so it never counts as a finished store
    job.report, job.every = report, task.every
    job.scan()
    return str(task.path / STATE)


def scan_with_workers(job: Scanner, folder: Path, workers: int, engine: str) -> None:
    """Scan all units by several processes and put the merged state into the job."""
    if job.progress.shard != (0, 1):
        raise InputError("workers share out a whole scan: give --shard or --workers, not both")
    if len(job.state.done) == len(job.sequences.units):
        return  # only what follows the pass is left to do
    if len(job.state.done) or job.progress.batch:
        raise FileError(f"{folder} holds a scan that was begun by one process: finish it without workers, or remove it")
    count = min(workers, len(job.sequences.units))
    for other in (folder / SHARDS).glob("*-of-*"):
        if not other.name.endswith(f"-of-{count}"):
            shutil.rmtree(other)  # of another number of workers
    tasks = [
        ShardTask(
            model=job.model.name,
            fingerprint=job.model.fingerprint,
            dtype=str(job.model.dtype).removeprefix("torch."),
            device=str(job.model.device),
            folder=str(folder.resolve()),
            settings=job.state.settings.as_dict(),
            shard=(index, count),
            threads=max(1, available_cores() // count) if engine == "local" else 1,
            every=job.every,
        )
        for index in range(count)
    ]
    total = job.sequences.packed.n_tokens + job.sequences.n_sequences * job.sequences.lead
    progress = Together(job.report, count, total)
    if engine == "ray":
        from .ray_engine import run_on_ray

        state = run_on_ray(tasks, progress)
    else:
        run_locally(tasks, progress)
        state = merged([StateFile(task.path / STATE).state() for task in tasks])
    job.state, job.progress = state, Progress()
    job.checkpoint()
    shutil.rmtree(folder / SHARDS)


class Together:
    """The progress of all shards as one."""

    def __init__(self, report: Report | None, count: int, total: int) -> None:
        self.report, self.done, self.total = report, [0] * count, total

    def __call__(self, index: int, done: int) -> None:
        self.done[index] = done
        if self.report is not None:
            self.report("scan", sum(self.done), self.total)


def merged(states: list[ScanState]) -> ScanState:
    """Neighbours first, then pairs of pairs: every state is copied log n times, not n times."""
    while len(states) > 1:
        states = [a.merged(b) for a, b in zip(states[::2], states[1::2], strict=False)] + (
            [states[-1]] if len(states) % 2 else []
        )
    return states[0]


def run_locally(tasks: list[ShardTask], progress: Together) -> None:
    """All shards, each in a process; one that dies is started again, TRIES times in all."""
    context = multiprocessing.get_context("spawn")
    messages: Any = context.Queue()
    tries = [0] * len(tasks)
    running: dict[int, Any] = {}

    def begin(index: int) -> None:
        tries[index] += 1
        running[index] = context.Process(target=worker, args=(tasks[index], index, messages), daemon=True)
        running[index].start()

    try:
        for index in range(len(tasks)):
            begin(index)
        while running:
            for index, value in received(messages):
                if isinstance(value, str):
                    raise InputError(value)
                progress(index, value)
            for index, process in list(running.items()):
                if process.is_alive():
                    continue
                process.join()
                del running[index]
                if process.exitcode == 0:
                    continue
                for _, value in received(messages):
                    if isinstance(value, str):
                        raise InputError(value)
                if tries[index] == TRIES:
                    raise WorkerError(
                        f"the worker of shard {index} died {TRIES} times (exit status {process.exitcode}); "
                        "run the same scan again to go on"
                    )
                begin(index)
    finally:
        for process in running.values():
            process.kill()
            process.join()


def received(messages: Any) -> list[tuple[int, int | str]]:
    """What workers said in the last moments: (shard, tokens done), or (shard, what is wrong)."""
    found = []
    try:
        found.append(messages.get(timeout=0.2))
        while True:
            found.append(messages.get_nowait())
    except queue.Empty:
        return found


def worker(task: ShardTask, index: int, messages: Any) -> None:
    """A worker process: a user's mistake is told to the parent; it ends by itself when the parent is gone."""
    parent = os.getppid()

    def tell(_phase: str, done: int, _total: int) -> None:
        if os.getppid() != parent:
            os._exit(1)
        messages.put((index, done))

    try:
        run_shard(task, tell)
    except FfnmemError as error:
        messages.put((index, str(error)))
        raise SystemExit(1) from None
