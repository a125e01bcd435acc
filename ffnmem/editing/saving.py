"""Edits as files: their factors as safetensors, everything else as one JSON header, each part with its checksum."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from .._version import __version__
from ..checked_files import Form, HeadedTensors, header_entry
from ..errors import FfnmemError, FileError, listed
from ..facts import Fact
from ..files import check_destination, user_path, write_whole
from ..plain_values import plain_value
from ..provenance import Provenance
from ..schemas import anything, fields, flag, items, maybe, one_of, row, rule, table, text, together, word
from .edit_record import EditRecord, LayerChange, Record

KIND, SCHEMA = "edit", 1
FACTORS = ("left", "right")
PROVENANCE = ("model", "fingerprint", "dtype", "device", "prepend_bos", "version")
COLUMN = together(
    fields({"kind": one_of("i", "f", "b", "O"), "values": items(anything)}),
    rule(lambda column: all(KINDS[column["kind"]](value) for value in column["values"]), "values of their kind"),
)
KINDS: Mapping[str, Callable[[Any], bool]] = {
    "i": lambda value: isinstance(value, int) and abs(value) < 1 << 63,
    "f": lambda value: value is None or isinstance(value, int | float) or value in ("inf", "-inf"),
    "b": lambda value: isinstance(value, bool),
    "O": lambda value: value is None or isinstance(value, str | int | float | list),
}
FORM = Form(
    KIND,
    SCHEMA,
    fields(
        {
            "method": text(),
            "fingerprint": word,
            "facts": items(table(text(), anything)),
            "targets": items(text()),
            "settings": table(text(), anything),
            "numbers": together(
                table(text(), COLUMN),
                rule(lambda n: len({len(column["values"]) for column in n.values()}) < 2, "columns of one length"),
            ),
            "provenance": fields(
                {
                    **{name: text() for name in ("model", "fingerprint", "dtype", "device", "version")},
                    "prepend_bos": maybe(flag),
                    "settings": items(row(text(), anything)),
                }
            ),
            "under": items(word),
            "parts": items(word, least=1),
            "checksums": table(text(r"\d{1,9}\.(left|right)", "a layer and the name of a factor"), anything),
        },
        {"warnings": items(text())},  # of which earlier files have none
    ),
    "edit: edit.save and ffnmem edit -o write one",
)


def save_edit(edit: EditRecord, path: str | Path) -> Path:
    """Write an edit; the file appears whole or not at all.

    Args:
        edit: which.
        path: of the file, ``eiffel.safetensors``.

    Returns: The path.

    Raises: FileError: it cannot be written. InputError: numbers or provenance that no file can hold.
    """
    from safetensors.torch import save

    target = check_destination(path)
    tensors = {f"{c.layer}.{name}": getattr(c, name) for c in edit.changes for name in FACTORS}
    header = {
        "kind": KIND,
        "schema": SCHEMA,
        "ffnmem": __version__,
        "method": edit.method,
        "fingerprint": edit.fingerprint,
        "facts": [fact.to_dict() for fact in edit.facts],
        "targets": list(edit.targets),
        "settings": edit.settings,
        "numbers": columns_of(edit.numbers),
        "provenance": provenance_of(edit.provenance),
        "under": list(edit.under),
        "parts": list(edit.parts),
        "warnings": list(edit.warnings),
        "checksums": {name: checksum(tensor.numpy()) for name, tensor in tensors.items()},
    }
    write_whole(target, save(tensors, header_entry(header, allow_nan=False, ensure_ascii=False)))
    return target


def load_edit(path: str | Path, kind: type[Record]) -> Record:
    """The edit in a file that :func:`save_edit` wrote, to the last bit.

    Args:
        path: of the file.
        kind: what to make of it.

    Raises: FileError: no such file, another kind of file, one of a newer ffnmem, or a damaged one.
    """
    place = user_path(path)
    file = HeadedTensors(place, FORM, f"there is no file {path}: edit.save and ffnmem edit -o write one", checksum)
    header = file.header
    layers = sorted({int(name.partition(".")[0]) for name in header["checksums"]})
    if set(file.shapes) != {f"{layer}.{name}" for layer in layers for name in FACTORS}:
        raise FileError(f"{path} is damaged: each layer has {' and '.join(FACTORS)}, not {listed(sorted(file.shapes))}")
    changed = [{name: file.array(f"{layer}.{name}") for name in FACTORS} for layer in layers]
    provenance = {name: header["provenance"][name] for name in PROVENANCE}
    try:
        edit = kind(
            changes=tuple(
                LayerChange(layer, *(torch.from_numpy(factors[name]) for name in FACTORS))
                for layer, factors in zip(layers, changed, strict=True)
            ),
            fingerprint=header["fingerprint"],
            method=header["method"],
            facts=tuple(Fact.from_dict(record) for record in header["facts"]),
            targets=tuple(header["targets"]),
            settings=header["settings"],
            numbers=frame_of(header["numbers"]),
            provenance=Provenance(**provenance, settings=settings_of(header["provenance"])),
            under=tuple(header["under"]),
            parts=tuple(header["parts"]),
            warnings=tuple(header.get("warnings", ())),
        )
    except FfnmemError as error:
        raise FileError(f"{path} is no edit that can be read: {error}") from None
    if len(edit.parts) == 1 and edit.parts != (edit.digest,):
        raise FileError(f"{path} is damaged: its factors are not those of edit {edit.parts[0]}")
    return edit


def checksum(array: np.ndarray) -> int:
    """Of a factor's type, shape and bytes: a damaged header may give the same bytes another shape."""
    name = f"torch.{array.dtype} {list(array.shape)}".encode()
    return zlib.crc32(np.ascontiguousarray(array).data, zlib.crc32(name))


def columns_of(frame: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """A table as JSON holds it: by column its kind and its values, missing ones as null, infinite ones as text."""
    return {
        str(name): {
            "kind": column.dtype.kind if column.dtype.kind in "ifb" else "O",
            "values": [None if missing(value) else plain_value(value, f"numbers.{name}") for value in column.tolist()],
        }
        for name, column in frame.items()
    }


def frame_of(columns: dict[str, dict[str, Any]]) -> pd.DataFrame:
    """The table that :func:`columns_of` took apart."""
    kinds = {"i": "int64", "f": "float64", "b": "bool"}
    found = {}
    for name, column in columns.items():
        values, kind = column["values"], kinds.get(column["kind"])
        if kind == "float64":
            values = [math.nan if value is None else float(value) for value in values]
        found[name] = pd.Series(values, dtype=kind) if kind else pd.Series(values)
    return pd.DataFrame(found)


def missing(value: Any) -> bool:
    return value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value))


def provenance_of(provenance: Provenance) -> dict[str, Any]:
    names = ("model", "fingerprint", "dtype", "device", "prepend_bos", "version")
    settings = [[name, plain_value(value, f"provenance.{name}")] for name, value in provenance.settings]
    return {**{name: getattr(provenance, name) for name in names}, "settings": settings}


def settings_of(provenance: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple((str(name), value) for name, value in provenance["settings"])
