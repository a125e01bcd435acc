"""``virtual_weights``: which memories make a neuron fire and which it makes fire, from weights alone.

What neuron s writes is read by neuron t of a later layer through the norm in front of it. But for the norms' scales,
which depend on the text, that is one number: v_s · (γ_t ⊙ k_t), the mean taken out where the norm is a LayerNorm; a
norm behind an FFN has its gain in it as well. Through an attention head between them it is v_s · W_V W_O · (γ_t ⊙ k_t).
In superposition all neurons have such weights with all others. Which are more than that interference says a null: in
place of the neuron stand random directions, as often along each direction as the neurons of its layer. (Other neurons
of its layer would have connections of their own.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, SupportsIndex

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Float64
from scipy import stats
from torch import Tensor

from ..core.neuron_names import LayerName, NeuronName, place_of
from ..core.progress import Progress
from ..core.provenance import Provenance
from ..core.types import Count, Seed, checked
from ..models.attention import Heads
from ..models.model import Model
from ..models.norms import at_least_float32
from ..models.residual import passed_on
from ..show.result import Result
from ..vocabulary.projections import promoted_tokens
from ..vocabulary.vectors import matrix_of

INCOMING, OUTGOING = "incoming", "outgoing"
DIRECT = "direct"
COLUMNS = ("direction", "rank", "layer", "neuron", "input", "via", "weight", "cosine", "z", "q", "promotes")
DRAWS = 64  # random directions in place of the neuron
TOLD = 0.1  # q below which a connection is told from interference
SCREENED = 256  # connections with the neurons of a layer that are compared with them, at least


@checked
@dataclass(frozen=True, eq=False, repr=False)
class VirtualWeights(Result):
    """The strongest connections of one neuron. Made by :func:`ffnmem.virtual_weights`.

    Attributes:
        layer, neuron: whose they are.
        edges: one row a connection, those that come in first, strongest first: direction ("incoming": from the
            neuron in this row; "outgoing": to it), rank, layer, neuron, input ("key" or, of gated neurons, "gate": what
            of the later neuron reads it), via ("direct" or "head 5.3"), weight (what a coefficient of 1 of the one
            adds to the other's pre-activation, before norms' scales), cosine (weight over the lengths of what is
            written and what is read; through a head that is no more bounded by 1), z (the cosine over the root of the
            mean square of those that random directions have in the neuron's place), q (the false discovery rate among
            all connections with as large a z), promotes (the token that the row's neuron promotes most).
        compared: how many connections there are in all, by direction.
        model: which one; None of what was loaded without it.
    """

    heading = "name connections_in connections_out"
    tables: ClassVar = {
        "incoming": "neuron value_promotes input via weight cosine z q",
        "outgoing": "neuron value_promotes input via weight cosine z q",
    }
    main, only_shown = "edges", "incoming outgoing"

    layer: int
    neuron: int
    edges: pd.DataFrame
    compared: dict[str, int]
    provenance: Provenance
    model: Model | None = None

    @property
    def name(self) -> str:
        return f"{self.layer}.{self.neuron}"

    @property
    def connections_in(self) -> int:
        return self.compared[INCOMING]

    @property
    def connections_out(self) -> int:
        return self.compared[OUTGOING]

    @property
    def incoming(self) -> pd.DataFrame:
        """What makes it fire (+) or keeps it from firing (−), of a coefficient of 1, before the norms' scales."""
        return self.edges[self.edges["direction"] == INCOMING].reset_index(drop=True)

    @property
    def outgoing(self) -> pd.DataFrame:
        """What it makes fire (+) or keeps from firing (−), of a coefficient of 1, before the norms' scales."""
        return self.edges[self.edges["direction"] == OUTGOING].reset_index(drop=True)

    @property
    def sides(self) -> tuple[str, ...]:
        """The directions in which it has connections."""
        return tuple(dict.fromkeys(self.edges["direction"]))

    @property
    def verdict(self) -> str:
        """How many of the connections that are listed are more than chance."""
        counted = [f"{(some['q'] < TOLD).sum()} of {len(some)} {way}" for way, some in self.ways.items() if len(some)]
        return f"Of those listed, {' and '.join(counted)} are more than chance (q < {TOLD})." if counted else ""

    @property
    def ways(self) -> dict[str, pd.DataFrame]:
        """Its connections by direction."""
        return {INCOMING: self.incoming, OUTGOING: self.outgoing}

    def shown_edges(self, top: Count | None = None) -> pd.DataFrame:
        """The first ``top`` of each direction."""
        return self.edges if top is None else self.edges[self.edges["rank"] <= top]


@checked
def virtual_weights(
    model: Model,
    layer: LayerName | NeuronName,
    neuron: SupportsIndex | None = None,
    *,
    k: Count = 20,
    heads: bool = True,
    draws: Count = DRAWS,
    seed: Seed = 0,
    progress: Progress | None = None,
) -> VirtualWeights:
    """Which neurons make one fire and which it makes fire, by weights alone.

    What one neuron writes, times what another of a later layer reads, through the gain of the norm in front of it:
    directly, or through an attention head between them. All neurons have such weights with all others, because there
    are more of them than dimensions. z is how far a connection is from those that a random direction in place of the
    neuron has with the same layers, the same way; q is the share of connections as far as that which are chance.

    Args:
        model: from :func:`ffnmem.load`.
        layer: which neuron, ``"20.119"``; or its layer, with ``neuron``.
        neuron: its number in the layer.
        k: connections of each direction.
        heads: whether connections through one attention head count, too.
        draws: random directions that stand in the neuron's place in the null, with the second moment of what its
            layer's neurons read or write.
        seed: of these directions.
        progress: called with "virtual", the layers done and all layers.

    Returns: A :class:`VirtualWeights`: those furthest from their null, up to a sign. Connections are between layers;
        where FFNs stand beside attention, it reads them a layer later.

    Raises: OutOfRangeError: no such layer or neuron. With heads, UnsupportedModelError: attention that is not linear
        once its pattern is as it was; HookError: attention that shows no pattern.

    Source: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits" (virtual weights); the interference
        that they share with random pairs: Elhage et al. 2022 (2209.10652).

    Example:
        $ ffnmem weights 3.17
        $ ffnmem weights 4.629 --no-heads --top 10
        $ ffnmem weights 5.705 --top 5 --plot weights.png
    """
    at, which = place_of(layer, neuron)
    at, which = model.layer(at), model.neuron(at, which)
    with torch.no_grad():
        wires = Wires(model, Heads(model) if heads else None)

        ways: list[tuple[str, Tensor, str | None]] = [
            *((INCOMING, wires.reads(at, side), side) for side in wires.inputs),
            (OUTGOING, wires.writes(at), None),
        ]
        found: dict[str, list[pd.DataFrame]] = {INCOMING: [], OUTGOING: []}
        compared = dict.fromkeys(found, 0)
        for direction, rows, side in ways:
            ends = with_null(rows, which, draws, np.random.default_rng([seed, at]))
            for done, part in enumerate(walk_parts(wires, at, ends, side), start=sum(map(len, found.values())) + 1):
                found[direction].append(select_standing_out(part, k))
                compared[direction] += part.weights.numel()
                if progress is not None:
                    progress("virtual", done, len(wires.inputs) * (model.n_layers - 1))
    tables = [
        rank_connections(one, direction, k, compared[direction], draws) for direction, one in found.items() if one
    ]
    edges = pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=COLUMNS)
    tokens = promoted_tokens(model, edges, 1)
    edges["promotes"] = [tokens[row.layer, row.neuron][0] for row in edges.itertuples()]
    return VirtualWeights(
        at,
        which,
        edges[list(COLUMNS)],
        compared,
        model.provenance(basis="folded", heads=heads, draws=draws, seed=seed),
        model,
    )


def with_null(
    rows: Float[Tensor, "d_mlp d_model"], neuron: int, draws: int, random: np.random.Generator
) -> Float[Tensor, "ends d_model"]:
    """What a neuron reads or writes, and below it random directions with the second moment of all of the layer's."""
    lengths = rows.norm(dim=-1, keepdim=True)
    units = torch.where(lengths > 0, rows / lengths, torch.zeros_like(rows))
    mixed = torch.from_numpy(random.standard_normal((draws, len(rows)))).to(rows) @ units
    return torch.cat([rows[neuron : neuron + 1], mixed])


@dataclass(frozen=True, eq=False)
class Part:
    """All connections of one neuron with those of one layer.

    Attributes:
        layer: the other layer. side: the input of whichever neuron is the later one.
        ways: names of the ways between them.
        ends: ``[1 + draws, ways, d_model]``: the neuron and its null, carried along each way to where the other
            layer's stand.
        lengths: ``[1 + draws]``, of what they write or read where they are themselves.
        rows: ``[d_mlp, d_model]``, what the other layer's neurons write or read.
    """

    layer: int
    side: str
    ways: list[str]
    ends: Float[Tensor, "ends ways d_model"]
    lengths: Float[Tensor, " ends"]
    rows: Float[Tensor, "d_mlp d_model"]

    @cached_property
    def weights(self) -> Float[Tensor, "d_mlp ways"]:
        return self.rows @ self.ends[0].T

    def cosines(self) -> Float[Tensor, "d_mlp ways"]:
        """Weights over the lengths of what is written and what is read; 0 where one of them is nothing."""
        lengths = self.rows.norm(dim=-1, keepdim=True) * self.lengths[0]
        return torch.where(lengths > 0, self.weights / lengths, torch.zeros_like(self.rows[:, :1]))

    def interference(self, neurons: Tensor, ways: Tensor) -> Float[Tensor, " pairs"]:
        """The root of the mean square of the null's cosines, for some of the layer's neurons and ways."""
        found = torch.zeros(len(neurons), dtype=self.rows.dtype, device=self.rows.device)
        for way in sorted(set(ways.tolist())):
            some = ways == way
            rows = self.rows[neurons[some]]
            lengths = rows.norm(dim=-1, keepdim=True) * self.lengths[1:]
            null = torch.where(lengths > 0, rows @ self.ends[1:, way].T / lengths, torch.zeros_like(lengths))
            found[some] = null.square().mean(dim=-1).sqrt()
        return found


def walk_parts(wires: Wires, layer: int, vectors: Float[Tensor, "ends d_model"], side: str | None) -> Iterator[Part]:
    """The connections of what a neuron of a layer reads by one input, or writes (without ``side``), with its null:
    layer by layer; of what it writes, with each input of the layer by itself."""
    incoming, n_layers = side is not None, wires.model.n_layers
    layers = range(layer) if incoming else range(layer + 1, n_layers)
    if not layers:
        return
    between = wires.between(0, layer) if incoming else wires.between(layer, n_layers - 1)
    through: dict[int, Tensor] = {}
    if wires.heads is not None:
        through = {a: (wires.heads.pulled if incoming else wires.heads.carried)(a, vectors) for a in between}
    lengths = vectors.norm(dim=-1)
    for other in layers:
        own = wires.between(other, layer) if incoming else wires.between(layer, other)
        own = [a for a in own if a in through]
        ends = torch.cat([vectors.unsqueeze(1), *(through[a] for a in own)], dim=1)
        ways = [DIRECT, *(f"head {a}.{head}" for a in own for head in range(through[a].shape[1]))]
        if side is not None:
            yield Part(other, side, ways, ends, lengths, wires.writes(other))
        else:
            for read in wires.inputs:
                yield Part(other, read, ways, ends, lengths, wires.reads(other, read))


class Wires:
    """What the neurons of a model write into the residual stream and read from it, and the heads between them."""

    def __init__(self, model: Model, heads: Heads | None) -> None:
        self.model, self.heads = model, heads
        self.inputs = ("key", "gate") if model.gated else ("key",)
        self.parallel = bool(model.numbers.parallel)

    def writes(self, layer: int) -> Float[Tensor, "d_mlp d_model"]:
        return passed_on(self.model, layer, at_least_float32(matrix_of(self.model, layer, "value").detach()))

    def reads(self, layer: int, side: str) -> Float[Tensor, "d_mlp d_model"]:
        """Keys or gates as directions in the residual stream, but for the scale of the norm before the FFN."""
        found = at_least_float32(matrix_of(self.model, layer, side).detach())
        norm = self.model.norm_before(layer)
        return found if norm is None else norm.pull(found)

    def between(self, source: int, target: int) -> list[int]:
        """The attention layers that read a layer's FFN and that another one's FFN reads."""
        return list(range(source + 1, target + (not self.parallel)))


def select_standing_out(part: Part, k: int) -> pd.DataFrame:
    """The connections that stand out among the layer's neurons along each way, compared with their nulls."""
    cosine = part.cosines()
    size = cosine.abs() / cosine.std(dim=0, correction=0).clamp(min=torch.finfo(cosine.dtype).tiny)
    order = size.flatten().topk(min(max(10 * k, SCREENED), size.numel())).indices
    neurons, ways = order // cosine.shape[1], order % cosine.shape[1]
    weight, cosine = part.weights[neurons, ways], cosine[neurons, ways]
    null = part.interference(neurons, ways)
    z = torch.where(null > 0, cosine / null, torch.zeros_like(cosine))
    names = {"layer": part.layer, "neuron": neurons.tolist(), "input": part.side}
    names["via"] = [part.ways[way] for way in ways.tolist()]
    numbers = {"weight": weight, "cosine": cosine, "z": z}
    return pd.DataFrame({**names, **{name: one.double().cpu().numpy() for name, one in numbers.items()}})


def rank_connections(parts: Sequence[pd.DataFrame], direction: str, k: int, compared: int, draws: int) -> pd.DataFrame:
    """The k connections of a direction furthest from their nulls, with their rank and false discovery rate."""
    found = pd.concat(parts, ignore_index=True)
    found = found.iloc[np.argsort(-found["z"].abs().to_numpy(), kind="stable")].reset_index(drop=True)
    found = found.assign(direction=direction, q=rates(found["z"].abs().to_numpy(), compared, draws))
    return found.head(k).assign(rank=np.arange(1, min(k, len(found)) + 1))


def rates(size: Float64[np.ndarray, " n"], compared: int, draws: int) -> Float64[np.ndarray, " n"]:
    """Benjamini and Hochberg's false discovery rates of |z|, falling; those that were screened out count as p = 1.

    A direction of normal numbers has normal cosines, so z, whose deviation is estimated from ``draws`` of them, has
    Student's distribution.
    """
    p = 2 * stats.t.sf(size, draws)
    steps = p * compared / np.arange(1, len(p) + 1)
    return np.minimum(np.minimum.accumulate(steps[::-1])[::-1], 1.0)
