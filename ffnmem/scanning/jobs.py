"""Setting up a scan: its folder, its packed corpus, and where it stands."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from .._version import __version__
from ..corpus import Corpus, Packed, Sequences, open_corpus, open_packed, pack, tokenizer_hash
from ..corpus.packing import link_pack, reusable
from ..errors import FileError, InputError, check_count, check_whole
from ..files import workspace
from ..folders import claimed, locked
from ..models import Model
from ..models.layer_pass import check_same
from .manifest import FOLDER, is_vouched_for
from .passes import Report, Scanner
from .sampling import choose
from .settings import ScanSettings
from .state import ScanState
from .state_file import Identity, Progress, StateFile
from .writing import CORPUS, STATE


@contextmanager
def prepared(out: str | Path) -> Iterator[Path]:
    """The store's folder, new, empty or a store's, written by nobody else meanwhile. Raises FileError."""
    with claimed(out, FOLDER) as folder, locked(folder, f"the store {out}"):
        yield folder


def check_shard(shard: tuple[int, int]) -> tuple[int, int]:
    index, count = check_whole("shard", shard[0]), check_count("number of shards", shard[1])
    if not 0 <= index < count:
        raise InputError(f"shard {index} of {count} is none: shards are 0 to {count - 1}")
    return index, count


def packed_corpus(
    model: Model, source: Any, folder: Path, *, text: str, documents: str | None, report: Report | None
) -> Packed:
    """The corpus, packed into the store's folder, or linked there if it is packed already.

    A folder that holds a scan keeps its text: raises FileError for another one.
    """
    ready = source if isinstance(source, Packed | Corpus) else open_corpus(source, text=text, documents=documents)
    progress = None if report is None else lambda done, total: report("pack", done, total)
    state = folder.parent / STATE
    if isinstance(ready, Packed):
        open_packed(ready.folder, tokenizer_hash(model))  # refuses another tokenizer's
        if same_folder(ready.folder, folder):
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


def same_folder(a: Path, b: Path) -> bool:
    return a.resolve() == b.resolve()


def most_frequent(packed: Packed, model: Model, count: int) -> tuple[int, ...]:
    """The most frequent token ids of the corpus, special ones left out; ties by id."""
    counts = np.array(packed.token_counts)
    counts[[i for i in model.special_token_ids if i < len(counts)]] = 0
    order = np.argsort(-counts, kind="stable")[:count]
    return tuple(int(i) for i in order if counts[i] > 0)


def start(model: Model, packed: Packed, settings: ScanSettings, folder: Path, shard: tuple[int, int]) -> Scanner | None:
    """The scan from its last checkpoint or from the beginning; None if the folder holds its finished store."""
    check_same(model)
    sequences = Sequences(packed, settings.context, settings.bos)
    if sequences.n_sequences == 0:
        raise InputError(f"{packed.source} has no text to scan")
    identity = Identity(
        model.name, model.fingerprint, packed.tokenizer_hash, packed.hash, len(sequences.units), __version__
    )
    drawn = choose(sequences, settings.seed, settings.sample, settings.draws)
    path = folder / STATE
    progress = Progress(shard=shard)
    if path.exists():
        state, progress = resumed(path, identity, settings, shard)
        mine = set(range(shard[0], len(sequences.units), shard[1]))
        if progress.complete and mine <= set(state.done.tolist()) and is_vouched_for(folder):
            return None
        progress = progress.with_(shard=shard, complete=False)
        if not mine <= set(state.done.tolist()):
            progress = progress.with_(rescored=0)  # new units bring other candidates
            state.forget_exact()
        if FOLDER.is_finished(folder):
            FOLDER.mark(folder)
    else:
        widths = [ffn.d_mlp for ffn in model.ffn]
        state = ScanState.empty(settings, widths, drawn.sequences, drawn.draws, model.gated)
    return Scanner(model, sequences, drawn, state, identity, progress, path)


def resumed(
    path: Path, identity: Identity, settings: ScanSettings, shard: tuple[int, int]
) -> tuple[ScanState, Progress]:
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
