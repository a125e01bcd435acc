"""What :func:`ffnmem.polysemanticity` found of a whole store, kept beside it: a table, and each neuron's examples."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Int64

from ..core.checked_files import parsed, reading, seal, sealable
from ..core.errors import FileError
from ..core.files import replacing
from ..core.schemas import Misfit, anything, fields, table, text, within
from ..scanning.store import Store
from ..scanning.tables import GROUP, NeuronTable
from .inputs import CUT, FLOOR, RIDGE, SAMPLED, TOP, Firing
from .verdicts import Rule

VERSION = 1
LISTS = ("places", "strengths", "meaning")
KEY = b"ffnmem"
HEADER = fields({"provenance": table(text(), anything)})


def settings_key(store: Store, *, seed: int, draws: int, budget: int | None, rule: Rule, sign: str) -> dict[str, Any]:
    """What a result depends on; one of another key is not read back."""
    return {
        **store_key(store),
        "sign": sign,
        "seed": seed,
        "draws": draws,
        "budget": budget,
        "rule": {"above": float(rule.above), "examples": int(rule.examples), "alpha": float(rule.alpha)},
    }


def store_key(store: Store) -> dict[str, Any]:
    """The part of it that is the store's: what sequence and position numbers mean, too."""
    return {
        "version": VERSION,
        "constants": [CUT, RIDGE, FLOOR, TOP, SAMPLED],
        "fingerprint": store.fingerprint,
        "corpus": store.corpus.hash,
        "scan": store.manifest["settings"],
        "tokens": store.n_tokens,
    }


def file_of(store: Store, sign: str) -> Path:
    return store.folder / f"polysemanticity-{sign}.parquet"


def write_saved(
    store: Store,
    sign: str,
    key: Mapping[str, Any],
    table: pd.DataFrame,
    found: Sequence[Firing],
    labels: Sequence[Int64[np.ndarray, "n most"]],
) -> None:
    """Write the table and every neuron's examples, where the store's folder can be written to; else do nothing."""
    if not os.access(store.folder, os.W_OK):
        return
    rows = pa.Table.from_pandas(table, preserve_index=False)
    lists: dict[str, list[np.ndarray]] = {name: [] for name in LISTS}
    for firing, own in zip(found, labels, strict=True):
        for places, strengths, meaning in zip(firing.places, firing.strengths, own, strict=True):
            there = places >= 0
            lists["places"].append(places[there])
            lists["strengths"].append(strengths[there].astype(np.float32))
            lists["meaning"].append(meaning[there].astype(np.int16))
    for name, values in lists.items():
        rows = rows.append_column(name, pa.array(values))
    text = json.dumps({**key, "provenance": table.attrs["provenance"]}, sort_keys=True)
    rows = rows.replace_schema_metadata(sealable({KEY: text.encode()}))
    with replacing(file_of(store, sign)) as temporary:
        pq.write_table(rows, temporary, row_group_size=GROUP, write_page_checksum=True)
        seal(temporary)


def opened(store: Store, sign: str, key: Mapping[str, Any] | None) -> tuple[NeuronTable, dict[str, Any]] | None:
    """The file of an earlier call of the same key (None: of any settings, but of this store), and its header."""
    if not file_of(store, sign).is_file():
        return None
    path = file_of(store, sign)
    try:
        table = store.opened(path.name)
        header = parsed(path, (table.file.schema_arrow.metadata or {}).get(KEY, b"{}"))
        within("header", HEADER, header)
        table.check_rows(store.manifest["d_mlp"])
    except (FileError, Misfit):  # cut short or damaged by another program: it can be measured again
        return None
    wanted = json.loads(json.dumps(store_key(store) if key is None else key))
    return (table, header) if all(header.get(name) == value for name, value in wanted.items()) else None


def is_kept(store: Store, sign: str, settings: Mapping[str, Any]) -> bool:
    """Whether a table with these settings (some or all of :func:`settings_key`) is there."""
    return opened(store, sign, {**store_key(store), **settings}) is not None


def read_saved(store: Store, sign: str, key: Mapping[str, Any]) -> pd.DataFrame | None:
    """The table of an earlier call of the same key, if there is one and it is whole."""
    found = opened(store, sign, key)
    if found is None:
        return None
    table, header = found
    names = [name for name in table.file.schema_arrow.names if name not in LISTS]
    try:
        with reading(table.path):
            frame = table.file.read(columns=names).to_pandas()
    except FileError:  # damaged behind its header
        return None
    frame.attrs = {"provenance": header["provenance"]}
    return frame


def read_one(
    store: Store, layer: int, neuron: int, sign: str, settings: Mapping[str, Any] | None = None
) -> dict[str, Any] | None:
    """One neuron's row with its lists, and the table's provenance; None if none is kept that can be read.

    Args:
        settings: names and values of :func:`settings_key` that the table must have; default: whatever is kept.
    """
    found = opened(store, sign, {**store_key(store), **settings} if settings else None)
    if found is None:
        return None
    try:
        rows = found[0].table(layer, neuron).to_pylist()
    except FileError:  # damaged behind its header
        return None
    return {**rows[0], "provenance": found[1]["provenance"]} if rows else None
