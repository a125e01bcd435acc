"""Ways to score a block of vectors against the vocabulary, each with a bound on how far its scores may be off."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from ..errors import InputError, check_choice
from .bounds import (
    TINY_FLOAT64,
    UNIT_BFLOAT16,
    UNIT_FLOAT32,
    UNIT_FLOAT64,
    UNIT_LOOSE,
    UNIT_TF32,
    Arithmetic,
    Largest,
    product_error,
)
from .kernels import norms

PATHS = ("auto", "bfloat16", "float32")
MANY = 512  # rows: fewer are scored before a probe would have paid
PROBE = (256, 2048)
SLICE = 4096  # embeddings whose rounding is measured at once


@dataclass(frozen=True, eq=False)
class Product:
    """One way of scoring: the embeddings in some numeric type, and how its arithmetic rounds."""

    matrix: Float[Tensor, "vocab d_model"]
    arithmetic: Arithmetic
    largest: Largest

    @property
    def name(self) -> str:
        return str(self.matrix.dtype).removeprefix("torch.")

    def scores(
        self, vectors: Float[Tensor, "rows d_model"], out: Float[Tensor, "rows vocab"]
    ) -> tuple[Float[Tensor, "rows vocab"], Float64[np.ndarray, " rows"]]:
        """The scores, in ``out``, and each row's bound on \\|score − canonical score\\| before it was stored."""
        given = vectors.to(self.matrix.dtype)
        torch.mm(given, self.matrix.T, out=out)
        exact = row_norms(vectors)
        same = given.dtype == vectors.dtype
        rounded = exact if same else row_norms(given)
        lost = np.zeros_like(exact) if same else row_norms(residual(vectors, given))
        error = product_error(self.arithmetic, vectors.shape[1], exact, rounded, lost, self.largest)
        return out, error


def row_norms(rows: Float[Tensor, "rows d_model"]) -> Float64[np.ndarray, " rows"]:
    """Euclidean norms in float64."""
    wide = rows.cpu() if rows.dtype in (torch.float32, torch.float64) else rows.cpu().float()
    found = np.empty(len(rows))
    norms(wide.contiguous().numpy(), 0, len(rows), found)
    return found


def residual(
    rows: Float[Tensor, "rows d_model"], rounded: Float[Tensor, "rows d_model"]
) -> Float[Tensor, "rows d_model"]:
    """v − v̂, exact: a number and its rounding are too near for their difference to be rounded (Sterbenz 1974)."""
    return rows - rounded.to(rows.dtype)


def native(tokens: Float[Tensor, "vocab d_model"]) -> Product:
    """The product in the embeddings' own type, float32 or float64."""
    largest = largest_norm(tokens)
    return Product(tokens, native_arithmetic(tokens), Largest(largest, largest, 0.0))


def largest_norm(rows: Float[Tensor, "rows d_model"]) -> float:
    """max ‖e‖, or slightly more: in float32 where its range allows, which is ten times as fast as in float64."""
    if rows.dtype == torch.float32:
        quick = float(torch.linalg.vector_norm(rows, dim=1).max())
        if 1e-12 < quick < 1e15:  # squares that underflow are too small to matter, and none overflows
            return quick * (1 + rows.shape[1] * 2.0**-23)
    return float(row_norms(rows).max())


def native_arithmetic(tokens: Float[Tensor, "vocab d_model"]) -> Arithmetic:
    """float32 is what its name says on a CPU, unless torch was told to be quick; on accelerators one cannot be sure."""
    if tokens.dtype == torch.float64:
        return Arithmetic(UNIT_FLOAT64, result=UNIT_FLOAT64, tiny=TINY_FLOAT64)
    if tokens.device.type != "cpu":
        return Arithmetic(UNIT_LOOSE, hidden=UNIT_TF32)
    strict = torch.get_float32_matmul_precision() == "highest"
    backend = getattr(torch.backends.mkldnn, "matmul", None)  # newer torch has a second switch
    strict = strict and getattr(backend, "fp32_precision", "none") in ("none", "ieee")
    return Arithmetic(UNIT_FLOAT32) if strict else Arithmetic(UNIT_LOOSE, hidden=UNIT_BFLOAT16)


def bfloat16(tokens: Float[Tensor, "vocab d_model"], largest: float) -> Product:
    """The product of factors rounded to bfloat16, on a CPU: sums in float32, stored in bfloat16."""
    rounded = tokens.to(torch.bfloat16)
    slices = [slice(start, start + SLICE) for start in range(0, len(tokens), SLICE)]
    widest = max(largest_norm(rounded[part].to(tokens.dtype)) for part in slices)
    lost = max(largest_norm(residual(tokens[part], rounded[part])) for part in slices)
    wide = tokens.dtype == torch.float64
    return Product(
        rounded,
        Arithmetic(UNIT_LOOSE, output=UNIT_BFLOAT16, result=UNIT_FLOAT64 if wide else UNIT_FLOAT32),
        Largest(largest, widest, lost),
    )


def choose(tokens: Float[Tensor, "vocab d_model"], path: str, rows: int) -> list[Product]:
    """The products to try, in turn: what the first cannot decide goes to the next.

    Args:
        tokens: the embeddings, float32 or float64. rows: how many vectors will be scored.
        path: ``"bfloat16"``, ``"float32"`` (the model's own type), or ``"auto"``: bfloat16 where a probe on this
            machine finds it faster. On accelerators float32 leaves little to gain and is what ``"auto"`` takes.

    Raises:
        InputError: bfloat16 asked for where its rounding is not known, or found to be worse than it should be.
    """
    check_choice("candidates", path, PATHS)
    own = native(tokens)
    cpu = tokens.device.type == "cpu"
    if path == "bfloat16" and not cpu:
        raise InputError(f"candidates='bfloat16' is for the CPU; on {tokens.device} float32 is as good: use 'float32'")
    if path == "float32" or not cpu or (path == "auto" and (rows < MANY or not bfloat16_is_faster(tokens))):
        return [own]
    narrow = bfloat16(tokens, own.largest.exact)
    if keeps_its_bound(narrow, tokens):
        return [narrow, own]
    if path == "bfloat16":
        raise InputError("candidates='bfloat16': this machine's bfloat16 product rounds its sums; use 'float32'")
    return [own]


def bfloat16_is_faster(tokens: Float[Tensor, "vocab d_model"]) -> bool:
    """Whether a small product takes less time in bfloat16, conversions not counted."""

    def seconds(dtype: torch.dtype) -> float:
        a, b = tokens[: PROBE[0]].to(dtype), tokens[: PROBE[1]].to(dtype)
        times = []
        for _ in range(3):
            began = time.perf_counter()
            torch.mm(a, b.T)
            times.append(time.perf_counter() - began)
        return min(times[1:])  # the first one sets things up

    return seconds(torch.bfloat16) < 0.8 * seconds(tokens.dtype)


def keeps_its_bound(product: Product, tokens: Float[Tensor, "vocab d_model"]) -> bool:
    """Whether a small sample of a product's scores is as near the exact ones as it must be.

    The bound rests on sums in float32; a product that rounds its sums to bfloat16 shows here.
    """
    vectors, some = tokens[:64], product.matrix[:1024]
    sample = Product(some, product.arithmetic, product.largest)
    found, error = sample.scores(vectors, torch.empty(len(vectors), len(some), dtype=some.dtype))
    found = found.double()
    exact = vectors.double() @ tokens[:1024].double().T
    allowed = torch.from_numpy(error).unsqueeze(-1) + product.arithmetic.output * exact.abs()
    return bool(((found - exact).abs() <= allowed).all())
