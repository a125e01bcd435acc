"""Second moments on disk: one safetensors file, a packed triangle a layer, each with a checksum."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .._version import __version__
from ..errors import FileError, check_choice, quoted
from ..files import check_destination, check_ordinary, readable, replacing, user_path
from ..scanning.state_file import checksum
from .moments import Part, SecondMoment
from .triangles import length_of

SCHEMA = 1
KIND = "ffnmem second moment"
DTYPES = {"float64": torch.float64, "float32": torch.float32}
FIELDS = ("model", "fingerprint", "tokenizer_hash", "layers", "widths", "count", "context", "prepend_bos")


def save(moment: SecondMoment, path: str | Path, dtype: str = "float64") -> Path:
    """See :meth:`SecondMoment.save`."""
    check_choice("dtype", dtype, DTYPES)
    target = check_destination(path)
    conditions = {str(layer): moment.condition(layer) for layer in moment.layers}
    write(target, moment, dtype, {"conditions": {k: v if v < float("inf") else None for k, v in conditions.items()}})
    return target


def write(path: Path, moment: SecondMoment, dtype: str, more: Mapping[str, Any]) -> None:
    """The file, with more in its header. Raises FileError."""
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    arrays = {str(layer): moment.sums[layer].to(DTYPES[dtype]).numpy() for layer in moment.layers}
    header = {
        "kind": KIND,
        "schema": SCHEMA,
        "ffnmem": __version__,
        **{name: getattr(moment, name) for name in FIELDS},
        "parts": [[part.corpus_hash, part.source, part.ranges] for part in moment.parts],
        "provenance": dict(moment.provenance),
        "checksums": {name: checksum(array) for name, array in arrays.items()},
        **more,
    }
    text = json.dumps(header, sort_keys=True)
    with replacing(path) as temporary:
        try:
            # One entry of metadata: several would be written in an order that changes from run to run.
            save_file(arrays, temporary, {"ffnmem": f"{zlib.crc32(text.encode()):08x} {text}"})
        except SafetensorError as error:
            raise FileError(f"cannot write {path}: {error}") from None
        readable(temporary)


def load(path: str | Path) -> SecondMoment:
    """See :meth:`SecondMoment.load`."""
    moment, header = read(user_path(path))
    if "progress" in header:
        raise FileError(f"{path} is the checkpoint of a second moment that is not finished: run the same call again")
    return moment


def read(path: Path) -> tuple[SecondMoment, dict[str, Any]]:
    """A second moment and the header of its file. Raises FileError."""
    sums = FileSums(path)
    header = sums.header
    try:
        sums.widths = dict(zip(header["layers"], header["widths"], strict=True))
        values: dict[str, Any] = {name: tuple(v) if isinstance(v := header[name], list) else v for name in FIELDS}
        parts = tuple(Part(h, s, tuple((int(a), int(b)) for a, b in ranges)) for h, s, ranges in header["parts"])
        conditions = {int(k): float("inf") if v is None else v for k, v in header.get("conditions", {}).items()}
        moment = SecondMoment(**values, parts=parts, provenance=header["provenance"], sums=sums, _conditions=conditions)
    except (KeyError, TypeError, ValueError) as error:
        raise FileError(f"{path} has a header that cannot be understood: {error}") from None
    return moment, header


class FileSums(Mapping[int, Tensor]):
    """The triangles of a file, each read and checked when it is asked for."""

    def __init__(self, path: Path) -> None:
        from safetensors import SafetensorError, safe_open

        self.path = path
        if path.exists():
            check_ordinary(path)
        try:
            opened: Any = safe_open(path, framework="numpy")
            metadata = opened.metadata() or {}
        except FileNotFoundError:
            raise FileError(f"there is no second moment at {path}: make one with second_moment") from None
        except (OSError, SafetensorError) as error:
            raise FileError(f"{path} is truncated, damaged or no second moment: {error}") from None
        checked, _, text = metadata.get("ffnmem", "").partition(" ")
        if checked != f"{zlib.crc32(text.encode()):08x}":
            raise FileError(f"{path} is no second moment, or its header is damaged")
        header = json.loads(text)
        if header.get("kind") != KIND:
            raise FileError(f"{path} is no second moment but a {quoted(header.get('kind'))}")
        if header["schema"] > SCHEMA:
            raise FileError(
                f"{path} has schema {header['schema']}; this version of ffnmem reads up to {SCHEMA}: "
                "install a newer one"
            )
        self.file, self.header = opened, header
        self.widths: dict[int, int] = {}

    def __getitem__(self, layer: int) -> Tensor:
        from safetensors import SafetensorError

        if layer not in self.widths:
            raise KeyError(layer)
        try:
            array = self.file.get_tensor(str(layer))
        except (OSError, SafetensorError) as error:
            raise FileError(f"{self.path} is damaged: layer {layer} cannot be read ({error})") from None
        if checksum(array) != self.header["checksums"].get(str(layer)) or array.size != length_of(self.widths[layer]):
            raise FileError(f"{self.path} is damaged: layer {layer} does not match its checksum")
        return torch.from_numpy(array)

    def __iter__(self) -> Iterator[int]:
        return iter(self.widths)

    def __len__(self) -> int:
        return len(self.widths)
