"""Shards of one scan side by side: processes of this machine or actors of a Ray cluster, and the merge of what they
found.

Each shard is a scan with a checkpoint of its own under ``OUT/shards``; one that dies is started again from there.
Sums are
exact and the order of examples is fixed by a rule, so the result does not depend on how the work was shared out.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import reduce
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch

from .. import children
from ..corpus import open_packed, tokenizer_hash
from ..errors import FfnmemError, FileError, InputError, WorkerError
from ..folders import remove_files
from ..models.loading import load
from .jobs import start
from .passes import Report, Scanner
from .reduction import available_cores
from .settings import ScanSettings
from .state_file import Progress, StateFile
from .writing import CORPUS, SHARDS, STATE

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
    packed = open_packed(Path(task.folder) / CORPUS)
    found = (model.fingerprint, tokenizer_hash(model), tuple(sorted(model.special_token_ids)))
    if found != (task.fingerprint, packed.tokenizer_hash, settings.special):
        raise InputError(
            f"workers load {task.model} by its name and find {model.fingerprint}, not the {task.fingerprint} to be "
            "scanned, or another tokenizer: save the changed model to a folder and load it from there, or use one "
            "worker"
        )
    task.path.mkdir(parents=True, exist_ok=True)
    job = start(model, packed, settings, task.path, task.shard)
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
    check_shards(folder, count)
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
        state = reduce(lambda a, b: a.merged(b), (StateFile(task.path / STATE).state() for task in tasks))
    job.state, job.progress = state, Progress()
    job.checkpoint()
    remove_shards(folder)


def remove_shards(folder: Path) -> None:
    """Remove what workers wrote, all of which is in the state now."""
    for shard in (folder / SHARDS).glob("*-of-*"):
        remove_files(shard, (STATE,))
    merged = [path.name for path in (folder / SHARDS).glob("merged-????????.safetensors")]  # by Ray's actors
    remove_files(folder / SHARDS, merged)


def check_shards(folder: Path, count: int) -> None:
    """Raise FileError if other workers than ``count`` (0 for none) have begun the scan: their work would be lost."""
    begun = {int(path.parent.name.rpartition("-")[2]) for path in (folder / SHARDS).glob(f"*-of-*/{STATE}")} - {count}
    if begun:
        number = begun.pop()
        raise FileError(f"{folder} holds a scan that {number} workers have begun: finish it with {number} workers")


class Together:
    """The progress of all shards as one."""

    def __init__(self, report: Report | None, count: int, total: int) -> None:
        self.report, self.done, self.total = report, [0] * count, total

    def __call__(self, index: int, done: int) -> None:
        self.done[index] = done
        if self.report is not None:
            self.report("scan", sum(self.done), self.total)


def run_locally(tasks: list[ShardTask], progress: Together) -> None:
    """All shards, each in a process; one that dies is started again, TRIES times in all."""
    tries = [0] * len(tasks)
    running: dict[int, tuple[Any, Any]] = {}

    def begin(index: int) -> None:
        tries[index] += 1
        running[index] = children.start(worker, tasks[index])

    try:
        for index in range(len(tasks)):
            begin(index)
        while running:
            wait([pipe for _, pipe in running.values()], timeout=1.0)
            for index, (process, pipe) in list(running.items()):
                if listen(index, pipe, progress):
                    continue
                process.join()
                pipe.close()
                del running[index]
                if process.exitcode == 0:
                    continue
                if tries[index] == TRIES:
                    raise WorkerError(
                        f"the worker of shard {index} died {TRIES} times (exit status {process.exitcode}); "
                        "run the same scan again to go on"
                    )
                begin(index)
    finally:
        for process, _ in running.values():
            process.kill()
        for process, pipe in running.values():
            process.join()
            pipe.close()


def listen(index: int, pipe: Any, progress: Together) -> bool:
    """Take in what a worker has said; False once it has hung up. Raises what a worker calls its user's mistake."""
    try:
        while pipe.poll():
            said = pipe.recv()
            if isinstance(said, tuple):
                raise mistake(*said)
            progress(index, said)
    except (EOFError, OSError) as error:
        if isinstance(error, FfnmemError):
            raise
        return False
    return True


def mistake(kind: str, message: str) -> FfnmemError:
    """An error of another process, as the class that it was there."""
    found = getattr(sys.modules[FfnmemError.__module__], kind, None)
    return found(message) if isinstance(found, type) and issubclass(found, FfnmemError) else InputError(message)


def worker(task: ShardTask, pipe: Any) -> None:
    """A worker process: how far it is, and a user's mistake, are told to the parent."""
    try:
        run_shard(task, lambda _phase, done, _total: children.tell(pipe, done))
    except FfnmemError as error:
        children.tell(pipe, (type(error).__name__, str(error)))
        raise SystemExit(1) from None
