"""Jacobian lenses as other programs publish them: a torch file of tensors and plain values, read without its pickle's
code ever running.

Source: anthropics/jacobian-lens (``JacobianLens.save``); TransformerLens' ``tools.analysis`` and Neuronpedia's files
have the same fields. J is laid out as ours is: row i for dimension i of what the last block writes, a column for each
dimension of what the block of its layer writes.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor

from ..core.checked_files import array_checksum, check_regular, reading
from ..core.errors import FileError, quoted
from ..core.files import readable, replacing

SUFFIXES = (".pt", ".pth")
ZIP = b"PK\x03\x04"
METADATA = "metadata"
CHECKSUMS = "checksums"  # in a lens of ours, a CRC-32 of each layer's matrix
PICKLE = 1 << 20
"""Bytes of the pickle, at most: it names a few hundred tensors. A library takes one of brackets apart for hours."""


def is_published(path: Path) -> bool:
    """Whether a file is torch's, by its name or its first bytes, and so none of ours."""
    if path.suffix in SUFFIXES:
        return True
    check_regular(path)
    with path.open("rb") as file:
        return file.read(len(ZIP)) == ZIP


def is_plain(matrix: Tensor) -> bool:
    """Whether a tensor is of floating-point numbers that lie in memory, none left out."""
    there = matrix.layout == torch.strided and not matrix.is_nested and not matrix.is_meta
    return there and matrix.is_floating_point()


def check_archive(path: Path) -> None:
    """Raise FileError unless a file is torch's archive of uncompressed entries that match their checksums, which
    ``torch.load`` does not look at."""
    with reading(path):
        try:
            with zipfile.ZipFile(path) as archive:
                entries = archive.infolist()
                packed = [entry.filename for entry in entries if entry.compress_type != zipfile.ZIP_STORED]
                pickles = [entry.file_size for entry in entries if entry.filename.endswith(".pkl")]
                if packed:
                    raise FileError(f"{path}: {quoted(packed[0])} in it is compressed, as no torch file is: not read")
                if max(pickles, default=0) > PICKLE:
                    raise FileError(f"{path}: its description of the tensors is above {PICKLE:,} bytes: not read")
                damaged = archive.testzip()
        except (zipfile.BadZipFile, NotImplementedError):  # the latter for versions and methods that zipfile has not
            raise FileError(f"{path} is truncated or damaged, or no file that torch.save wrote") from None
    if damaged is not None:
        raise FileError(f"{path} is damaged: {quoted(damaged)} in it does not match its checksum")


def matrix_checksum(matrix: Tensor) -> int:
    return array_checksum(matrix.detach().contiguous().view(torch.uint8).numpy())  # bytes: NumPy has no bfloat16


def read_published(path: Path) -> dict[str, Any]:
    """The fields of a published lens: ``J`` (by layer, ``[d_model, d_model]`` in float32), ``d_model``, ``n_prompts``,
    and ``metadata``, which may be empty. Raises FileError for anything else."""
    size = check_regular(path, f"there is no Jacobian lens at {path}")
    check_archive(path)
    with reading(path):
        try:
            found = torch.load(path, map_location="cpu", weights_only=True)
        except UnpicklingError:
            raise FileError(f"{path} holds more than tensors and plain values, which may run code: not read") from None
        except KeyError:  # a byte that is none of a pickle's
            raise FileError(f"{path} is no file of torch's") from None
    fields = found if isinstance(found, dict) else {}
    matrices, width, prompts = (fields.get(name) for name in ("J", "d_model", "n_prompts"))
    if not isinstance(matrices, dict) or not matrices or not isinstance(width, int) or not isinstance(prompts, int):
        names = ", ".join(quoted(name) for name in fields) or "none"
        raise FileError(
            f"{path} is no published Jacobian lens, which has J by layer, d_model and n_prompts: it has {names}"
        )
    for layer, matrix in matrices.items():
        if not isinstance(layer, int) or not isinstance(matrix, Tensor) or not is_plain(matrix):
            raise FileError(f"{path}: J has {quoted(layer)}, which is no layer's number with its matrix")
        if matrix.shape != (width, width):
            raise FileError(
                f"{path}: J of layer {layer} is {list(matrix.shape)}, not [{width}, {width}] as d_model says"
            )
        if sorted(matrix.stride()) != [1, width]:  # one number of the file could stand for a whole matrix
            raise FileError(f"{path}: J of layer {layer} does not lie row by row or column by column")
    if sum(matrix.nbytes for matrix in matrices.values()) > size:
        raise FileError(f"{path}: its matrices overlap, or are larger than the file")
    metadata = fields.get(METADATA)
    checksums = metadata.get(CHECKSUMS, {}) if isinstance(metadata, dict) else {}
    for layer, matrix in matrices.items():
        if not bool(matrix.isfinite().all()):
            raise FileError(f"{path}: J of layer {layer} has numbers that are not finite")
        if checksums and checksums.get(layer) != matrix_checksum(matrix):
            raise FileError(f"{path} is damaged: J of layer {layer} does not match its checksum")
    return {
        "J": {layer: matrices[layer].detach().float() for layer in sorted(matrices)},
        "d_model": width,
        "n_prompts": prompts,
        METADATA: metadata if isinstance(metadata, dict) else {},
    }


def write_published(
    path: Path, matrices: Mapping[int, Tensor], d_model: int, n_prompts: int, metadata: Mapping[str, Any]
) -> None:
    """Write what :func:`read_published` and the other programs read; the file appears whole or not at all."""
    fields = {
        "J": dict(matrices),
        "n_prompts": n_prompts,
        "source_layers": sorted(matrices),
        "d_model": d_model,
        METADATA: {**metadata, CHECKSUMS: {layer: matrix_checksum(matrix) for layer, matrix in matrices.items()}},
    }
    with replacing(path) as temporary:
        torch.save(fields, temporary)
        readable(temporary)
