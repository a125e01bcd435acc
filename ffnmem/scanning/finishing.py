"""The last steps of a scan: what the values write, the tables, and the manifest that vouches for all of it.

The two keys of gated neurons are kept in tokens beside their values; a classic one's key is a question to the model.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

from ..corpus import Packed, Sequences
from ..errors import InputError
from ..files import write_whole
from ..models import Model
from ..progress import Progress
from ..vocabulary import project
from ..vocabulary.vectors import SIDES
from .manifest import write_manifest
from .passes import Scanner
from .state import ScanState
from .state_file import Identity, ScanProgress, StateFile, save_state
from .workers import remove_shards
from .writing import STATE, TOKENIZER, VALUES, write_tables

PROMOTED = 10  # tokens a side kept of each value


def finish(job: Scanner, packed: Packed, folder: Path, progress: Progress | None) -> None:
    """Write the tables and, last, the manifest."""
    told = None if progress is None else partial(progress, "project")
    sides = SIDES if job.model.gated else ("value",)
    project(job.model, k=PROMOTED, side=sides, out=folder / VALUES, progress=told)
    backend = fast_tokenizer(job.model)
    # What calls on it change in passing is left out, so that the same scan writes the same bytes.
    content = {**json.loads(backend.to_str()), "truncation": None, "padding": None}
    write_whole(folder / TOKENIZER, json.dumps(content, ensure_ascii=False, sort_keys=True))
    remove_shards(folder)  # left where they were merged, and the scan was killed
    write_store(folder, job.state, job.identity, job.sequences, store_facts(job, packed))


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
        ).as_dict(),
        "corpus": {
            "source": packed.source,
            "hash": packed.hash,
            "documents": packed.n_documents,
            "digest": packed.digest,
        },
        "special_token_ids": list(settings.special),
        "bos": job.sequences.bos,
        "rescored_in": "float32" if settings.rescored else None,
        "basis": "folded",
    }


def write_store(
    folder: Path, state: ScanState, identity: Identity, sequences: Sequences, facts: dict[str, Any]
) -> None:
    """The state as finished, the tables and the manifest."""
    save_state(folder / STATE, state, identity, ScanProgress(complete=True))
    write_tables(folder, state, sequences)
    content = {
        **facts,
        "model": identity.model,
        "fingerprint": identity.fingerprint,
        "tokenizer_hash": identity.tokenizer_hash,
        "settings": state.settings.as_dict(),
        "layers": len(state.layers),
        "d_mlp": [len(layer.high) for layer in state.layers],
        "tokens": state.tokens,
        "sequences": state.n_sequences,
        "units": {"done": len(state.done), "total": identity.n_units},
        **({"gated": True} if state.gated else {}),
        "state_header": StateFile(folder / STATE).digest,
    }
    write_manifest(folder, content)
