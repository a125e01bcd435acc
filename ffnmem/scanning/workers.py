"""A scan shared out: shards side by side (:mod:`ffnmem.corpus.shards`), and the merge of what they found.

Each shard is a scan with a checkpoint of its own under ``OUT/shards``. Sums are exact and the order of examples is
fixed by a rule, so the result does not depend on how the work was shared out.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import torch

from ..corpus import open_packed, tokenizer_hash
from ..corpus.shards import Together, run_shards
from ..errors import FileError, InputError
from ..folders import remove_files
from ..models.layer_pass import check_same
from ..models.loading import load
from ..progress import Progress
from .jobs import start
from .passes import Scanner
from .reduction import available_cores
from .settings import ScanSettings
from .state_file import ScanProgress, StateFile, save_state
from .writing import CORPUS, SHARDS, STATE


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


def run_shard(task: ShardTask, report: Progress | None = None) -> str:
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


def merge_files(first: str, second: str) -> str:
    """Join two shards' states, in a file beside them."""
    a, b = StateFile(Path(first)), StateFile(Path(second))
    shards = next(parent for parent in a.path.parents if parent.name == SHARDS)
    out = shards / f"merged-{secrets.token_hex(4)}.safetensors"
    save_state(out, a.state().merged(b.state()), a.identity, a.progress)
    return str(out)


def scan_with_workers(job: Scanner, folder: Path, workers: int, engine: str) -> None:
    """Scan all units by several processes and put the merged state into the job."""
    if job.progress.shard != (0, 1):
        raise InputError("workers share out a whole scan: give --shard or --workers, not both")
    if len(job.state.done) == len(job.sequences.units):
        return  # only what follows the pass is left to do
    if len(job.state.done) or job.progress.batch:
        raise FileError(f"{folder} holds a scan that was begun by one process: finish it without workers, or remove it")
    check_same(job.model)  # workers load it by its name, and would not see hooks that change it here
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
    progress = Together(job.report, "scan", count, job.sequences.packed.n_tokens)
    gpus = int(tasks[0].device.startswith("cuda"))
    paths = run_shards(tasks, run_shard, progress, engine, join=merge_files, gpus=gpus)
    state = reduce(lambda a, b: a.merged(b), (StateFile(Path(path)).state() for path in paths))
    job.state, job.progress = state, ScanProgress()
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
