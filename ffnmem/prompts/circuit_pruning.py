"""Which firings a circuit is of: expanded by their influence on the answer, and pruned by it, nodes first, then edges.

A node's influence is the answer's row of A + A² + …, with A the edges' absolute weights, each node's scaled so that
they sum to 1 over *all* firings and embeddings that it reads, also those that are not in the graph. Biases, which are
the same whatever the prompt, stand beside that sum. Of a gated neuron, gate and linear part count one half each.

Source: Ameisen et al. 2025, "Circuit Tracing", on pruning, as in the program ``safety-research/circuit-tracer``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..core.errors import InputError, check_number
from ..models.model import Model
from .circuit_edges import Firing, FrozenPass, Head, Input
from .firings import PromptQuestion

GIB, ROOM = 1 << 30, 4.0
AT_ONCE, FEWEST, MOST = 0.25, 4, 32
"""How many inputs a block of whole rows has: as many as take this share of the weights' memory, within bounds."""
BLOCK = 64  # inputs of a block where only chosen firings are read


@dataclass(frozen=True, eq=False)
class Graph:
    """The edges among candidates: every input of every candidate and of the answer against every source.

    Attributes:
        nodes: the candidates, whatever reads one before it. inputs: the answer's first, then theirs in that order.
        weights: ``[input, source]``, sources being the nodes, then the others. totals: ``[input]``, the sum over all
            that there is, candidates or not. norms: ``[input]``, the sum of its absolute values, biases left out.
            values: ``[input]``, what it came to in the model's own pass. n_biases: how many of the sources, at their
            end, are biases.
    """

    nodes: tuple[Firing | Head, ...]
    inputs: tuple[Input, ...]
    weights: Float[Tensor, "input source"]
    totals: Float[Tensor, " input"]
    norms: Float[Tensor, " input"]
    values: Float[Tensor, " input"]
    n_biases: int

    def node_of(self) -> list[int]:
        """Per input, its node: 0 for the answer, then the nodes from 1 on."""
        places = {node: place for place, node in enumerate(self.nodes, start=1)}
        return [0 if one.node is None else places[one.node] for one in self.inputs]

    def shares(self) -> Float[Tensor, "node source"]:
        """A: per node, the answer first, the share that each source has of all that it reads."""
        nodes = torch.tensor(self.node_of(), device=self.weights.device)
        counts = torch.bincount(nodes, minlength=len(self.nodes) + 1)
        scaled = self.weights.abs() / (self.norms * counts[nodes]).clamp_min(1e-300).unsqueeze(-1)
        found = torch.zeros(len(self.nodes) + 1, self.weights.shape[1], dtype=scaled.dtype, device=scaled.device)
        return found.index_add_(0, nodes, scaled)


def influence(shares: Float[Tensor, "node source"]) -> Float[Tensor, " source"]:
    """The answer's row of A + A² + …; nodes are the answer and the first sources, whatever reads one before it."""
    found = shares[0].clone()
    for place in range(len(shares) - 1):  # all that read a node stand before it
        found += found[place] * shares[place + 1]
    return found


def expand(
    frozen: FrozenPass,
    most: int,
    progress: Callable[[int, int], None] | None = None,
    given: Sequence[Firing] | None = None,
) -> tuple[list[Firing], dict[Input, float]]:
    """The firings of most influence, and the sum of absolute weights over all that each of their inputs reads.

    The answer is expanded first, then block by block the firings that have most influence on it by what has been
    expanded so far, or those that are ``given``. Whole rows of edges are made for one block at a time, and summed into
    one number a firing.
    """
    shape = frozen.model.n_layers, frozen.pos + 1, frozen.model.d_mlp
    found = torch.zeros(shape, dtype=frozen.dtype, device=frozen.answer.device)
    block, norms, taken = block_size(frozen.question), dict[Input, float](), list[int]()
    chosen: list[Firing] = []
    spread(frozen, [None], found, norms)
    while True:
        if progress is not None:
            progress(len(chosen), most)
        if given is None:
            ahead = found.flatten().clone()
            ahead[taken] = 0
            best = ahead.topk(min(block, most - len(chosen), ahead.numel()))
            places = best.indices[best.values > 0]
            taken += places.tolist()
            layers, positions, neurons = (one.tolist() for one in torch.unravel_index(places, shape))
            some = [Firing(*names) for names in zip(layers, neurons, positions, strict=True)]
        else:
            some = [*given[len(chosen) : len(chosen) + block]]
        if not some:
            return chosen, norms
        chosen += some
        spread(frozen, some, found, norms)


def block_size(question: PromptQuestion) -> int:
    """How many firings are expanded at once."""
    return max(FEWEST, min(MOST, int(AT_ONCE * weight_bytes(question.model) / row_bytes(question))))


def weight_bytes(model: Model) -> int:
    return sum(parameter.nbytes for parameter in model.hf_model.parameters())


def row_bytes(question: PromptQuestion) -> int:
    """What the edges from every firing into the inputs of one firing take."""
    model = question.model
    numbers = sum(model.widths) * len(question.tokens) * (2 if model.gated else 1)
    return numbers * torch.promote_types(model.dtype, torch.float32).itemsize


def check_memory(question: PromptQuestion, memory: float | None) -> None:
    """Raise InputError where a circuit would hold more than ``memory`` GiB at once.

    Counted are attention's patterns, twice, a block's rows, and three numbers a firing. Default: as much as the
    model's weights take, and at least ROOM.
    """
    model, size = question.model, torch.promote_types(question.model.dtype, torch.float32).itemsize
    patterns = model.n_layers * model.numbers.n_heads * len(question.tokens) ** 2 * size
    needed = (2 * patterns + (block_size(question) + 3) * row_bytes(question)) / GIB
    room = max(ROOM, weight_bytes(model) / GIB) if memory is None else check_number("memory", memory)
    if needed > room:
        raise InputError(
            f"a circuit of {len(question.tokens):,} tokens of {model.name} takes about {needed:.1f} GiB, and memory is "
            f"{room:.3g} GiB: shorten the prompt, or give more"
        )


def spread(
    frozen: FrozenPass,
    nodes: Sequence[Firing | None],
    found: Float[Tensor, "layer pos d_mlp"],
    norms: dict[Input, float],
) -> None:
    """Add to every firing's influence what it has through these nodes."""
    inputs = frozen.by_falling_layer(nodes)
    rows, others = frozen.rows(inputs)
    sums = others[:, : -frozen.n_biases].abs().sum(-1)
    for row in rows.values():
        row.abs_()
        sums[: len(row)] += row.sum((1, 2)).double()
    scales = torch.zeros(len(inputs), dtype=found.dtype, device=found.device)
    for place, one in enumerate(inputs):
        norms[one] = norm = float(sums[place])
        share, firing = 1.0, one.node
        if isinstance(firing, Firing):
            share = float(found[firing.layer, firing.position, firing.neuron])
            if firing.layer in rows:  # inputs above it, all of them before it
                through = rows[firing.layer][:, firing.position, firing.neuron]
                share += float(scales[: len(through)] @ through)
            share /= len(frozen.inputs(firing))
        scales[place] = share / norm if norm else 0.0
    for layer, row in rows.items():
        found[layer, :, : row.shape[-1]] += torch.tensordot(scales[: len(row)], row, 1)


def sort_by_layer(firings: Sequence[Firing]) -> list[Firing]:
    """Those of higher layers first."""
    return sorted(firings, key=lambda firing: (-firing.layer, firing.position, firing.neuron))


def graph(frozen: FrozenPass, chosen: Sequence[Firing], norms: dict[Input, float]) -> Graph:
    """All edges among the chosen firings and the other sources, made in blocks."""
    firings = sort_by_layer(chosen)
    inputs = frozen.by_falling_layer([None, *firings])
    parts = [frozen.edges(inputs[start : start + BLOCK], firings) for start in range(0, len(inputs), BLOCK)]
    weights = torch.cat([torch.cat([edges, others], dim=1) for edges, others, _ in parts])
    return Graph(
        nodes=tuple(firings),
        inputs=tuple(inputs),
        weights=weights.cpu(),
        totals=torch.cat([totals for *_, totals in parts]).cpu(),
        norms=torch.tensor([norms[one] for one in inputs], dtype=torch.float64),
        values=torch.tensor([frozen.value(one) for one in inputs], dtype=torch.float64),
        n_biases=frozen.n_biases,
    )


# -- pruning ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Pruning:
    """What pruning leaves of a graph.

    Attributes:
        nodes: which candidates. edges: ``[node, source]``, the answer's row first. influence: ``[source]``, of the
            whole graph.
    """

    nodes: Bool[Tensor, " candidate"]
    edges: Bool[Tensor, "node source"]
    influence: Float[Tensor, " source"]


def prune(
    shares: Float[Tensor, "node source"], node_threshold: float, edge_threshold: float, n_biases: int = 0
) -> Pruning:
    """The fewest nodes that have a share ``node_threshold`` of all candidates' influence, and among what is left the
    fewest edges that carry a share ``edge_threshold`` of the influence, and of the ``n_biases`` last sources those
    that are no smaller; then without nodes that nothing reads."""
    n = len(shares) - 1
    whole = influence(shares)
    kept = choose_fewest(whole[:n], node_threshold)
    left = shares.clone()
    left[1:][~kept] = 0
    left[:, :n][:, ~kept] = 0
    within = influence(left)
    carried = left * torch.cat([torch.ones(1, dtype=left.dtype), within[:n]]).unsqueeze(-1)
    some = carried[:, : carried.shape[1] - n_biases]
    edges = torch.zeros_like(carried, dtype=torch.bool)
    edges[:, : some.shape[1]] = choose_fewest(some.flatten(), edge_threshold).reshape(some.shape)
    if edges.any():
        edges[:, some.shape[1] :] = carried[:, some.shape[1] :] >= carried[edges].min()
    for place in range(n):  # whatever reads a node stands before it
        if not edges[: place + 1, place].any():
            edges[place + 1] = False
            kept[place] = False
    return Pruning(kept, edges, whole)


def choose_fewest(values: Float[Tensor, " n"], threshold: float) -> Bool[Tensor, " n"]:
    """Which of some shares are the largest ones that make up ``threshold`` of their sum; none that are 0."""
    order = values.argsort(descending=True, stable=True)
    before = values[order].cumsum(0) - values[order]
    found = torch.zeros_like(values, dtype=torch.bool)
    found[order] = (before < threshold * values.sum() * (1 - 1e-12)) & (values[order] > 0)
    return found
