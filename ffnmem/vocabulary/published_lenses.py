"""Jacobian lenses as other programs publish them: a torch file of tensors and plain values, read without its pickle's
code ever running.

Source: anthropics/jacobian-lens (``JacobianLens.save``); TransformerLens' ``tools.analysis`` and Neuronpedia's files
have the same fields. J is laid out as ours is: row i for dimension i of what the last block writes, a column for each
dimension of what the block of its layer writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor

from ..core.checked_files import check_regular, reading
from ..core.errors import FileError, quoted
from ..core.files import readable, replacing

SUFFIXES = (".pt", ".pth")
ZIP = b"PK\x03\x04"
METADATA = "metadata"


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


def read_published(path: Path) -> dict[str, Any]:
    """The fields of a published lens: ``J`` (by layer, ``[d_model, d_model]`` in float32), ``d_model``, ``n_prompts``,
    and ``metadata``, which may be empty. Raises FileError for anything else."""
    check_regular(path, f"there is no Jacobian lens at {path}")
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
        if not bool(matrix.float().isfinite().all()):
            raise FileError(f"{path}: J of layer {layer} has numbers that are not finite")
    metadata = fields.get(METADATA)
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
        METADATA: dict(metadata),
    }
    with replacing(path) as temporary:
        torch.save(fields, temporary)
        readable(temporary)
