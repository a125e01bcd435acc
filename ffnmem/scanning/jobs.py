"""A scan under way in a folder: begun, gone on with, and its shards side by side."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .._version import __version__
from ..core.errors import FileError, InputError
from ..core.files import workspace
from ..core.folders import claimed, locked, remove_files
from ..core.progress import Progress
from ..core.threads import available_cores
from ..core.types import Division
from ..corpus.batches import Sequences
from ..corpus.packed import Packed, open_packed
from ..corpus.packing import link_pack, pack, reusable
from ..corpus.shards import Together, run_shards
from ..corpus.sources import Corpus, open_corpus
from ..corpus.tokenizing import tokenizer_hash
from ..models.layer_pass import check_same
from ..models.loading import load
from ..models.model import Model
from .manifest import FOLDER, is_vouched_for
from .passes import Scanner
from .reduction import INPUTS, choose
from .settings import ScanSettings
from .state import LAYER, ScanState, sizes_of
from .state_file import Identity, ScanProgress, StateFile
from .tables import CORPUS, SHARDS, STATE

# Setting up a scan: its folder, its packed corpus, and where it stands.


@contextmanager
def prepared(out: str | Path) -> Iterator[Path]:
    """The store's folder, new, empty or a store's, written by nobody else meanwhile. Raises FileError."""
    with claimed(out, FOLDER) as folder, locked(folder, f"the store {out}"):
        yield folder


def packed_corpus(
    model: Model, source: Any, folder: Path, *, text: str, documents: Division | None, progress: Progress | None
) -> Packed:
    """The corpus, packed into the store's folder, or linked there if it is packed already.

    A folder that holds a scan keeps its text: raises FileError for another one.
    """
    ready = source if isinstance(source, Packed | Corpus) else open_corpus(source, text=text, documents=documents)
    state = folder.parent / STATE
    if isinstance(ready, Packed):
        open_packed(ready.folder, tokenizer_hash(model))  # refuses another tokenizer's
        if ready.folder.resolve() == folder.resolve():
            return ready
        if state.exists():
            check_text(state, ready)
        link_pack(ready.folder, folder)
        return open_packed(folder)
    if not state.exists():
        return pack(ready, model, folder, progress=progress)
    kept = reusable(folder, ready, tokenizer_hash(model), ready.stamp())
    if kept is not None:
        return kept
    with workspace(folder.parent / "again") as (_, room):
        again = pack(ready, model, room / CORPUS, progress=progress)
        check_text(state, again)
        if not intact(folder, again.hash):
            link_pack(again.folder, folder)
    return open_packed(folder)


def intact(folder: Path, corpus_hash: str) -> bool:
    """Whether a folder holds a corpus whole."""
    try:
        return open_packed(folder).hash == corpus_hash
    except FileError:
        return False


def check_text(state: Path, packed: Packed) -> None:
    """Raise FileError if the scan of a state is of another text."""
    scanned = StateFile(state).identity.corpus_hash
    if scanned != packed.hash:
        raise FileError(
            f"{state.parent} holds another scan (corpus {packed.hash} and {scanned}): name another folder, or remove "
            "this one"
        )


def most_frequent(packed: Packed, model: Model, count: int) -> tuple[int, ...]:
    """The most frequent token ids of the corpus, special ones left out; ties by id."""
    counts = np.array(packed.token_counts)
    counts[[i for i in model.special_token_ids if i < len(counts)]] = 0
    order = np.argsort(-counts, kind="stable")[:count]
    return tuple(int(i) for i in order if counts[i] > 0)


def start(model: Model, packed: Packed, settings: ScanSettings, folder: Path, shard: tuple[int, int]) -> Scanner | None:
    """The scan from its last checkpoint or from the beginning; None if the folder holds its finished store."""
    sequences = Sequences(packed, settings.context, settings.bos)
    if sequences.n_sequences == 0:
        raise InputError(f"{packed.source} has no text to scan")
    identity = Identity(
        model.name, model.fingerprint, packed.tokenizer_hash, packed.hash, len(sequences.units), __version__
    )
    drawn = choose(sequences, settings.special, settings.seed, settings.sample, settings.draws)
    path = folder / STATE
    progress = ScanProgress(shard=shard)
    if path.exists():
        state, progress = resumed(path, identity, settings, shard)
        mine = set(range(shard[0], len(sequences.units), shard[1]))
        if progress.complete and mine <= set(state.done.tolist()) and is_vouched_for(folder):
            return None
        progress = replace(progress, shard=shard, complete=False)
        if not mine <= set(state.done.tolist()):
            progress = replace(progress, rescored=0)  # new units bring other candidates
            state.forget_exact()
        if FOLDER.is_finished(folder):
            FOLDER.mark(folder)
    else:
        widths = [ffn.d_mlp for ffn in model.ffn]
        kept = len(drawn.inputs), model.d_model
        state = ScanState.empty(settings, widths, drawn.sequences, drawn.draws, model.gated, model.experts, kept)
    return Scanner(model, sequences, drawn, state, identity, progress, path)


def expected_bytes(model: Model, settings: ScanSettings) -> int:
    """About how many bytes the store of a scan takes: those of its state, where the text has what is drawn of it. Its
    tables add some percent, the text two or four bytes a token."""
    total = 0
    for ffn, sizes in zip(model.ffn, model.experts or [None] * model.n_layers, strict=True):
        count = 1 if sizes is None else sizes.experts + bool(sizes.shared)
        kept = settings.sample, settings.draws
        axes = sizes_of(settings, ffn.d_mlp, count, *kept, model.gated, (INPUTS, model.d_model))
        total += sum(math.prod(array.shape(axes)) * np.dtype(array.dtype).itemsize for array in LAYER.values())
    return total


def resumed(
    path: Path, identity: Identity, settings: ScanSettings, shard: tuple[int, int]
) -> tuple[ScanState, ScanProgress]:
    """The state of a checkpoint; raises FileError if it is of another scan."""
    file = StateFile(path)
    differ = identity.differences(file.identity) + settings.differences(file.settings)
    if differ:
        raise FileError(
            f"{path.parent} holds another scan ({'; '.join(differ)}): name another folder, or remove this one"
        )
    if file.progress.batch and file.identity.version != identity.version:
        raise FileError(
            f"{path.parent} was stopped in the middle of a unit by ffnmem {file.identity.version}: finish it with that "
            "version, or name another folder"
        )
    if file.progress.batch and file.progress.shard != shard:
        i, n = file.progress.shard
        raise FileError(f"{path.parent} holds shard {i}/{n} in the middle: finish it with the same command")
    return file.state(), file.progress


# A scan shared out: shards side by side (:mod:`ffnmem.corpus.shards`), and the merge of what they found.
#
# Each shard is a scan with a checkpoint of its own under `OUT/shards`. Sums are exact and the order of examples is
# fixed by a rule, so the result does not depend on how the work was shared out.


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
    job.checkpoint()
    return str(task.path / STATE)


def scan_with_workers(job: Scanner, folder: Path, workers: int, engine: str) -> None:
    """Scan all units by several processes and put the merged state into the job."""
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
            settings=job.state.settings.to_dict(),
            shard=(index, count),
            threads=max(1, available_cores() // count) if engine == "local" else 1,
            every=job.every,
        )
        for index in range(count)
    ]
    progress = Together(job.report, "scan", count, job.sequences.packed.n_tokens)
    gpus = int(tasks[0].device.startswith("cuda"))
    paths = run_shards(tasks, run_shard, progress, engine, gpus=gpus)
    for path in paths:  # nothing was done yet
        job.state.merge(StateFile(Path(path)).state())
    job.progress = ScanProgress()
    job.checkpoint()
    remove_shards(folder)


def remove_shards(folder: Path) -> None:
    """Remove what workers wrote, all of which is in the state now."""
    for shard in (folder / SHARDS).glob("*-of-*"):
        remove_files(shard, (STATE,))
    remove_files(folder / SHARDS, ())


def check_shards(folder: Path, count: int) -> None:
    """Raise FileError if other workers than ``count`` (0 for none) have begun the scan: their work would be lost."""
    begun = {int(path.parent.name.rpartition("-")[2]) for path in (folder / SHARDS).glob(f"*-of-*/{STATE}")} - {count}
    if begun:
        number = begun.pop()
        raise FileError(f"{folder} holds a scan that {number} workers have begun: finish it with {number} workers")
