"""A circuit's graph with attention layers or heads as nodes: edges run directly along the residual stream.

What reads a neuron or the answer is one direction at one position there, so its edges are exact as they stand. What a
head writes at a position is a vector, which each of its readers reads along a direction of its own. Its one number is
what it adds to all of them together, Σ_r ω_r · (what it adds to r), with ω_r the reader's influence over the sum of
absolute edges into it; what it reads is carried along that one direction, G = Σ_r ω_r · (direction of r), which all
heads at this place share.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..models.norms import at_least_float32
from ..models.residual import pull, pulled_through
from .circuit_edges import Firing, FrozenPass, Head, Input
from .circuit_pruning import Graph, sort_by_layer

AT_ONCE = 16  # sets of directions for which all that firings add is summed at once


class Reads(NamedTuple):
    """What nodes read, in float64.

    Attributes:
        firings: ``[node, firing]``. heads: ``[node, layer, head]`` at its own position of a neuron or the answer, and
            ``[node, layer, head, pos]`` of a head. others: ``[node, other]``. totals: ``[node]``, the sum over all that
            there is. norms: ``[node]``, the sum of its absolute values, biases left out.
    """

    firings: Float[Tensor, "node firing"]
    heads: Float[Tensor, "node layer head ..."]
    others: Float[Tensor, "node other"]
    totals: Float[Tensor, " node"]
    norms: Float[Tensor, " node"]


def graph_with_attention(frozen: FrozenPass, chosen: Sequence[Firing], most: int, heads: bool) -> Graph:
    """The graph of some firings and of at most ``most`` attention nodes, the most influential ones of each layer."""
    return Walk(frozen, sort_by_layer(chosen), heads).graph(most)


class Walk:
    """One way down through the layers: what reads a node stands above it, so its influence is known there.

    Attributes:
        inputs: of the answer and the firings. directions, at: ``[input, d_model]`` and the position, of each.
        writes: per layer ``[head, pos, d_model]``, what heads write. silent: per layer ``[pos, d_model]``, its
        output bias.
    """

    @torch.no_grad()
    def __init__(self, frozen: FrozenPass, firings: list[Firing], heads: bool) -> None:
        self.frozen, self.firings, self.heads = frozen, firings, heads
        self.model, self.n_layers = frozen.model, frozen.model.n_layers
        self.inputs = frozen.by_falling_layer([None, *firings])
        self.directions, self.at, self.own = frozen.directions_read(self.inputs)
        self.writes, self.silent = [], []
        for attention in frozen.attentions:
            silent = attention.only(None).writes()
            numbers = range(self.model.numbers.n_heads) if heads else (None,)
            parts = [(attention if head is None else attention.only(head)).writes() - silent for head in numbers]
            self.writes.append(torch.stack(parts))
            self.silent.append(silent)

    # -- what nodes read -----------------------------------------------------------------------------------------

    def read_directly(self) -> Reads:
        """What the inputs read, each at its own position."""
        layers = torch.tensor([self.frozen.layer_of(one) for one in self.inputs], device=self.at.device)
        beside = layers if self.frozen.parallel else layers + 1
        read = self.read(self.directions.unsqueeze(0), self.at, self.own, layers, beside)
        return read._replace(heads=read.heads[0].permute(2, 0, 1))

    def read_by_heads(
        self, layer: int, directions: Float[Tensor, "node pos d_model"], own: Float[Tensor, " node"]
    ) -> Reads:
        """What heads of a layer read, from the directions of the stream in front of it."""
        at = torch.arange(self.frozen.pos + 1, device=own.device)
        layers = torch.full_like(at, layer)
        return self.read(directions, at, own, layers, layers)

    @torch.no_grad()
    def read(
        self,
        directions: Float[Tensor, "set place d_model"],
        at: Int[Tensor, " place"],
        own: Float[Tensor, " node"],
        ffns: Int[Tensor, " place"],
        attentions: Int[Tensor, " place"],
    ) -> Reads:
        """What is read along directions at some positions: one node a set, or of a single set one node a place.

        Args:
            own: what a node's own biases add. ffns, attentions: a place reads those of the layers below this one.
        """
        frozen, n = self.frozen, len(own)
        like: dict[str, Any] = {"dtype": torch.float64, "device": own.device}
        names = frozen.other_names()
        column = {name: i for i, (name, *_) in enumerate(names)}
        firings, others = torch.zeros(n, len(self.firings), **like), torch.zeros(n, len(names), **like)
        heads = torch.zeros(len(directions), self.n_layers, len(self.writes[0]), len(at), **like)
        totals, norms = torch.zeros(n, **like), torch.zeros(n, **like)
        node = torch.arange(n, device=own.device).reshape(len(directions), -1).expand(-1, len(at))

        def add(to: Float[Tensor, " node"], values: Float[Tensor, "set place"], some: Any = slice(None)) -> None:
            to.index_add_(0, node[:, some].flatten(), values.flatten().double())

        for kind, held in (("embedding", frozen.embedding), ("position", frozen.position)):
            if held is not None:
                others[node, at + column[f"{kind}@0"]] = (directions * held[at]).sum(-1).double()
        others[:, column["bias"]] = own
        writes = frozen.writes(self.firings)
        for layer in range(min(self.n_layers, int(attentions.max()))):
            attention, ffn, bias = frozen.attentions[layer], self.model.ffn[layer], others[:, column[f"bias.{layer}"]]
            some = (attentions > layer).nonzero().squeeze(-1)
            along = pull(attention.post, attention.factor, directions[:, some], attention.written[at[some]])
            heads[:, layer, :, some] = torch.einsum("npd,hpd->nhp", along, self.writes[layer][:, at[some]]).double()
            add(bias, (along * self.silent[layer][at[some]]).sum(-1), some)
            some = (ffns > layer).nonzero().squeeze(-1)
            out, m = frozen.at(frozen.capture.ffn_out[layer])[at[some]], frozen.coefficients(layer)[at[some]]
            along = pulled_through(self.model, layer, directions[:, some], out)
            values = at_least_float32(ffn.values.detach())
            add(
                norms,
                torch.cat([(part @ values.T).mul_(m).abs_().sum(-1) for part in torch.split(along, AT_ONCE)]),
                some,
            )
            if ffn.value_bias is not None:
                shift = at_least_float32(ffn.value_bias.detach())
                out = out - shift
                add(bias, along @ shift, some)
            add(totals, (along * out).sum(-1), some)
            for firing, position, written in zip(*writes.get(layer, ([], [], [])), strict=True):
                here = at[some] == position
                add(firings[:, firing], along[:, here] @ written, some[here])
        add(totals, heads.sum((1, 2)))
        add(norms, heads.abs().sum((1, 2)))
        totals += others.sum(-1)
        norms += others[:, : -frozen.n_biases].abs().sum(-1)
        return Reads(firings, heads, others, totals, norms)

    # -- the graph -----------------------------------------------------------------------------------------------

    def graph(self, most: int) -> Graph:
        """All of it; at most ``most`` heads over all layers."""
        frozen, direct = self.frozen, self.read_directly()
        device = self.at.device
        influence = torch.zeros(len(self.firings), dtype=torch.float64, device=device)
        shape = self.n_layers, len(self.writes[0]), frozen.pos + 1
        every = torch.zeros(shape, dtype=torch.float64, device=device)  # of heads
        reading = torch.zeros(frozen.pos + 1, self.model.d_model, dtype=frozen.dtype, device=device)
        place_of = {firing: place for place, firing in enumerate(self.firings)}
        nodes: list[Firing | Head] = []
        heads: list[Head] = []
        reads, worth = [], []

        def spread(read: Reads, i: int, weight: float, at: Any, direction: Tensor) -> None:
            """What a node reads becomes more influential, and adds to the direction."""
            if float(read.norms[i]) > 0:
                weight /= float(read.norms[i])
                influence.add_(read.firings[i].abs(), alpha=weight)
                every[:, :, at] += weight * read.heads[i].abs()
                reading[at] += weight * direction

        def join(layer: int) -> None:
            """Let the inputs of a layer read."""
            for i, one in enumerate(self.inputs):
                if frozen.layer_of(one) == layer:
                    firing = one.node if isinstance(one.node, Firing) else None
                    weight = 1.0 if firing is None else float(influence[place_of[firing]]) / len(frozen.inputs(firing))
                    spread(direct, i, weight, self.at[i], self.directions[i])

        join(self.n_layers)
        for layer in reversed(range(self.n_layers)):
            own = [firing for firing in self.firings if firing.layer == layer]
            if not frozen.parallel:
                join(layer)
                nodes += own
            found = self.strongest(every[layer], layer, most)
            if found:
                values, directions, constants = self.directions_of(layer, found, reading)
                read = self.read_by_heads(layer, directions, constants)
                for i, head in enumerate(found):
                    weight = float(every[layer, head.head or 0, head.position])
                    spread(read, i, weight, slice(None), directions[i])
                reads.append(read)
                worth.append(values)
                heads += found
                nodes += found
            if frozen.parallel:
                join(layer)
                nodes += own
        places = [(head.layer, head.head or 0, head.position) for head in heads]
        layers, numbers, positions = torch.tensor(places, dtype=torch.long, device=device).reshape(-1, 3).T
        direct = direct._replace(heads=direct.heads[:, layers, numbers] * (self.at.unsqueeze(-1) == positions))
        tables = [direct, *(read._replace(heads=read.heads[:, layers, numbers, positions]) for read in reads)]
        whole = Reads(*map(torch.cat, zip(*tables, strict=True)))
        inputs = [*self.inputs, *(Input(head, "write") for head in heads)]
        order = {None: -1} | {node: i for i, node in enumerate(nodes)}
        lines = sorted(range(len(inputs)), key=lambda i: order[inputs[i].node])
        sources: list[Firing | Head] = [*self.firings, *heads]
        columns = sorted(range(len(nodes)), key=lambda i: order[sources[i]])
        own_values = torch.tensor([frozen.value(one) for one in self.inputs], dtype=torch.float64, device=device)
        weights = torch.cat([torch.cat([whole.firings, whole.heads], dim=1)[:, columns], whole.others], dim=1)
        return Graph(
            nodes=tuple(nodes),
            inputs=tuple(inputs[i] for i in lines),
            weights=weights[lines].cpu(),
            totals=whole.totals[lines].cpu(),
            norms=whole.norms[lines].cpu(),
            values=torch.cat([own_values, *worth])[lines].cpu(),
            n_biases=frozen.n_biases,
        )

    def strongest(self, influence: Float[Tensor, "head pos"], layer: int, most: int) -> list[Head]:
        """The heads of a layer that have most influence, as many as are this layer's part of all."""
        flat = influence.flatten()
        best = flat.topk(min(max(1, most // self.n_layers), flat.numel()))
        found = [divmod(place, influence.shape[1]) for place in best.indices[best.values > 0].tolist()]
        return [Head(layer, head if self.heads else None, position) for head, position in sorted(found)]

    def directions_of(
        self, layer: int, heads: Sequence[Head], reading: Float[Tensor, "pos d_model"]
    ) -> tuple[Float[Tensor, " node"], Float[Tensor, "node pos d_model"], Float[Tensor, " node"]]:
        """What heads add to their readers together, the directions of the stream in front that they do it by, and
        what their biases add."""
        attention = self.frozen.attentions[layer]
        along = pull(attention.post, attention.factor, reading, attention.written)
        values, directions, constants = [], [], []
        for number in dict.fromkeys(head.head for head in heads):
            at = torch.tensor([head.position for head in heads if head.head == number], device=reading.device)
            alone = torch.zeros(len(at), *reading.shape, dtype=reading.dtype, device=reading.device)
            alone[torch.arange(len(at)), at] = reading[at]
            one = attention if number is None else attention.only(number)
            pulled, constant = one.pull(alone)
            silent = (along[at] * self.silent[layer][at]).sum(-1)
            values.append((along[at] * self.writes[layer][number or 0][at]).sum(-1).double())
            directions.append(pulled)
            constants.append(constant.double() - silent.double())
        return torch.cat(values), torch.cat(directions), torch.cat(constants)
