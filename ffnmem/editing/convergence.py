"""``convergence``: how an edit's direction settles as the second moment sees more text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, SupportsIndex

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from ..arguments import public
from ..corpus import open_corpus, pack
from ..corpus.excerpts import BATCH_TOKENS, Drawn, TextSettings
from ..corpus.passes import Forward, read
from ..errors import InputError, check_count, check_seed
from ..models import Model
from ..models.turns import in_turn
from .accumulating import CORPUS, MomentSums
from .moments import RIDGE, SecondMoment, fewest

Quality = Callable[[SecondMoment], float]
"""Told the second moment of each row; returns a number, e.g. the share of edits that succeed with it."""

MULTIPLES = (0.25, 0.5, 1, 2, 5, 10, 20, 50, 100)  # of d_mlp, the default counts


@public
@in_turn
def convergence(
    model: Model,
    corpus: Any,
    keys: Float[Tensor, "n d_mlp"],
    layer: SupportsIndex,
    counts: Sequence[int] | None = None,
    *,
    seed: int = 0,
    ridge: float = RIDGE,
    quality: Quality | None = None,
    context: int | None = None,
    prepend_bos: bool | None = None,
    batch_tokens: int = BATCH_TOKENS,
    text: str = "text",
    documents: str | None = None,
) -> pd.DataFrame:
    """How far u = C⁻¹k/‖C⁻¹k‖ is from where it ends, by the tokens that C has seen.

    Sequences are taken in a random order, so that little text is a sample of all of it; each count holds the text of
    those before it, and one pass reads them all. Whether enough text was read shows where the curve has become flat.

    Args:
        model: from :func:`ffnmem.load`.
        corpus: as :func:`second_moment` takes it.
        keys: coefficient vectors of the layer, e.g. at the subjects' last tokens, one a row.
        layer: which.
        counts: tokens after which to look, rounded up to whole sequences; default: multiples of d_mlp from ¼ to 100,
            then all of the text. The last is what the others are compared with.
        seed: of the order.
        ridge: as :meth:`SecondMoment.solve` takes it.
        quality: called with each second moment; its numbers become a column.
        context, prepend_bos, batch_tokens, text, documents: as :func:`second_moment` takes them.

    Returns: a table with a row a count: tokens, distance_mean and distance_max (of ‖u − u_final‖ over the keys; two
        random directions are √2 apart), cosine_mean (of u with u_final), condition (of C), and quality if asked for.

    Raises: InputError: no keys, a key that is zero, counts above what the text holds. Otherwise as
        :func:`second_moment`.
    """
    index = model.layer(layer)
    settings = TextSettings.checked(model, context, prepend_bos, batch_tokens)
    check_seed(seed)
    if keys.ndim != 2 or not len(keys) or not bool((keys != 0).any(dim=1).all()):
        raise InputError("keys must be at least one row of coefficients, none of them zero")
    rows: list[dict[str, float]] = []
    directions = []
    with TemporaryDirectory(prefix="ffnmem-") as folder:
        packed = pack(open_corpus(corpus, text=text, documents=documents), model, Path(folder) / CORPUS)
        # Below d_mlp tokens C is singular, and float32's rounding would decide whether it can be solved.
        sums = MomentSums(model, packed, settings, (index,), exact=True)
        wanted = checked_counts(counts, sums.widths[0], packed.n_tokens)
        for moment in nested(sums, wanted, seed):
            directions.append(unit(moment.solve(index, keys, ridge)))
            row = {"tokens": moment.count, "condition": moment.condition(index)}
            rows.append(row if quality is None else {**row, "quality": float(quality(moment))})
    distances = torch.stack([(u - directions[-1]).norm(dim=1) for u in directions])
    cosines = torch.stack([(u * directions[-1]).sum(dim=1) for u in directions])
    frame = pd.DataFrame(rows)
    frame.insert(1, "distance_mean", distances.mean(dim=1).tolist())
    frame.insert(2, "distance_max", distances.amax(dim=1).tolist())
    frame.insert(3, "cosine_mean", cosines.mean(dim=1).tolist())
    frame.attrs["provenance"] = {**moment.provenance, "layer": index, "ridge": ridge, "seed": seed, "keys": len(keys)}
    return frame


def unit(rows: Float64[Tensor, "n d_mlp"]) -> Float64[Tensor, "n d_mlp"]:
    return rows / rows.norm(dim=1, keepdim=True)


def checked_counts(counts: Sequence[int] | None, width: int, available: int) -> list[int]:
    """Ascending counts; raises InputError for one that the text cannot give."""
    if counts is None:
        return [*sorted({n for m in MULTIPLES if (n := int(m * width)) and n < available}), available]
    found = sorted({check_count("counts", count) for count in counts})
    if not found:
        raise InputError("counts is empty: give at least one number of tokens")
    if found[-1] > available:
        raise InputError(f"counts go up to {found[-1]} tokens, and the corpus has {available}")
    return found


def nested(sums: MomentSums, counts: Sequence[int], seed: int) -> Iterator[SecondMoment]:
    """The second moment after each count of tokens, sequences taken in a random order."""
    sequences = sums.settings.sequences(sums.packed)
    forward = Forward(sums.model, [sums], until=sums.layers[-1])
    order = np.random.default_rng(seed).permutation(len(sequences))
    taken = seen = 0
    for count in counts:
        first = taken
        while seen < count:
            seen += sequences.locate(int(order[taken]))[2]
            taken += 1
        some = order[first:taken]
        read(Drawn(sequences, sums.settings, some, together=max(1, len(some))), forward, "convergence")
        sums.ranges = fewest([(int(n), int(n) + 1) for n in order[:taken]])
        yield sums.moment()
