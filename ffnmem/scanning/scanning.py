"""``scan``: one pass over a corpus, to a store that answers for every neuron and vouches for its files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

from ..core.errors import InputError
from ..core.files import write_whole
from ..core.progress import Progress
from ..core.types import Count, Division, Engine, NonNegative, Range, ScanDtype, Seed, Whole, at_least, checked
from ..corpus.batches import Sequences
from ..corpus.excerpts import BATCH_TOKENS, TextSettings, check_shard
from ..corpus.packed import Packed
from ..corpus.passes import CHECKPOINT_SECONDS
from ..models.model import Model
from .jobs import check_shards, most_frequent, packed_corpus, prepared, remove_shards, scan_with_workers, start
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

MOST = 10_000  # examples at each end of a neuron: their memory grows with this, whatever the corpus


@checked
def scan(
    model: Model,
    source: Any,
    out: str | Path,
    *,
    k: Annotated[int, Range(1, MOST)] = 20,
    context: Annotated[int, at_least(2)] | None = None,
    prepend_bos: bool | None = None,
    dtype: ScanDtype = "float32",
    seed: Seed = 0,
    sample: Count = SAMPLE,
    draws: Count = DRAWS,
    frequent: Whole = FREQUENT,
    batch_tokens: Count = BATCH_TOKENS,
    shard: tuple[int, int] = (0, 1),
    workers: Count = 1,
    engine: Engine = "local",
    text: str = "text",
    documents: Division | None = None,
    checkpoint_seconds: NonNegative = CHECKPOINT_SECONDS,
    project: bool | None = None,
    progress: Progress | None = None,
) -> Store:
    """Read a corpus once and keep, for every neuron, what fires it, how often and how strongly, and what it writes.

    Memory does not grow with the corpus. The scan can be killed at any moment: the same call goes on where the last
    checkpoint was and gives the same bytes. A finished store is opened at once.

    Args:
        model: from :func:`ffnmem.load`. Hooks on its bridge are not seen; its weights are.
        source: a file, folder, glob, ``"atlas"`` (bundled), ``"hf:name"``, texts, or a packed corpus.
        out: the store's folder: new, empty, or with this scan; made if missing.
        k: sequences kept at the top and at the bottom of each neuron, and in each sign case of a gated one.
        context: the longest sequence in tokens, BOS included; default 128, or what the model reads.
        prepend_bos: put BOS before each sequence (never counted); default: the model's own convention.
        dtype: ``"float32"``, or ``"bfloat16"`` for the pass, after which twice as many candidates as kept are run
            again in float32 and ranked by that, so that every example shown is exact.
        seed: of the random sample.
        sample: random sequences kept for quantile bands; at up to 4,096 positions of them what the FFNs read is kept
            too, by which :func:`ffnmem.polysemanticity` whitens inputs. draws: random positions kept.
        frequent: most frequent tokens whose mean coefficients are kept.
        batch_tokens: of one forward pass, pads included; changes float rounding only.
        shard: (i, n): only every n-th unit of the corpus from the i-th, to be joined by :func:`merge`.
        workers: processes that share the pass (in a script, below ``if __name__ == "__main__"``, as Python's
            multiprocessing asks); each loads the model by its name. A worker that dies is started again
            where it was. The result is the same.
        engine: ``"local"`` processes of this machine, or ``"ray"``: actors of a Ray cluster whose machines see ``out``
            (``pip install 'ffnmem[ray]'``).
        text, documents: how to read the source, see :func:`ffnmem.corpus.open_corpus`.
        checkpoint_seconds: between checkpoints.
        project: end with the table of the tokens that every value promotes and suppresses (of gated neurons also those
            that excite gate and key). Default: where that takes about a second, which is where neurons × sides ×
            vocabulary × d_model is at most 10¹¹. Else :meth:`Store.neuron` asks the model for single neurons, and
            :meth:`Store.search` makes the table and keeps it in ``out``; the answers are the same.
        progress: called as (phase, done, total) with the phases "pack", "scan", "rescore" and, where that is
            done, "project".

    Raises:
        InputError: settings that cannot be. FileError: a folder that holds another scan or something else, a damaged
            file or corpus.
        MissingExtraError: no Ray. WorkerError: a worker that died time and again.

    Source: Bills et al. 2023 for top, quantile and random examples; Chan et al. 1983 for merged moments (here exact).
    """
    shard = check_shard(shard)
    cut = TextSettings.checked(model, context, prepend_bos, batch_tokens)
    fast_tokenizer(model)  # refused now rather than after hours
    with prepared(out) as folder:
        packed = packed_corpus(model, source, folder / CORPUS, text=text, documents=documents, progress=progress)
        most = most_frequent(packed, model, frequent)
        settings = ScanSettings(**vars(cut), k=k, dtype=dtype, seed=seed, sample=sample, draws=draws, frequent=most)
        job = start(model, packed, settings, folder, shard)
        if job is not None:
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
