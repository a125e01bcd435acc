"""The k highest and lowest of vectors · tokensᵀ, exact by a canonical rule, at about the cost of the bare product.

The canonical score of a vector and a token is their dot product by :func:`ffnmem.vocabulary.kernels.dot`, rounded once
to the vectors' type; the ranking is by that score, ties by token id. A matrix product finds candidates: every token
that its error bound leaves in question. Only those are scored canonically, so the result depends neither on the product
nor on the size of the block.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor

from ..models.final_norm import at_least_float32
from .bounds import slack
from .candidates import chunk_for, from_device, from_rows
from .kernels import rank, score_rows
from .products import Product, choose

BLOCK = 512  # neurons scored at once: [512, 50257] in float32 is 103 MB


@dataclass(frozen=True, eq=False)
class Extremes:
    """The highest and the lowest scored tokens of each row, best first; ties in the order of the token ids."""

    promoted: Int[Tensor, "rows k"]
    promoted_scores: Float[Tensor, "rows k"]
    suppressed: Int[Tensor, "rows k"]
    suppressed_scores: Float[Tensor, "rows k"]


class Scorer:
    """One vocabulary, prepared for scoring many vectors.

    Args:
        tokens: one row a token; those in half precision are taken to float32.
        k: how many tokens at each end.
        candidates: see :func:`ffnmem.vocabulary.products.choose`; changes the speed, never the result.
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
        self.buffers: dict[str, Tensor] = {}
        self.taken: Counter[str] = Counter()

    def extremes(self, vectors: Float[Tensor, "rows d_model"]) -> Extremes:
        """The ends of each vector's ranking; in the vectors' type, on the CPU."""
        vectors = vectors.detach().to(torch.from_numpy(self.exact).dtype).contiguous()
        parts = [self.block(vectors[start : start + BLOCK]) for start in range(0, len(vectors), BLOCK)]
        ids = torch.from_numpy(np.concatenate([ids for ids, _ in parts])).long()
        scores = torch.from_numpy(np.concatenate([scores for _, scores in parts]))
        return Extremes(ids[:, 0], scores[:, 0], ids[:, 1], scores[:, 1])

    def block(
        self, vectors: Float[Tensor, "rows d_model"]
    ) -> tuple[Int[np.ndarray, "rows 2 k"], Float[np.ndarray, "rows 2 k"]]:
        """Ids and scores of both ends, the high one first, for at most BLOCK vectors."""
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

            if table.device.type == "cpu":
                assert self.chunk
                kept = from_rows(table[first:last], self.k, width, self.chunk, self.room)
            else:
                kept = from_device(table[first:last], self.k, width, self.room)
            mine = exact[left[first:last]]
            rank(mine, self.exact, 0, last - first, kept.ids, kept.counts, found_ids[first:last], found[first:last])
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


def extremes(
    vectors: Float[Tensor, "rows d_model"],
    tokens: Float[Tensor, "vocab d_model"],
    k: int,
    candidates: str = "auto",
) -> Extremes:
    """The k highest and k lowest of ``vectors @ tokensᵀ``, exact in the vectors' dtype; k at most the vocabulary.

    Args:
        vectors, tokens: on one device. k: tokens at each end.
        candidates: ``"auto"``, ``"bfloat16"`` or ``"float32"``: how candidates are found; never changes the result.
    """
    return Scorer(tokens.to(at_least_float32(vectors).dtype), k, candidates, len(vectors)).extremes(vectors)
