"""Second moments on disk: one safetensors file, a packed triangle a layer, each with a checksum."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._version import __version__
from ..checked_files import Form, HeadedTensors, array_checksum, header_entry
from ..errors import FileError, check_choice
from ..files import check_destination, readable, replacing, user_path
from ..schemas import (
    anything,
    ascending,
    fields,
    flag,
    items,
    maybe,
    number,
    row,
    rule,
    table,
    text,
    together,
    whole,
    word,
)
from .moments import Part, SecondMoment
from .triangles import length_of

SCHEMA = 1
KIND = "ffnmem second moment"
DTYPES = {"float64": torch.float64, "float32": torch.float32}
FORM = Form(
    KIND,
    SCHEMA,
    together(
        fields(
            {
                "model": text(),
                "fingerprint": word,
                "tokenizer_hash": word,
                "layers": ascending(whole()),
                "widths": items(whole(1, 1 << 24), least=1),
                "count": whole(1),
                "context": whole(1),
                "prepend_bos": flag,
                "parts": items(row(word, text(), items(row(whole(), whole(1)))), least=1),
                "provenance": table(text(), anything),
            },
            {
                "conditions": table(text(r"\d{1,9}", "the number of a layer"), maybe(number(0))),
                "progress": fields({"batches": whole(), "batch_tokens": whole(1)}),
            },
        ),
        rule(lambda header: len(header["widths"]) == len(header["layers"]), "a header with a width for each layer"),
        rule(
            # Of a merge, the first part's; of a checkpoint, what is counted so far.
            lambda header: header["provenance"].get("tokens", header["count"]) == header["count"],
            "a header whose count is that of its provenance",
        ),
    ),
    "second moment: make one with second_moment",
)
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
        "checksums": {name: array_checksum(array) for name, array in arrays.items()},
        **more,
    }
    with replacing(path) as temporary:
        try:
            save_file(arrays, temporary, header_entry(header, sort_keys=True))
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
    header = dict(sums.file.header)
    values: dict[str, Any] = {name: tuple(v) if isinstance(v := header[name], list) else v for name in FIELDS}
    parts = tuple(Part(h, s, tuple((a, b) for a, b in ranges)) for h, s, ranges in header["parts"])
    conditions = {int(k): float("inf") if v is None else float(v) for k, v in header.get("conditions", {}).items()}
    moment = SecondMoment(**values, parts=parts, provenance=header["provenance"], sums=sums, _conditions=conditions)
    return moment, header


class FileSums(Mapping[int, Tensor]):
    """The triangles of a file, each read and checked when it is asked for."""

    def __init__(self, path: Path) -> None:
        self.file = HeadedTensors(path, FORM, f"there is no second moment at {path}: make one with second_moment")
        layers, widths = self.file.header["layers"], self.file.header["widths"]
        self.widths: dict[int, int] = dict(zip(layers, widths, strict=True))
        kind = next(iter(self.file.shapes.values()), ("float64",))[0]
        dtype = kind if kind in DTYPES else "float64"
        self.file.check_shapes({str(layer): (dtype, (length_of(width),)) for layer, width in self.widths.items()})

    def __getitem__(self, layer: int) -> Tensor:
        if layer not in self.widths:
            raise KeyError(layer)
        array = self.file.array(str(layer))
        if not np.isfinite(array).all():
            raise FileError(f"{self.file.path} is damaged: layer {layer} holds NaN or infinite values")
        return torch.from_numpy(array)

    def __iter__(self) -> Iterator[int]:
        return iter(self.widths)

    def __len__(self) -> int:
        return len(self.widths)
