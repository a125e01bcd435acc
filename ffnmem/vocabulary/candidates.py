"""Which tokens of a block of scores can be among the k best at either end, given how far the scores may be off."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int, Int64
from torch import Tensor

from .kernels import REST16, REST32, REST64, SIGN16, SIGN32, SIGN64, chunk_ends, collect

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
class Keys:
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
        narrow = values.astype(np.float32).view(np.int32)
        keys = narrow ^ ((narrow >> SIGN32) & REST32)
        return (keys >> np.int32(16)).astype(np.int16) if self.integer == torch.int16 else keys


KEYS = {
    torch.bfloat16: Keys(torch.int16, SIGN16, REST16),
    torch.float32: Keys(torch.int32, SIGN32, REST32),
    torch.float64: Keys(torch.int64, SIGN64, REST64),
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


def from_rows(scores: Float[Tensor, "rows vocab"], k: int, slack: Slack, chunk: int, room: int) -> Candidates:
    """Candidates of rows in main memory, in one pass over the scores and a second one over the chunks that matter."""
    keys = KEYS[scores.dtype]
    bits = scores.view(keys.integer).numpy()
    rows, vocab = bits.shape
    chunks = -(-vocab // chunk)
    high = np.empty((rows, chunks), bits.dtype)
    low = np.empty_like(high)
    chunk_ends(bits, keys.sign, keys.rest, chunk, 0, rows, high, low)
    # The k-th largest chunk maximum is no larger than the k-th largest score: k chunks reach it.
    kth_high = np.partition(high, chunks - k, axis=1)[:, chunks - k]
    kth_low = np.partition(low, k - 1, axis=1)[:, k - 1]
    least, most, usable = thresholds(
        keys.floats(high.max(axis=1)), keys.floats(low.min(axis=1)), keys.floats(kth_high), keys.floats(kth_low), slack
    )
    ids, counts = np.empty((rows, 2, room), np.int32), np.empty((rows, 2), np.int64)
    collect(bits, keys.sign, keys.rest, chunk, 0, rows, high, low, keys.key(least), keys.key(most), ids, counts)
    counts[~usable] = -1
    return Candidates(ids, counts)


def from_device(scores: Float[Tensor, "rows vocab"], k: int, slack: Slack, room: int) -> Candidates:
    """The same of rows on an accelerator, by its own operations; only the candidates leave it."""

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
