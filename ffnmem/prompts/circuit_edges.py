"""The edges of a circuit: one prompt's pass with all but the FFNs linear, walked down from what its nodes read.

With attention patterns and norm scales as they were, what a neuron reads is an exact sum over the embeddings, the
biases and every firing below it, along all paths through attention. A walk carries the directions of a block of
inputs down through the layers at once; nothing of the size of all firings squared is ever made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..models.attention import FrozenAttention
from ..models.norms import at_least_float32
from ..models.residual import pulled_through
from .firings import PromptQuestion

Visit = Callable[[int, Float[Tensor, "active pos d_model"]], None]
"""Is given a layer, and the directions at its FFN's output of the inputs that stand above it."""


@dataclass(frozen=True)
class Firing:
    """A neuron at a position."""

    layer: int
    neuron: int
    position: int

    @property
    def name(self) -> str:
        """Its id in a circuit: ``"3.17@5"``."""
        return f"{self.layer}.{self.neuron}@{self.position}"


class Input(NamedTuple):
    """One thing that a node reads: a sum over all that stands below it. ``node``: None for the answer.

    ``name``: "pre" of a classic neuron, "gate" and "linear" of a gated one, "logit" of the answer.
    """

    node: Firing | None
    name: str


class FrozenPass:
    """The pass of one prompt up to a position, with its attention patterns and norm scales as they were.

    Attributes:
        attentions: of each layer. scales: ``[pos]`` of the norm in front of each FFN. parallel: whether an FFN reads
            what the attention beside it reads. logit: the model's own, of the target (minus the foil's), summed over
            the tokens that are read. answer: ``[n, d_model]``, the directions along which they are read.
    """

    def __init__(self, question: PromptQuestion) -> None:
        capture, model, row, pos = question.capture, question.model, question.row, question.position
        assert capture.residual is not None
        self.question, self.capture, self.model, self.row, self.pos = question, capture, model, row, pos
        self.span = slice(0, pos + 1)
        residual = capture.residual
        directions, constants, logits = question.reads()
        self.answer, self.constant, self.logit = directions, float(constants.sum()), float(logits.sum())
        self.attentions: list[FrozenAttention] = [one.with_graph() for one in question.attentions()]
        self.embedding = at_least_float32(residual.embedding[row, self.span])
        self.position = None if residual.position is None else at_least_float32(residual.position[row, self.span])
        self.parallel, self.scales = bool(model.numbers.parallel), []
        stream = self.embedding if self.position is None else self.embedding + self.position
        for layer in range(model.n_layers):
            after = stream + self.at(residual.attention[layer])
            norm, x = model.norm_before(layer), stream if self.parallel else after
            self.scales.append(torch.ones_like(x[:, 0]) if norm is None else norm.scale(x))
            written = capture.ffn_out[layer][row, self.span]
            with torch.no_grad():
                stream = after + at_least_float32(model.layout.through(model.layout.blocks[layer].post, written))

    def at(self, tensor: Float[Tensor, "batch pos width"]) -> Float[Tensor, "span width"]:
        """What this prompt's tokens have of it, up to the position."""
        return at_least_float32(tensor[self.row, self.span])

    @property
    def dtype(self) -> torch.dtype:
        return self.answer.dtype

    def coefficients(self, layer: int) -> Float[Tensor, "pos d_mlp"]:
        return self.at(self.capture.coefficients[layer])

    def coefficient(self, firing: Firing) -> float:
        return float(self.capture.coefficients[firing.layer][self.row, firing.position, firing.neuron])

    def inputs(self, firing: Firing | None) -> list[Input]:
        """What a node reads; None: the answer."""
        if firing is None:
            return [Input(None, "logit")]
        return [Input(firing, name) for name in (("gate", "linear") if self.model.gated else ("pre",))]

    def value(self, one: Input) -> float:
        """What an input came to in the model's own pass, which its edges must sum to."""
        if one.node is None:
            return self.logit
        held = self.capture.linear if one.name == "linear" else self.capture.pre
        return float(held[one.node.layer][self.row, one.node.position, one.node.neuron])

    def layer_of(self, one: Input) -> int:
        return self.model.n_layers if one.node is None else one.node.layer

    # -- the walk ------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def walk(self, inputs: Sequence[Input], visit: Visit) -> Float[Tensor, "input other"]:
        """Carry the directions of inputs, those of higher layers first, down to the embeddings.

        Returns what the sources that are no firings add, in float64: token embeddings by position, positions' where
        there are any, the input's own bias, and each layer's biases.
        """
        model, layers = self.model, [self.layer_of(one) for one in inputs]
        assert layers == sorted(layers, reverse=True)
        read, at, own = self.directions_read(inputs)
        directions = torch.zeros(len(read), self.pos + 1, model.d_model, dtype=self.dtype, device=read.device)
        directions[torch.arange(len(read)), at] = read
        for place, one in enumerate(inputs):
            if one.node is None:
                directions[place, list(self.question.answer.positions)] = self.answer
        biases = torch.zeros(len(read), model.n_layers, dtype=torch.float64, device=read.device)
        for layer in reversed(range(model.n_layers)):
            active = sum(one > layer for one in layers)
            if active:
                along = self.along_ffn(layer, directions[:active])
                visit(layer, along)
                bias = model.ffn[layer].value_bias
                if bias is not None:
                    biases[:active, layer] += (along.sum(1) @ at_least_float32(bias.detach())).double()
            if not self.parallel:
                active = sum(one >= layer for one in layers)
            if active:
                pulled, added = self.attentions[layer].pull(directions[:active])
                directions[:active] += pulled
                biases[:active, layer] += added.double()
        held = [self.embedding] if self.position is None else [self.embedding, self.position]
        return torch.cat([*((directions * one).sum(-1).double() for one in held), own.unsqueeze(-1), biases], dim=-1)

    def along_ffn(
        self, layer: int, directions: Float[Tensor, "active pos d_model"]
    ) -> Float[Tensor, "active pos d_model"]:
        """Directions of the residual stream as directions at a layer's FFN's output."""
        return pulled_through(self.model, layer, directions, self.capture.ffn_out[layer][self.row, self.span])

    def directions_read(
        self, inputs: Sequence[Input]
    ) -> tuple[Float[Tensor, "input d_model"], Int[Tensor, " input"], Float[Tensor, " input"]]:
        """The direction of the residual stream that each input reads, its position, and what biases add to it."""
        device, pos = self.answer.device, self.pos
        at = torch.tensor([pos if one.node is None else one.node.position for one in inputs], device=device)
        found = torch.zeros(len(inputs), self.model.d_model, dtype=self.dtype, device=device)
        own = torch.zeros(len(inputs), dtype=torch.float64, device=device)
        groups: dict[tuple[int, str], list[int]] = {}
        for place, one in enumerate(inputs):
            groups.setdefault((self.layer_of(one), one.name), []).append(place)
        for (layer, name), places in groups.items():
            if name == "logit":
                found[places], own[places] = self.answer[-1], self.constant
                continue
            ffn, norm = self.model.ffn[layer], self.model.norm_before(layer)
            keys, bias = (ffn.keys, ffn.key_bias) if name == "linear" else (ffn.activated, ffn.activated_bias)
            neurons = [node.neuron for place in places if isinstance(node := inputs[place].node, Firing)]
            directions = at_least_float32(keys.detach()[neurons])
            bias = None if bias is None else bias.detach()[neurons].double()
            if ffn.mixture is not None:
                x = self.capture.ffn_in[layer][self.row, at[places]]
                factors = ffn.mixture.factors(x).gather(1, torch.tensor(neurons, device=device).unsqueeze(1)).squeeze(1)
                which = int(name == "linear")
                slope, bias = ffn.mixture.line(which, (directions * x).sum(-1), factors, bias)
                directions = directions * slope.unsqueeze(-1).to(directions.dtype)
            if bias is not None:
                own[places] += bias.double()
            if norm is not None:
                own[places] += norm.constant(directions)
                directions = norm.pull(directions)
            found[places] = directions / self.scales[layer][at[places]].unsqueeze(-1)
        return found, at, own

    def edges(
        self, inputs: Sequence[Input], firings: Sequence[Firing]
    ) -> tuple[Float[Tensor, "input firing"], Float[Tensor, "input pos"], Float[Tensor, " input"]]:
        """What some firings add to inputs, what the embeddings at each position do, and the sum over all that there
        are.

        Inputs come by falling layer. In float64.
        """
        weights = torch.zeros(len(inputs), len(firings), dtype=torch.float64, device=self.answer.device)
        total = torch.zeros(len(inputs), dtype=torch.float64, device=self.answer.device)
        writes = self.writes(firings)

        def visit(layer: int, along: Tensor) -> None:
            active = len(along)
            out = self.coefficients(layer) @ at_least_float32(self.model.ffn[layer].values.detach())  # of all firings
            total[:active] += (along * out).sum(-1).double().sum(-1)
            if layer in writes:
                places, positions, written = writes[layer]
                for position in dict.fromkeys(positions):  # no copy of the directions for each firing
                    here = [i for i, p in enumerate(positions) if p == position]
                    weights[:active, [places[i] for i in here]] = (along[:, position] @ written[here].T).double()

        others = self.walk(inputs, visit)
        embedded = others[:, : -1 - self.model.n_layers].reshape(len(inputs), -1, self.pos + 1).sum(1)
        return weights, embedded, total + others.sum(-1)

    def writes(self, firings: Sequence[Firing]) -> dict[int, tuple[list[int], list[int], Float[Tensor, "n d_model"]]]:
        """By layer: which of the firings are there, where they fired, and what each wrote."""
        found = {}
        for layer in sorted({firing.layer for firing in firings}):
            places = [i for i, firing in enumerate(firings) if firing.layer == layer]
            at = [firings[i].position for i in places]
            neurons = [firings[i].neuron for i in places]
            m = self.coefficients(layer)[at, neurons].unsqueeze(-1)
            found[layer] = places, at, m * at_least_float32(self.model.ffn[layer].values.detach()[neurons])
        return found

    def by_falling_layer(self, nodes: Sequence[Firing | None]) -> list[Input]:
        """The inputs of nodes in the order that a walk takes them."""
        return sorted((one for node in nodes for one in self.inputs(node)), key=lambda one: -self.layer_of(one))
