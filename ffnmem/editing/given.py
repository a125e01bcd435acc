"""Second moments that were made elsewhere: a matrix, or the file that a published program keeps of a layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from ..core.checked_files import check_regular, reading
from ..core.errors import FfnmemError, FileError, InputError, check_count, check_kind
from ..core.files import user_path

LOPSIDED = 1e-4  # of the largest entry: sums in float32 of many tokens are off by that
MOST = 1 << 53  # tokens, which float64 still tells apart
SUMS, COUNT = "mom2.mom2", "mom2.count"
MADE_BY = "layer_stats of the programs of ROME, MEMIT and those after them writes one"


def read_sums(
    given: Any, layer: int, width: int, count: int | None
) -> tuple[Float64[Tensor, "width width"], int, torch.dtype]:
    """Σ m mᵀ of a layer, the number of tokens, and the type in which it was given.

    Args:
        given: C = E[m mᵀ], or a file of statistics. layer: of which layer. width: its d_mlp.
        count: of tokens; of a file its own, where None.

    Raises: InputError: a matrix that is none of the layer's coefficients. FileError: a file that has none.
    """
    if isinstance(given, str | Path):
        sums, seen = read_statistics(given)
        if count is not None and check_count("count", count, most=MOST) != seen:
            raise InputError(f"{given} is of {seen:,} tokens, not of {count:,}: leave count out")
        try:
            return symmetrise(sums, layer, width), seen, sums.dtype
        except FfnmemError as error:
            raise FileError(f"{given} does not fit: {error}") from None
    check_kind(f"the second moment of layer {layer}", given, (Tensor, np.ndarray), "a matrix or a file of statistics")
    try:
        matrix = torch.as_tensor(given).detach().cpu()
    except (TypeError, ValueError):  # objects, texts, numbers in another machine's order
        matrix = torch.zeros(0, dtype=torch.bool)
    if matrix.dtype == torch.bool or matrix.is_complex():
        raise InputError(f"the second moment of layer {layer} is of type {given.dtype}: give real numbers, float64")
    if count is None:
        raise InputError(f"count is missing: say of how many tokens the matrix of layer {layer} is the mean")
    return symmetrise(matrix, layer, width) * check_count("count", count, most=MOST), count, matrix.dtype


def symmetrise(matrix: Tensor, layer: int, width: int) -> Float64[Tensor, "width width"]:
    """A matrix in float64, with what rounding left of its asymmetry taken out. Raises InputError."""
    name = f"the second moment of layer {layer}"
    if list(matrix.shape) != [width, width]:
        raise InputError(f"{name} is {list(matrix.shape)}, and the layer has {width} neurons: give [{width}, {width}]")
    found = matrix.double()
    if not bool(found.isfinite().all()):
        raise InputError(f"{name} holds NaN or infinite values")
    if (least := float(torch.diagonal(found).min())) < 0:
        raise InputError(f"{name} has {least:.3g} on its diagonal, where mean squares stand: none can be below 0")
    off = float((found - found.T).abs().max())
    if off > LOPSIDED * float(found.abs().max()):
        raise InputError(f"{name} is not symmetric: entries differ from their mirror images by up to {off:.3g}")
    return (found + found.T) / 2


def read_statistics(file: str | Path) -> tuple[Tensor, int]:
    """Σ m mᵀ, as it stands there, and the count of tokens in the file of a published program's statistics.

    Raises: FileError: no such file, or another kind of file.

    Source: ``SecondMoment`` and ``CombinedStat`` in util/runningstats.py of kmeng01/rome, the latter with ``mom2``.
    """
    path = user_path(file)
    check_regular(path, f"there is no file {file}: {MADE_BY}")
    with reading(path, MADE_BY), path.open("rb") as opened:
        stored = np.load(opened, allow_pickle=False)  # of one array alone, that array
        if isinstance(stored, np.ndarray) or not {SUMS, COUNT} <= set(stored):
            raise FileError(f"{path} is no file of second moments, which has {SUMS} and {COUNT}: {MADE_BY}")
        sums, count = torch.from_numpy(stored[SUMS]), int(stored[COUNT])
    if count < 1 or not sums.is_floating_point():
        raise FileError(f"{path} is damaged: {SUMS} holds no numbers, or {COUNT} is no number of tokens")
    return sums, count
