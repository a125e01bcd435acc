"""The k highest and lowest of vectors · tokensᵀ, exact by a canonical rule, at about the cost of the bare product."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int, Int64
from torch import Tensor

from ..core.errors import InputError, check_choice
from ..models.norms import at_least_float32
from . import uncompiled

LITTLE = 1 << 22
"""Numbers: NumPy goes through so many in a fraction of the time that importing numba takes."""


def loops_for(numbers: int) -> ModuleType:
    """The inner loops that are sooner done with so many numbers, NumPy's or the compiled ones."""
    if numbers <= LITTLE:
        return uncompiled
    from . import kernels

    return kernels


# How far a matrix product's scores may be off: bounds that hold whatever the order of its sums.
#
# For a sum of n products in arithmetic of unit roundoff u, in any order, with or without fused operations:
# |computed − exact| ≤ γₙ Σ|vᵢeᵢ| ≤ γₙ ‖v‖‖e‖, γₙ = nu/(1 − nu) (Higham 2002, Accuracy and Stability, §3.1 and §4.2).
# Rounding the factors themselves adds |v̂·ê − v·e| ≤ ‖v̂ − v‖‖e‖ + ‖v̂‖‖ê − e‖, whose norms are measured, not assumed.

UNIT_BFLOAT16 = 2.0**-8
UNIT_TF32 = 2.0**-11
UNIT_FLOAT32 = 2.0**-24
UNIT_FLOAT64 = 2.0**-53
UNIT_LOOSE = 2.0**-22
"""For matrix units, which accumulate in float32 but may cut off where float32 would round."""
TINY_FLOAT32 = 2.0**-125
TINY_FLOAT64 = 2.0**-1021
"""More than a factor or a product can lose by underflow, flushed to zero or not."""

Norms = Float64[np.ndarray, " rows"]


@dataclass(frozen=True)
class Largest:
    """Largest norms over the vocabulary: of the embeddings, of the rounded ones, and of the difference."""

    exact: float
    rounded: float
    residual: float


@dataclass(frozen=True)
class Arithmetic:
    """How a product computes.

    Attributes:
        unit: unit roundoff of its sums.
        hidden: unit roundoff that it applies to float32 factors unasked (TF32, or float32 by way of bfloat16).
        output: unit roundoff of a result that is narrower than the sums.
        result: unit roundoff of the canonical score, which is what is compared.
        tiny: what a factor or a product may lose by underflow.
    """

    unit: float
    hidden: float = 0.0
    output: float = 0.0
    result: float = UNIT_FLOAT32
    tiny: float = TINY_FLOAT32


def gamma(n: int, unit: float) -> float:
    """γₙ = nu/(1 − nu); infinite where that means nothing."""
    return n * unit / (1 - n * unit) if n * unit < 0.5 else float("inf")


def product_error(
    arithmetic: Arithmetic, width: int, exact: Norms, rounded: Norms, residual: Norms, largest: Largest
) -> Norms:
    """Bound on |score − canonical score| over all tokens, before the score is stored; one number a row.

    Args:
        arithmetic: of the product. width: d_model.
        exact, rounded, residual: ‖v‖, ‖v̂‖ and ‖v − v̂‖ of each row, v̂ what the product was given.
        largest: the same over the tokens.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        factors = residual * largest.exact + rounded * largest.residual
        hidden = (2 * arithmetic.hidden + arithmetic.hidden**2) * rounded * largest.rounded
        # Sums of factors that were rounded once more may be that much longer.
        sums = gamma(width, arithmetic.unit) * (1 + arithmetic.hidden) ** 2 * rounded * largest.rounded
        canonical = (gamma(width, UNIT_FLOAT64) + 2 * arithmetic.result) * exact * largest.exact
        # What is lost where factors or products are too small for the arithmetic.
        tiny = 2 * width * arithmetic.tiny * (1 + rounded + largest.rounded)
        # The norms and this sum are rounded too, each by far less than a part in a million.
        return (factors + hidden + sums + canonical) * (1 + 1e-6) + tiny


def slack(arithmetic: Arithmetic, error: Norms, extreme: Norms) -> Norms:
    """How far below the k-th stored score a token may lie and still be one of the k best: twice the whole bound.

    Args:
        error: of :func:`product_error`. extreme: the largest \\|stored score\\| of each row.

    If at least k tokens are stored as t or more, k have canonical scores of t − b or more; a token at least that good
    is stored as t − 2b or more.
    """
    return 2 * (error + arithmetic.output / (1 - arithmetic.output) * extreme)


# Which tokens of a block of scores can be among the k best at either end, given how far the scores may be off.

Array = np.ndarray
Slack = Callable[[Float64[Array, " rows"]], Float64[Array, " rows"]]
"""From the largest |score| of each row, how far below the k-th score a token may lie and still count."""

CHUNKS = (64, 16)  # columns whose ends are found first; the larger, the less there is to select from


@dataclass(frozen=True)
class Candidates:
    """Columns that may be among the k best of each row, in order, at its high end and at its low end.

    ``counts`` is −1 where there are more than fit, or where the scores say nothing.
    """

    ids: Int[Array, "rows 2 room"]
    counts: Int64[Array, "rows 2"]


@dataclass(frozen=True)
class SortableBits:
    """Floats as integers that sort as they do; see :func:`ffnmem.vocabulary.kernels.chunk_ends`."""

    integer: torch.dtype
    sign: Any
    rest: Any

    def floats(self, keys: Int[Array, "..."]) -> Float64[Array, "..."]:
        bits = keys ^ ((keys >> self.sign) & self.rest)
        if self.integer == torch.int16:  # bfloat16 is the upper half of a float32
            return (bits.astype(np.int32) << np.int32(16)).view(np.float32).astype(np.float64)
        return bits.view(np.float32 if self.integer == torch.int32 else np.float64).astype(np.float64)

    def key(self, values: Float64[Array, " rows"]) -> Int[Array, " rows"]:
        """Keys of thresholds. Between two bfloat16 numbers, that of the one nearer to zero or just on the inside."""
        if self.integer == torch.int64:
            bits = values.view(np.int64)
            return bits ^ ((bits >> self.sign) & self.rest)
        narrow, wide = values.astype(np.float32).view(np.int32), KEYS[torch.float32]
        keys = narrow ^ ((narrow >> wide.sign) & wide.rest)
        return (keys >> np.int32(16)).astype(np.int16) if self.integer == torch.int16 else keys


KEYS = {
    torch.bfloat16: SortableBits(torch.int16, np.int16(15), np.int16(2**15 - 1)),
    torch.float32: SortableBits(torch.int32, np.int32(31), np.int32(2**31 - 1)),
    torch.float64: SortableBits(torch.int64, np.int64(63), np.int64(2**63 - 1)),
}


def chunk_for(k: int, vocab: int) -> int | None:
    """The chunk that leaves at least twice k chunks to select from; None if k is too large a part of the vocabulary."""
    return next((chunk for chunk in CHUNKS if -(-vocab // chunk) >= 2 * k), None)


def thresholds(
    highest: Float64[Array, " rows"],
    lowest: Float64[Array, " rows"],
    high: Float64[Array, " rows"],
    low: Float64[Array, " rows"],
    slack: Slack,
) -> tuple[Float64[Array, " rows"], Float64[Array, " rows"], Bool[Array, " rows"]]:
    """From each row's ends and its k-th scores, the least and the most that a candidate may score, and what is usable.

    Thresholds are moved outwards by a float32 step, so that storing them cannot lose a candidate.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        width = slack(np.maximum(np.abs(highest), np.abs(lowest)))
        least, most = high - width, low + width
        # inf and NaN are no evidence of anything; nor is a threshold that float32 cannot hold
        usable = np.isfinite(width) & (np.maximum(np.abs(least), np.abs(most)) < np.finfo(np.float32).max)
        step = np.float64(2.0**-22)
        tiny = np.float64(2.0**-148)
        least, most = least - np.abs(least) * step - tiny, most + np.abs(most) * step + tiny
    return np.where(usable, least, 0.0), np.where(usable, most, 0.0), usable


def select_compiled(scores: Float[Tensor, "rows vocab"], k: int, slack: Slack, chunk: int, room: int) -> Candidates:
    """Candidates of rows in main memory, in one pass over the scores and a second one over the chunks that matter."""
    from . import kernels

    keys = KEYS[scores.dtype]
    bits = scores.view(keys.integer).numpy()
    rows, vocab = bits.shape
    chunks = -(-vocab // chunk)
    high = np.empty((rows, chunks), bits.dtype)
    low = np.empty_like(high)
    kernels.chunk_ends(bits, keys.sign, keys.rest, chunk, 0, rows, high, low)
    # The k-th largest chunk maximum is no larger than the k-th largest score: k chunks reach it.
    kth_high = np.partition(high, chunks - k, axis=1)[:, chunks - k]
    kth_low = np.partition(low, k - 1, axis=1)[:, k - 1]
    least, most, usable = thresholds(
        keys.floats(high.max(axis=1)), keys.floats(low.min(axis=1)), keys.floats(kth_high), keys.floats(kth_low), slack
    )
    ids, counts = np.empty((rows, 2, room), np.int32), np.empty((rows, 2), np.int64)
    kernels.collect(bits, keys.sign, keys.rest, chunk, 0, rows, high, low, keys.key(least), keys.key(most), ids, counts)
    counts[~usable] = -1
    return Candidates(ids, counts)


def select_in_torch(scores: Float[Tensor, "rows vocab"], k: int, slack: Slack, room: int) -> Candidates:
    """The same by torch's operations: of few rows, or on an accelerator, which only the candidates leave."""

    def moved(tensor: Tensor) -> Float64[Array, " rows"]:
        return tensor.cpu().double().numpy()

    high, low = scores.topk(k, dim=-1).values, scores.topk(k, dim=-1, largest=False).values
    least, most, usable = thresholds(moved(high[:, 0]), moved(low[:, 0]), moved(high[:, -1]), moved(low[:, -1]), slack)
    ids, counts = np.zeros((len(scores), 2, room), np.int32), np.zeros((len(scores), 2), np.int64)
    for end, limit in enumerate((least, most)):
        bar = torch.from_numpy(limit).to(scores.dtype).to(scores.device).unsqueeze(-1)
        row, column = ((scores >= bar) if end == 0 else (scores <= bar)).nonzero().cpu().numpy().T
        counts[:, end] = np.bincount(row, minlength=len(scores))
        place = np.arange(len(row)) - (np.cumsum(counts[:, end]) - counts[:, end])[row]
        fits = place < room
        ids[row[fits], end, place[fits]] = column[fits]
    counts[(counts > room) | ~usable[:, None]] = -1
    return Candidates(ids, counts)


# Ways to score a block of vectors against the vocabulary, each with a bound on how far its scores may be off.

PATHS = ("auto", "bfloat16", "float32")
MANY = 512  # rows: fewer are scored before a probe would have paid
PROBE = (256, 2048)
FEW = 16  # rows: three, a gated neuron, take a quarter of the time with the embeddings as the left factor
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
        if 1 < len(given) < FEW and given.device.type == "cpu":
            out.copy_(torch.mm(self.matrix, given.T).T)
        else:
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
    loops_for(rows.numel()).norms(wide.contiguous().numpy(), 0, len(rows), found)
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
    within = (found - exact).abs() <= allowed
    return bool((within | ~found.isfinite()).all())  # what overflows decides nothing, there as here


# The k highest and lowest of vectors · tokensᵀ, exact by a canonical rule, at about the cost of the bare product.
#
# The canonical score of a vector and a token is their dot product by :func:`ffnmem.vocabulary.kernels.dot`, rounded
# once to the vectors' type; the ranking is by that score, ties by token id. A matrix product finds candidates: every
# token that its error bound leaves in question. Only those are scored canonically, so the result depends neither on the
# product nor on the size of the block.

BLOCK = 512  # neurons scored at once: [512, 50257] in float32 is 103 MB


class Scorer:
    """One vocabulary, prepared for scoring many vectors.

    Args:
        tokens: one row a token; those in half precision are taken to float32.
        k: how many tokens at each end.
        candidates: see :func:`ffnmem.vocabulary.scoring.choose`; changes the speed, never the result.
        rows: about how many vectors will come.

    Attributes:
        taken: how many rows each way of finding candidates has decided.
    """

    def __init__(self, tokens: Float[Tensor, "vocab d_model"], k: int, candidates: str = "auto", rows: int = 1) -> None:
        wide = at_least_float32(tokens.detach()).contiguous()
        self.k = min(k, len(wide))
        self.room = 4 * self.k + 192
        self.exact = wide.cpu().numpy()
        self.chunk = chunk_for(self.k, len(wide))
        self.device = wide.device
        self.products = choose(wide, candidates, rows)
        self.loops = loops_for(rows * len(wide))
        self.buffers: dict[str, Tensor] = {}
        self.taken: Counter[str] = Counter()

    def extremes(
        self, vectors: Float[Tensor, "rows d_model"]
    ) -> tuple[Int[np.ndarray, "rows 2 k"], Float[np.ndarray, "rows 2 k"]]:
        """Ids and scores of both ends of each ranking: the highest, then the lowest, best first, ties by id."""
        vectors = vectors.detach().to(torch.from_numpy(self.exact).dtype).contiguous()
        parts = [self.block(vectors[start : start + BLOCK]) for start in range(0, len(vectors), BLOCK)]
        ids, scores = map(np.concatenate, zip(*parts, strict=True))
        return ids, scores

    def block(
        self, vectors: Float[Tensor, "rows d_model"]
    ) -> tuple[Int[np.ndarray, "rows 2 k"], Float[np.ndarray, "rows 2 k"]]:
        """The same of at most BLOCK vectors."""
        exact = vectors.cpu().numpy()
        ids = np.empty((len(exact), 2, self.k), np.int32)
        scores = np.empty((len(exact), 2, self.k), exact.dtype)
        silent = ~exact.any(axis=1)  # all tokens tie
        ids[silent], scores[silent] = np.arange(self.k), 0
        left = np.flatnonzero(~silent)
        for product in self.products if self.chunk else ():
            if len(left):
                undecided = self.attempt(product, vectors, exact, left, ids, scores)
                self.taken[product.name] += len(left) - len(undecided)
                left = undecided
        self.taken["all tokens"] += len(left)
        in_threads(lambda first, last: self.rank_all(exact, left[first:last], ids, scores), len(left), least=1)
        return ids, scores

    def attempt(
        self,
        product: Product,
        vectors: Float[Tensor, "rows d_model"],
        exact: Float[np.ndarray, "rows d_model"],
        left: Int64[np.ndarray, " some"],
        ids: Int[np.ndarray, "rows 2 k"],
        scores: Float[np.ndarray, "rows 2 k"],
    ) -> Int64[np.ndarray, " fewer"]:
        """Fill in the rows in ``left`` that this product can decide; returns those that it cannot."""
        whole = len(left) == len(vectors)
        given = vectors if whole else vectors[torch.from_numpy(left).to(vectors.device)]
        table, error = product.scores(given, self.buffer(product, len(left)))
        found_ids, found = np.empty((len(left), 2, self.k), np.int32), np.empty((len(left), 2, self.k), exact.dtype)
        undecided = np.zeros(len(left), bool)

        def part(first: int, last: int) -> None:
            def width(extreme: Float[np.ndarray, " rows"]) -> Float[np.ndarray, " rows"]:
                return slack(product.arithmetic, error[first:last], extreme)

            if self.chunk and self.loops is not uncompiled and table.device.type == "cpu":
                kept = select_compiled(table[first:last], self.k, width, self.chunk, self.room)
            else:
                kept = select_in_torch(table[first:last], self.k, width, self.room)
            mine = exact[left[first:last]]
            self.loops.rank(
                mine, self.exact, 0, last - first, kept.ids, kept.counts, found_ids[first:last], found[first:last]
            )
            undecided[first:last] = (kept.counts < self.k).any(axis=1)

        in_threads(part, len(left))
        ids[left[~undecided]], scores[left[~undecided]] = found_ids[~undecided], found[~undecided]
        return left[undecided]

    def rank_all(
        self,
        exact: Float[np.ndarray, "rows d_model"],
        left: Int64[np.ndarray, " some"],
        ids: Int[np.ndarray, "rows 2 k"],
        scores: Float[np.ndarray, "rows 2 k"],
    ) -> None:
        """Score every token canonically and sort: for endless ties, numbers without bound and small vocabularies."""
        every = np.empty((1, len(self.exact)), exact.dtype)
        score_rows = loops_for(len(left) * self.exact.size).score_rows
        for row in left:
            score_rows(exact[row : row + 1], self.exact, 0, 1, every)
            for end, order in enumerate((np.argsort(-every[0], kind="stable"), np.argsort(every[0], kind="stable"))):
                ids[row, end], scores[row, end] = order[: self.k], every[0, order[: self.k]]

    def buffer(self, product: Product, rows: int) -> Float[Tensor, "rows vocab"]:
        """Room for a block of scores, used again for every block."""
        held = self.buffers.get(product.name)
        if held is None or len(held) < rows:
            held = torch.empty(rows, len(self.exact), dtype=product.matrix.dtype, device=self.device)
            self.buffers[product.name] = held
        return held[:rows]


def in_threads(work: Callable[[int, int], None], rows: int, least: int = 16) -> None:
    """``work(first, last)`` over all rows, cut into one part a thread where there are ``least`` rows for each."""
    parts = max(1, min(torch.get_num_threads(), rows // least))
    edges = [rows * part // parts for part in range(parts + 1)]
    if parts == 1:
        work(0, rows)
        return
    with ThreadPoolExecutor(parts) as pool:
        for _ in pool.map(work, edges[:-1], edges[1:]):
            pass  # map raises here what a part raised
