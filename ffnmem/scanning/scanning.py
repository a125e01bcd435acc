"""``scan``: one pass over a corpus, to a store that answers for every neuron and vouches for its files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..core.errors import InputError
from ..core.files import write_whole
from ..core.number_text import format_bytes
from ..core.progress import Progress, log
from ..core.types import (
    ContextLength,
    Count,
    Division,
    Engine,
    Examples,
    NonNegative,
    OutFolder,
    PageTokens,
    ScanDtype,
    Seed,
    Shard,
    Texts,
    Whole,
    checked,
)
from ..corpus.batches import Sequences
from ..corpus.excerpts import BATCH_TOKENS, TextSettings, check_shard
from ..corpus.packed import Packed
from ..corpus.passes import CHECKPOINT_SECONDS
from ..models.model import Model
from .jobs import (
    check_shards,
    expected_bytes,
    most_frequent,
    packed_corpus,
    prepared,
    remove_shards,
    scan_with_workers,
    start,
)
from .manifest import NAMES, write_manifest
from .passes import Scanner
from .projected import BASIS, is_quick, write_values
from .settings import DRAWS, FREQUENT, SAMPLE, ScanSettings
from .state import ScanState
from .state_file import Identity, ScanProgress, StateFile, save_state
from .store import Store, open_store
from .tables import CORPUS, STATE, TOKENIZER, VALUES, write_stats

# The last steps of a scan: what the values write, the tables, and the manifest that vouches for all of it.


def finish(job: Scanner, packed: Packed, folder: Path, projected: bool, progress: Progress | None) -> None:
    """Write the tables and, last, the manifest. ``projected``: with that of what all values write."""
    if projected:
        write_values(job.model, folder / VALUES, progress)
    backend = fast_tokenizer(job.model)
    # What calls on it change in passing is left out, so that the same scan writes the same bytes.
    content = {**json.loads(backend.to_str()), "truncation": None, "padding": None}
    write_whole(folder / TOKENIZER, json.dumps(content, ensure_ascii=False, sort_keys=True))
    remove_shards(folder)  # left where they were merged, and the scan was killed
    write_store(folder, job.state, job.identity, job.sequences, store_facts(job, packed), projected)


def fast_tokenizer(model: Model) -> Any:
    """What a store keeps of the tokenizer; raises InputError if it is one that cannot be written down."""
    backend = getattr(model.tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise InputError(f"{model.name} has a tokenizer in Python only, which a store cannot keep: use its fast one")
    return backend


def store_facts(job: Scanner, packed: Packed) -> dict[str, Any]:
    """What the manifest says besides what the state knows."""
    settings = job.state.settings
    return {
        "provenance": job.model.provenance(
            prepend_bos=settings.prepend_bos, corpus=packed.hash, scan_dtype=settings.dtype, seed=settings.seed
        ).to_dict(),
        "corpus": {
            "source": packed.source,
            "hash": packed.hash,
            "documents": packed.n_documents,
            "digest": packed.digest,
        },
        "special_token_ids": list(settings.special),
        "bos": job.sequences.bos,
        "rescored_in": "float32" if settings.rescored else None,
        "basis": BASIS,
    }


def write_store(
    folder: Path, state: ScanState, identity: Identity, sequences: Sequences, facts: dict[str, Any], projected: bool
) -> None:
    """The state as finished, the tables and the manifest, which vouches for the one of values if it is ``projected``
    here; one that a store keeps besides vouches for itself."""
    save_state(folder / STATE, state, identity, ScanProgress(complete=True))
    write_stats(folder, state)
    content = {
        **facts,
        "model": identity.model,
        "fingerprint": identity.fingerprint,
        "tokenizer_hash": identity.tokenizer_hash,
        "settings": state.settings.to_dict(),
        "layers": len(state.layers),
        "d_mlp": [layer.kept.shape[1] for layer in state.layers],
        "tokens": state.tokens,
        "sequences": int(state.arrays["totals"][1]),
        "units": {"done": len(state.done), "total": identity.n_units},
        "gated": any(layer.gated for layer in state.layers),
        "state_header": StateFile(folder / STATE).digest,
    }
    write_manifest(folder, content, [name for name in NAMES if projected or name != VALUES])


# `scan`: one pass over a corpus, and a store that answers for every neuron.


def check_scan(shard: tuple[int, int] = (0, 1), workers: int = 1, engine: str = "local") -> None:
    """Raise InputError for what cannot be asked at once."""
    if shard != (0, 1) and (workers > 1 or engine != "local"):
        raise InputError("workers share out a whole scan: give a shard or workers, not both")


@checked
def scan(
    model: Model,
    texts: Texts,
    out: OutFolder,
    *,
    k: Examples = 20,
    context: ContextLength | None = None,
    prepend_bos: bool | None = None,
    dtype: ScanDtype = "float32",
    seed: Seed = 0,
    sample: Count = SAMPLE,
    draws: Count = DRAWS,
    frequent: Whole = FREQUENT,
    batch_tokens: PageTokens = BATCH_TOKENS,
    shard: Shard = (0, 1),
    workers: Count = 1,
    engine: Engine = "local",
    text: str = "text",
    documents: Division | None = None,
    checkpoint_seconds: NonNegative = CHECKPOINT_SECONDS,
    project: bool | None = None,
    progress: Progress | None = None,
) -> Store:
    """Read a corpus once; keep what fires every neuron.

    Leaves a store: what fires every neuron, how often and how strongly, what it writes. Gated neurons (Llama, Gemma)
    are also told apart by the signs of gate and linear part, with examples of each case.

    Memory does not grow with the corpus. The scan can be stopped at any moment: the same call goes on where the last
    checkpoint was and gives the same bytes. A finished store is opened at once.

    Args:
        model: from :func:`ffnmem.load`. Hooks on its bridge are not seen; its weights are.
        texts: a file, folder, glob, ``"atlas"`` (bundled), ``"hf:name"``, texts, or a packed corpus.
        out: the store's folder: new, empty, or with this scan; made if missing.
        k: examples of a neuron: sequences kept at its top and at its bottom, and in each sign case of a gated one.
        context: the longest sequence in tokens, BOS included. [default: 128, or what the model reads]
        prepend_bos: put BOS before each sequence (never counted); default: the model's own convention.
        dtype: numeric type of the pass. After bfloat16 twice as many candidates as kept are run again in float32 and
            ranked by that, so that every example shown is exact.
        seed: of the random sample.
        sample: random sequences kept for quantile bands; at up to 4,096 positions of them what the FFNs read is kept
            too, by which :func:`ffnmem.polysemanticity` whitens inputs.
        draws: random positions kept.
        frequent: most frequent tokens whose mean coefficients are kept.
        batch_tokens: of one forward pass, pads included; changes float rounding only.
        shard: only the I-th of N parts of the corpus, from 0, to be joined by :func:`merge`. [default: all of it]
            In Python, (i, n).
        workers: processes that share the pass; each loads the model by its name. A worker that dies is started again
            where it was. The result is the same. In Python, below ``if __name__ == "__main__"``, as multiprocessing
            asks.
        engine: where workers run: processes of this machine, or actors of a Ray cluster whose machines see the folder
            (pip install 'ffnmem[ray]').
        text: the field of a record that is its text, see :func:`ffnmem.corpus.open_corpus`.
        documents: what is a document of a .txt file: what blank lines separate, a line, or all of it.
        checkpoint_seconds: between checkpoints.
        project: end with the table of the tokens that every value promotes and suppresses (of gated neurons also those
            that excite gate and key), or leave them for when they are asked for; the answers are the same. [default:
            end with it where that takes about a second: neurons × sides × vocabulary × d_model is at most 10¹¹] In
            Python, :meth:`Store.neuron` then asks the model for single neurons, and :meth:`Store.search` makes the
            table and keeps it in ``out``.
        progress: called as (phase, done, total) with the phases "pack", "scan", "rescore" and, where that is
            done, "project".

    Raises:
        InputError: settings that cannot be. FileError: a folder that holds another scan or something else, a damaged
            file or corpus.
        MissingExtraError: no Ray. WorkerError: a worker that died time and again.

    Source: Bills et al. 2023 for top, quantile and random examples; Chan et al. 1983 for merged moments (here exact).

    Example:
        $ ffnmem scan atlas --out runs/atlas
        $ ffnmem scan texts.jsonl --text body --out runs/texts --context 64
        $ ffnmem scan "texts/*.jsonl" --out runs/3 --shard 3/8
    """
    shard = check_shard(shard)
    check_scan(shard, workers, engine)
    cut = TextSettings.checked(model, context, prepend_bos, batch_tokens)
    fast_tokenizer(model)  # refused now rather than after hours
    with prepared(out) as folder:
        packed = packed_corpus(model, texts, folder / CORPUS, text=text, documents=documents, progress=progress)
        most = most_frequent(packed, model, frequent)
        settings = ScanSettings(**vars(cut), k=k, dtype=dtype, seed=seed, sample=sample, draws=draws, frequent=most)
        job = start(model, packed, settings, folder, shard)
        if job is None:
            log.info("%s holds this scan, finished: nothing is read again", out)
        else:
            log.info("will write about %s into %s", format_bytes(expected_bytes(model, settings)), out)
            job.report, job.every = progress, checkpoint_seconds
            projected = is_quick(model) if project is None else project
            if workers == 1 and engine == "local":
                check_shards(folder, 0)
                job.scan()
                if settings.rescored or projected:  # else it is saved next, by finish
                    job.checkpoint()
            else:
                scan_with_workers(job, folder, workers, engine)
            job.rescore()
            finish(job, packed, folder, projected, progress)
    store = open_store(folder, model=model)
    if project and not store.projected:  # it was finished before, without
        store.keep_values(progress)
    return store
