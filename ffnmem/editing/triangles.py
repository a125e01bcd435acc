"""Sums of outer products of rows with themselves: only the blocks above the diagonal are computed and kept."""

from __future__ import annotations

import torch
from jaxtyping import Float, Float64
from torch import Tensor

BLOCK = 256  # columns of one block: 62% of the square's work at 1,024, 54% at 3,072
CHUNK = 1024  # rows of one product


class TriangleSums:
    """Σ m mᵀ over rows m, added up in float64.

    Products of float32 rows (or of half precision ones, made float32) are float32 over at most CHUNK rows, where the
    device computes float32 in full, and float64 elsewhere. Each entry of the mean is then off by at most γ·mean|mᵢmⱼ|
    with γ = CHUNK·2⁻²⁴/(1 − CHUNK·2⁻²⁴) = 6.1e-5, whatever the number of rows; some 1e-7 in practice.

    Args:
        width: of the rows.
        device: where the sums lie.
        exact: all products in float64.
    """

    def __init__(self, width: int, device: torch.device | str = "cpu", exact: bool = False) -> None:
        self.width = width
        self.exact = exact or not full_float32(torch.device(device))
        self.starts = range(0, width, BLOCK)
        self.blocks = [
            torch.zeros(min(BLOCK, width - start), width - start, dtype=torch.float64, device=device)
            for start in self.starts
        ]

    def add(self, rows: Float[Tensor, "rows width"]) -> None:
        """Add the outer products of these rows with themselves."""
        kind = torch.float64 if self.exact or rows.dtype == torch.float64 else torch.float32
        for first in range(0, len(rows), CHUNK):
            x = rows[first : first + CHUNK].to(kind)
            for start, block in zip(self.starts, self.blocks, strict=True):
                block += x[:, start : start + BLOCK].T @ x[:, start:]

    def is_finite(self) -> bool:
        """Whether every row so far was finite, which the diagonal shows."""
        return all(bool(torch.diagonal(block).isfinite().all()) for block in self.blocks)

    def packed(self) -> Float64[Tensor, " triangle"]:
        """The upper triangle, row by row, in a tensor of its own on the CPU."""
        return torch.cat([block[upper(block)] for block in self.blocks]).cpu()

    def load(self, packed: Float[Tensor, " triangle"]) -> None:
        """Go on from a triangle."""
        taken = 0
        for block in self.blocks:
            mask = upper(block)
            count = int(mask.sum())
            block[mask] = packed[taken : taken + count].to(block)
            taken += count


def upper(block: Float[Tensor, "rows columns"]) -> Tensor:
    """True on and above the diagonal of a block whose first column is that of its first row."""
    return torch.ones(block.shape, dtype=torch.bool, device=block.device).triu()


def length_of(width: int) -> int:
    """The entries of a triangle."""
    return width * (width + 1) // 2


def square(packed: Float[Tensor, " triangle"], width: int) -> Float64[Tensor, "width width"]:
    """The whole symmetric matrix of a triangle, in float64."""
    sums = TriangleSums(width)
    sums.load(packed)
    matrix = torch.zeros(width, width, dtype=torch.float64)
    for start, block in zip(sums.starts, sums.blocks, strict=True):
        matrix[start : start + BLOCK, start:] = block.triu()
        matrix[start:, start : start + BLOCK] = block.triu().T
        corner = block[:, : len(block)]
        matrix[start : start + BLOCK, start : start + BLOCK] = corner.triu() + corner.triu(1).T
    return matrix


def diagonal(packed: Float[Tensor, " triangle"], width: int) -> Float64[Tensor, " width"]:
    """The diagonal of a triangle, in float64."""
    rows = torch.arange(width)
    return packed[rows * width - rows * (rows - 1) // 2].double()


def full_float32(device: torch.device) -> bool:
    """Whether a product of float32 matrices is one: TF32 and bfloat16, which may be switched on, drop 2⁻¹²."""
    x = torch.full((64, 64), 1 + 2.0**-12, device=device)
    return bool(((x @ x).double() / 64 - (1 + 2.0**-12) ** 2).abs().max() < 1e-5)
