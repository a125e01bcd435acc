"""A circuit's graph with attention layers or heads as nodes: edges run directly along the residual stream.

What reads a neuron or the answer is one direction at one position there, so its edges are exact as they stand. What a
head writes at a position is a vector, which each of its readers reads along a direction of its own. Its one number is
what it adds to all of them together, Σ_r ω_r · (what it adds to r), with ω_r the reader's influence over the sum of
absolute edges into it; what it reads is carried along that one direction, G = Σ_r ω_r · (direction of r), which all
heads at this place share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..models.norms import at_least_float32
from ..models.residual import pull, pulled_through
from .circuit_edges import Firing, FrozenPass, Head, Input
from .circuit_pruning import BLOCK, Graph, by_layer

AT_ONCE = 16  # heads of a block where all that firings add to them is summed


def graph_with_attention(frozen: FrozenPass, chosen: Sequence[Firing], most: int, heads: bool) -> Graph:
    """The graph of some firings and of at most ``most`` attention nodes, the most influential ones of each layer."""
    return Walk(frozen, by_layer(chosen), heads).graph(most)


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
        self.names = frozen.other_names()
        nodes = [one.node for one in self.inputs]
        device = frozen.answer.device
        self.at = torch.tensor([frozen.pos if node is None else node.position for node in nodes], device=device)
        self.own = torch.zeros(len(nodes), dtype=torch.float64, device=device)
        self.directions = torch.zeros(len(nodes), self.model.d_model, dtype=frozen.dtype, device=device)
        for start in range(0, len(nodes), BLOCK):  # each stands at one position only
            some = slice(start, start + BLOCK)
            inputs, own, count = self.inputs[some], self.own[some], 0
            spread = torch.zeros(len(inputs), frozen.pos + 1, self.model.d_model, dtype=frozen.dtype, device=device)
            for layer in reversed(range(self.n_layers + 1)):
                count = frozen.join(layer, inputs, count, spread, own)
            self.directions[some] = spread[torch.arange(len(inputs)), self.at[some]]
        self.writes, self.silent = [], []
        for attention in frozen.attentions:
            silent = attention.only(None).writes()
            numbers = range(attention.n_heads) if heads else (None,)
            parts = [(attention if head is None else attention.only(head)).writes() - silent for head in numbers]
            self.writes.append(torch.stack(parts))
            self.silent.append(silent)

    def reads_attention(self, one: Input, layer: int) -> bool:
        """Whether an input stands above a layer's attention."""
        own = self.frozen.layer_of(one)
        return own > layer or (own == layer and not self.frozen.parallel)

    # -- what neurons and the answer read ------------------------------------------------------------------------

    @torch.no_grad()
    def read_directly(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Of each input: what firings, heads (``[input, layer, head]``) and the others add to it, the sum over all
        that there is, and that of its absolute values, biases left out. In float64."""
        frozen, n = self.frozen, len(self.inputs)
        like: dict[str, Any] = {"dtype": torch.float64, "device": self.own.device}
        firings, others = torch.zeros(n, len(self.firings), **like), torch.zeros(n, len(self.names), **like)
        heads = torch.zeros(n, self.n_layers, len(self.writes[0]), **like)
        total, norm = torch.zeros(n, **like), torch.zeros(n, **like)
        writes, column = frozen.writes(self.firings), {name: i for i, (name, *_) in enumerate(self.names)}
        rows = torch.arange(n, device=total.device)
        for kind, held in (("embedding", frozen.embedding), ("position", frozen.position)):
            if held is not None:
                others[rows, self.at + column[f"{kind}@0"]] = (self.directions * held[self.at]).sum(-1).double()
        others[:, column["bias"]] = self.own
        for layer in range(self.n_layers):
            bias = column[f"bias.{layer}"]
            some = [i for i, one in enumerate(self.inputs) if self.reads_attention(one, layer)]
            attention, at = frozen.attentions[layer], self.at[some]
            along = pull(attention.post, attention.factor, self.directions[some], attention.written[at])
            heads[some, layer] = torch.einsum("nd,hnd->nh", along, self.writes[layer][:, at]).double()
            others[some, bias] += (along * self.silent[layer][at]).sum(-1).double()
            some = [i for i, one in enumerate(self.inputs) if frozen.layer_of(one) > layer]
            at, ffn = self.at[some], self.model.ffn[layer]
            out = frozen.at(frozen.capture.ffn_out[layer])[at]
            along = pulled_through(self.model, layer, self.directions[some], out)
            m = frozen.coefficients(layer)[at] * (along @ at_least_float32(ffn.values.detach()).T)
            norm[some] += m.abs().sum(-1).double()
            if ffn.value_bias is not None:
                shift = at_least_float32(ffn.value_bias.detach())
                out = out - shift
                others[some, bias] += (along @ shift).double()
            total[some] += (along * out).sum(-1).double()
            for column_of, position, written in zip(*writes.get(layer, ([], [], [])), strict=True):
                where = (at == position).nonzero().squeeze(-1)
                firings[rows[some][where], column_of] = (along[where] @ written).double()
        total += others.sum(-1) + heads.sum((1, 2))
        norm += others[:, : -frozen.n_biases].abs().sum(-1) + heads.abs().sum((1, 2))
        return firings, heads, others, total, norm

    # -- what a head reads ---------------------------------------------------------------------------------------

    @torch.no_grad()
    def read_by_heads(
        self, layer: int, directions: Float[Tensor, "node pos d_model"], own: Float[Tensor, " node"]
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """The same of heads of a layer, from the directions of the stream in front of it; heads of lower layers
        ``[node, layer, head, pos]``."""
        frozen, n = self.frozen, len(directions)
        like: dict[str, Any] = {"dtype": torch.float64, "device": own.device}
        firings, others = torch.zeros(n, len(self.firings), **like), torch.zeros(n, len(self.names), **like)
        heads = torch.zeros(n, self.n_layers, len(self.writes[0]), frozen.pos + 1, **like)
        total, norm = torch.zeros(n, **like), torch.zeros(n, **like)
        writes, column = frozen.writes(self.firings), {name: i for i, (name, *_) in enumerate(self.names)}
        for kind, held in (("embedding", frozen.embedding), ("position", frozen.position)):
            if held is not None:
                first = column[f"{kind}@0"]
                others[:, first : first + frozen.pos + 1] = (directions * held).sum(-1).double()
        others[:, column["bias"]] = own
        for below in range(layer):
            attention, ffn, bias = frozen.attentions[below], self.model.ffn[below], column[f"bias.{below}"]
            along = pull(attention.post, attention.factor, directions, attention.written)
            heads[:, below] = torch.einsum("npd,hpd->nhp", along, self.writes[below]).double()
            others[:, bias] += (along * self.silent[below]).sum((1, 2)).double()
            along, out = frozen.along_ffn(below, directions), frozen.at(frozen.capture.ffn_out[below])
            values, m = at_least_float32(ffn.values.detach()), frozen.coefficients(below)
            for start in range(0, n, AT_ONCE):
                row = (along[start : start + AT_ONCE] @ values.T).mul_(m).abs_()
                norm[start : start + AT_ONCE] += row.sum((1, 2)).double()
            if ffn.value_bias is not None:
                shift = at_least_float32(ffn.value_bias.detach())
                out = out - shift
                others[:, bias] += (along @ shift).sum(-1).double()
            total += (along * out).sum((1, 2)).double()
            for column_of, position, written in zip(*writes.get(below, ([], [], [])), strict=True):
                firings[:, column_of] = (along[:, position] @ written).double()
        total += others.sum(-1) + heads.sum((1, 2, 3))
        norm += others[:, : -frozen.n_biases].abs().sum(-1) + heads.abs().sum((1, 2, 3))
        return firings, heads, others, total, norm

    # -- the graph -----------------------------------------------------------------------------------------------

    def graph(self, most: int) -> Graph:
        """All of it; at most ``most`` heads over all layers."""
        frozen, count = self.frozen, len(self.firings)
        to_firings, to_heads, others, totals, norms = self.read_directly()
        parts = {firing: len(frozen.inputs(firing)) for firing in self.firings}
        influence = torch.zeros(count, dtype=torch.float64, device=norms.device)
        every = torch.zeros(*self.writes[0].shape[:1], self.n_layers, frozen.pos + 1, dtype=torch.float64)
        every = every.transpose(0, 1).contiguous().to(norms.device)  # [layer, head, pos], of heads
        reading = torch.zeros(frozen.pos + 1, self.model.d_model, dtype=frozen.dtype, device=norms.device)
        place_of = {firing: place for place, firing in enumerate(self.firings)}
        nodes: list[Firing | Head] = []
        rows: dict[Head, tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]] = {}

        def join(layer: int) -> None:
            """Let the inputs of a layer read: what they read becomes more influential, and adds to the direction."""
            for i, one in enumerate(self.inputs):
                if frozen.layer_of(one) != layer or float(norms[i]) == 0:
                    continue
                weight = 1.0
                if isinstance(one.node, Firing):
                    weight = float(influence[place_of[one.node]]) / parts[one.node]
                weight /= float(norms[i])
                influence.add_(to_firings[i].abs(), alpha=weight)
                every[:, :, self.at[i]] += weight * to_heads[i].abs()
                reading[self.at[i]] += weight * self.directions[i]

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
                    firings, heads, rest, total, norm = (part[i] for part in read)
                    rows[head] = firings, heads, rest, total, norm, values[i]
                    if float(norm) > 0:
                        weight = float(every[layer, head.head or 0, head.position]) / float(norm)
                        influence.add_(firings.abs(), alpha=weight)
                        every.add_(heads.abs(), alpha=weight)
                        reading.add_(directions[i], alpha=weight)
                nodes += found
            if frozen.parallel:
                join(layer)
                nodes += own
        return self.assembled(nodes, rows, (to_firings, to_heads, others, totals, norms))

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

    def assembled(
        self, nodes: list[Firing | Head], rows: Mapping[Head, tuple[Tensor, ...]], direct: tuple[Tensor, ...]
    ) -> Graph:
        """One table of all edges."""
        to_firings, to_heads, others, totals, norms = direct
        heads = list(rows)
        at = {
            "layer": torch.tensor([head.layer for head in heads], dtype=torch.long),
            "head": torch.tensor([head.head or 0 for head in heads], dtype=torch.long),
            "position": torch.tensor([head.position for head in heads], dtype=torch.long),
        }
        same = self.at.unsqueeze(-1) == at["position"].to(self.at.device)
        read = to_heads[:, at["layer"], at["head"]] * same
        tables = [torch.cat([to_firings, read, others], dim=1)]
        for firings, lower, rest, *_ in rows.values():
            tables.append(torch.cat([firings, lower[at["layer"], at["head"], at["position"]], rest]).unsqueeze(0))
        inputs = [*self.inputs, *(Input(head, "write") for head in heads)]
        place = {node: i for i, node in enumerate([*self.firings, *heads])}
        order = {node: i for i, node in enumerate(nodes)}
        columns = [place[node] for node in nodes]
        columns += range(len(place), len(place) + len(self.names))
        lines = sorted(range(len(inputs)), key=lambda i: -1 if (node := inputs[i].node) is None else order[node])
        stacked = [torch.stack([row[k] for row in rows.values()]) if rows else totals[:0] for k in (3, 4, 5)]
        own = torch.tensor([self.frozen.value(one) for one in self.inputs], dtype=torch.float64)
        return Graph(
            nodes=tuple(nodes),
            inputs=tuple(inputs[i] for i in lines),
            weights=torch.cat(tables).cpu()[lines][:, columns],
            totals=torch.cat([totals, stacked[0]]).cpu()[lines],
            norms=torch.cat([norms, stacked[1]]).cpu()[lines],
            values=torch.cat([own, stacked[2].cpu()])[lines],
            n_biases=self.frozen.n_biases,
        )
