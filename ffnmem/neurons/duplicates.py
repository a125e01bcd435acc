"""Near-duplicate neurons within and across layers: pairs whose keys, values, gates, or all of these nearly coincide."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float32, Int64
from torch import Tensor

from ..core.progress import Progress
from .overlap import BLOCK, SIDES, cosines

SAMPLED = 512  # rows a layer that choose the screen's directions
ROUNDING = 1e-5  # what the screen allows for float32
LEEWAY = 0.15  # how far below the threshold the screen's bound of unrelated rows shall stay
WORTH = 0.2  # rows that a screen may let through, on trial: each costs a full product
MOST = 0.7  # a screen wider than this share of the dimensions saves nothing

Units = Callable[[str, int], Tensor]


@dataclass(frozen=True, eq=False)
class Duplicates:
    """Pairs of neurons above the threshold.

    Attributes:
        pairs: the ``limit`` best of each kind: by ("key", "value", of gated neurons "gate", and "both"), rank, layer,
            neuron, other_layer, other_neuron, key_cosine, value_cosine, gate_cosine (of gated neurons). Kind "both"
            ranks by :func:`likeness`.
        counts: how many there are of each kind in all, by pair of layers: by, layer, other_layer, pairs.
    """

    pairs: pd.DataFrame
    counts: pd.DataFrame


def kinds(sides: Sequence[str]) -> tuple[str, ...]:
    """The kinds of near-duplicates: by each side, and by all of them at once ("both")."""
    return (*sides, "both")


def likeness(cosine: Mapping[str, Tensor]) -> Tensor:
    """How alike two neurons are, from the cosines of their sides: the least of these.

    Of gated neurons key and value may also both be opposite, while gates are alike: act(g·x)(−k·x)(−v) is the same
    neuron, act(g·x)(k·x)v.
    """
    key, value = cosine["key"], cosine["value"]
    same = torch.minimum(key, value)
    if "gate" not in cosine:
        return same
    return torch.minimum(cosine["gate"], torch.maximum(same, torch.minimum(-key, -value)))


class Best:
    """The ``limit`` largest of what is added, ties in the order of adding, and how many were added."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.scores = np.empty(0, dtype=np.float32)
        self.owners = np.empty((0, 4), dtype=np.int64)

    def add(self, scores: Float32[np.ndarray, " n"], owners: Int64[np.ndarray, "n 4"]) -> None:
        full = len(self.scores) == self.limit
        better = scores > self.scores[-1] if full else np.ones(len(scores), dtype=bool)
        if not better.any():
            return
        scores = np.concatenate([self.scores, scores[better]])
        owners = np.concatenate([self.owners, owners[better]])
        order = np.argsort(-scores, kind="stable")[: self.limit]
        self.scores, self.owners = scores[order], owners[order]


class Screen:
    """An upper bound of every cosine from a few coordinates: a·b ≤ a₁·b₁ + ‖a₂‖‖b₂‖, a₂ what the few leave out.

    The coordinates are those of the directions in which the rows of all layers together extend most. ‖a₂‖ is appended
    to a₁, so that the bound is one product. With too few of the rows' length in few directions for a bound below the
    threshold, there is no screen: ``basis`` is None, and the bound is the cosine itself.
    """

    def __init__(self, units: Callable[[int], Tensor], layers: Sequence[int], threshold: float) -> None:
        second: Tensor | None = None
        for layer in layers:
            rows = units(layer)
            sample = rows[:: max(1, len(rows) // SAMPLED)].double()
            part = sample.T @ sample
            second = part if second is None else second + part
        assert second is not None
        values, vectors = torch.linalg.eigh(second)
        kept = values.flip(0).cumsum(0) / values.sum().clamp(min=torch.finfo(values.dtype).tiny)
        width = int((kept < 1.0 - (threshold - LEEWAY)).sum()) + 1
        probe = units(layers[0])
        self.basis: Tensor | None = None
        while width <= MOST * len(values):
            self.basis = vectors.flip(1)[:, :width].float()
            few = self.rows(probe)
            if len(find_candidates(few, few, 0, SAMPLED, True, threshold)) <= WORTH * min(SAMPLED, len(few)):
                return
            width *= 2
        self.basis = None

    def rows(self, units: Float32[Tensor, "n d"]) -> Float32[Tensor, "n width"]:
        if self.basis is None:
            return units
        few = units @ self.basis
        rest = (units.square().sum(dim=-1) - few.square().sum(dim=-1)).clamp(min=0.0) + ROUNDING
        return torch.cat([few, rest.sqrt().unsqueeze(-1)], dim=-1)


def find_duplicates(
    units: Units,
    layers: Sequence[int],
    threshold: float,
    limit: int,
    progress: Progress | None = None,
    block: int = BLOCK,
    sides: Sequence[str] = SIDES,
) -> Duplicates:
    """All pairs of neurons whose keys, values, gates, or all of these have a cosine above the threshold.

    "All of these" is :func:`likeness` above the threshold. There are never n² numbers in memory.

    Layer pair by layer pair, block by block, a bound from few coordinates says which rows can have such a partner at
    all; only theirs are multiplied in full. Nothing above the threshold is missed, but for the rounding of float32.

    Args:
        units: gives the unit rows of a side ("key", "value", "gate") and layer, float32 ``[n, d]``; called several
            times.
        layers: which layers. threshold: between 0 and 1. limit: pairs to keep of each kind.
        progress: called with "duplicates", the layer pairs done and all layer pairs.
        block: rows at a time. sides: what the neurons have.

    Returns:
        A :class:`Duplicates`; cosines in its table are taken again in float64.
    """
    loaded = lru_cache(maxsize=2 * len(sides))(units)  # all sides of both layers of a pair
    screens = {side: Screen(partial(units, side), layers, threshold) for side in sides}
    few = {(side, layer): screens[side].rows(units(side, layer)) for side in sides for layer in layers}
    best = {by: Best(limit) for by in kinds(sides)}
    counts: list[tuple[str, int, int, int]] = []
    pairs = [(one, other) for place, one in enumerate(layers) for other in layers[place:]]
    for done, (one, other) in enumerate(pairs, start=1):
        totals = dict.fromkeys(best, 0)

        def exact(side: str, rows: Tensor, one: int = one, other: int = other) -> Tensor:
            return multiply_rows(loaded(side, one), loaded(side, other), rows, one == other)

        for first in range(0, len(few["key", one]), block):
            rows = {
                side: find_candidates(few[side, one], few[side, other], first, block, one == other, threshold)
                for side in sides
            }
            for by, scores, owners in find_hits(exact, rows, threshold):
                totals[by] += len(scores)
                whole = np.column_stack(
                    [np.full(len(owners), one), owners[:, 0], np.full(len(owners), other), owners[:, 1]]
                )
                best[by].add(scores, whole)
        counts += [(by, one, other, total) for by, total in totals.items() if total]
        if progress is not None:
            progress("duplicates", done, len(pairs))
    found = pd.DataFrame(counts, columns=["by", "layer", "other_layer", "pairs"]).astype(
        {"layer": "int64", "other_layer": "int64", "pairs": "int64"}
    )
    return Duplicates(build_table(best, units), found)


def find_candidates(
    one: Float32[Tensor, "n width"],
    other: Float32[Tensor, "m width"],
    first: int,
    block: int,
    same: bool,
    threshold: float,
) -> Int64[Tensor, " found"]:
    """The rows of a block of ``one`` whose bound with some row of ``other`` is above the threshold."""
    bounds = one[first : first + block] @ other[first if same else 0 :].T
    if same:  # a pair counts once, and no row with itself
        size = len(bounds)
        bounds[:, :size].masked_fill_(torch.ones(size, size, dtype=torch.bool, device=bounds.device).tril(), -1.0)
    return (bounds.amax(dim=1) > threshold - ROUNDING).nonzero().squeeze(1) + first


def multiply_rows(
    one: Float32[Tensor, "n d"], other: Float32[Tensor, "m d"], rows: Int64[Tensor, " found"], same: bool
) -> Float32[Tensor, "found m"]:
    """The cosines of some rows with all of ``other``; within a layer, those with earlier rows and itself are −1."""
    found = one[rows] @ other.T
    if same:
        columns = torch.arange(len(other), device=found.device)
        found.masked_fill_(columns <= rows.unsqueeze(1), -1.0)
    return found


def find_hits(
    exact: Callable[[str, Tensor], Tensor], rows: dict[str, Tensor], threshold: float
) -> Iterator[tuple[str, Float32[np.ndarray, " found"], Int64[np.ndarray, "found 2"]]]:
    """Per kind, the cosines above the threshold and the neurons that they belong to, in order of these.

    Args:
        exact: gives the cosines of some rows of a side. rows: by side, those that may have one above the threshold.
    """
    found = {side: exact(side, some) for side, some in rows.items() if len(some)}
    parts = [(side, found[side], rows[side]) for side in found]
    if "gate" in rows:  # key and value may both be opposite, which their candidates do not show
        shared = rows["gate"]
        whole = {side: found[side] if side == "gate" else exact(side, shared) for side in rows if len(shared)}
    else:
        shared = rows["key"][torch.isin(rows["key"], rows["value"])]
        whole = {side: found[side][torch.isin(rows[side], shared)] for side in rows if len(shared)}
    if whole:
        parts.append(("both", likeness(whole), shared))
    for by, scores, owners in parts:
        row, column = (scores > threshold).nonzero(as_tuple=True)
        if len(row):
            yield by, scores[row, column].cpu().numpy(), torch.stack([owners[row], column], dim=1).cpu().numpy()


def build_table(best: dict[str, Best], units: Units) -> pd.DataFrame:
    """The pairs kept, with all cosines in float64; each layer is read once a side."""
    sides = [by for by in best if by != "both"]
    owners = np.concatenate([best[by].owners for by in best])
    frame = pd.DataFrame(owners, columns=["layer", "neuron", "other_layer", "other_neuron"])
    frame.insert(0, "by", [by for by in best for _ in best[by].scores])
    found: dict[str, Tensor] = {}
    for side in sides:
        found[side] = torch.empty(0, dtype=torch.float64)
        if len(owners):
            found[side] = cosines(*(pick_rows(units, side, owners[:, place : place + 2]) for place in (0, 2))).cpu()
        frame[f"{side}_cosine"] = found[side].numpy()
    found["both"] = likeness(found)
    score = np.select([frame["by"] == by for by in best], [found[by].numpy() for by in best])
    kind = frame["by"].map({by: place for place, by in enumerate(best)})
    keys = [frame[name] for name in ("other_neuron", "neuron", "other_layer", "layer")]
    frame = frame.iloc[np.lexsort([*keys, -score.round(12), kind])].reset_index(drop=True)
    frame.insert(1, "rank", frame.groupby("by").cumcount() + 1)
    return frame


def pick_rows(units: Units, side: str, owners: Int64[np.ndarray, "pairs 2"]) -> Tensor:
    """The rows of (layer, neuron) pairs, at least one."""
    parts = []
    for layer in np.unique(owners[:, 0]).tolist():
        rows = units(side, layer)
        parts.append(rows[torch.from_numpy(owners[owners[:, 0] == layer, 1]).to(rows.device)])
    by_layer = np.argsort(owners[:, 0], kind="stable")
    return torch.cat(parts)[torch.from_numpy(np.argsort(by_layer)).to(parts[0].device)]
