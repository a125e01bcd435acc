"""Edits as files: their factors as safetensors, everything else as one JSON header, each part with its checksum."""

from __future__ import annotations

import json
import math
import zlib
from pathlib import Path
from typing import Any

import pandas as pd
from torch import Tensor

from .._version import __version__
from ..errors import FfnmemError, FileError
from ..facts import Fact
from ..files import check_destination, write_whole
from ..models.loading import first_line
from ..provenance import Provenance
from .edit import Edit, LayerChange
from .showing import plain

KIND, SCHEMA = "edit", 1
FACTORS = ("left", "right")


def save_edit(edit: Edit, path: str | Path) -> Path:
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
        "checksums": {name: checksum(tensor) for name, tensor in tensors.items()},
    }
    text = json.dumps(header, sort_keys=False, allow_nan=False, ensure_ascii=False)
    # One entry of metadata: several would be written in an order that changes from run to run.
    write_whole(target, save(tensors, {"ffnmem": f"{crc(text.encode()):08x} {text}"}))
    return target


def load_edit(path: str | Path) -> Edit:
    """The edit in a file that :func:`save_edit` wrote, to the last bit.

    Args:
        path: of the file.

    Raises: FileError: no such file, another kind of file, one of a newer ffnmem, or a damaged one.
    """
    place = Path(path).expanduser()
    if not place.is_file():
        raise FileError(f"there is no file {path}: edit.save and ffnmem edit -o write one")
    header, tensors = read(place)
    try:
        damaged = [name for name, tensor in tensors.items() if checksum(tensor) != header["checksums"].get(name)]
        layers = sorted({int(name.partition(".")[0]) for name in header["checksums"]})
        if damaged or set(header["checksums"]) != set(tensors):
            raise FileError(f"{path} is damaged: its factors do not match their checksums")
        return Edit(
            changes=tuple(LayerChange(i, *(tensors[f"{i}.{name}"] for name in FACTORS)) for i in layers),
            fingerprint=header["fingerprint"],
            method=header["method"],
            facts=tuple(Fact.from_dict(record) for record in header["facts"]),
            targets=tuple(header["targets"]),
            settings=header["settings"],
            numbers=frame_of(header["numbers"]),
            provenance=Provenance(**{**header["provenance"], "settings": settings_of(header["provenance"])}),
            under=tuple(header["under"]),
            parts=tuple(header["parts"]),
            warnings=tuple(str(line) for line in header.get("warnings", ())),  # earlier files have none
        )
    except FileError:
        raise
    except (FfnmemError, KeyError, TypeError, ValueError) as error:
        raise FileError(f"{path} is no edit that can be read ({type(error).__name__}: {first_line(error)})") from None


def read(place: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The checked header and the tensors of a file; raises FileError."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(place, "pt") as file:
            metadata = file.metadata() or {}
            header = header_of(place, metadata.get("ffnmem", ""))
            return header, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
    except (OSError, SafetensorError) as error:
        if isinstance(error, FfnmemError):
            raise
        raise FileError(f"{place} is truncated, damaged or no edit: {first_line(error)}") from None


def header_of(place: Path, entry: str) -> dict[str, Any]:
    checked, _, text = entry.partition(" ")
    if checked != f"{crc(text.encode()):08x}" or not text:
        raise FileError(f"{place} is no edit, or its header is damaged: edit.save and ffnmem edit -o write one")
    header: dict[str, Any] = json.loads(text)
    if header.get("kind") != KIND:
        raise FileError(f"{place} is no edit but a {header.get('kind')!r}")
    if header["schema"] > SCHEMA:
        raise FileError(f"{place} has schema {header['schema']}, this ffnmem reads up to {SCHEMA}: update ffnmem")
    return header


def crc(data: bytes) -> int:
    return zlib.crc32(data)


def checksum(tensor: Tensor) -> int:
    """Of a tensor's type, shape and bytes: a damaged header may give the same bytes another shape."""
    name = f"{tensor.dtype} {list(tensor.shape)}".encode()
    return zlib.crc32(tensor.contiguous().numpy().tobytes(), crc(name))


def columns_of(frame: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """A table as JSON holds it: by column its kind and its values, missing ones as null, infinite ones as text."""
    return {
        str(name): {
            "kind": column.dtype.kind if column.dtype.kind in "ifb" else "O",
            "values": [None if missing(value) else plain(value, f"numbers.{name}") for value in column.tolist()],
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
    settings = [[name, plain(value, f"provenance.{name}")] for name, value in provenance.settings]
    return {**{name: getattr(provenance, name) for name in names}, "settings": settings}


def settings_of(provenance: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple((str(name), value) for name, value in provenance["settings"])
