"""Which neurons of two models fire alike: correlations of coefficients over a text, beside those of random neurons.

The object is the covariance of the coefficients of a layer of each model, ``[d_mlp, d_mlp]`` for a pair of layers. Sums
are float64, of coefficients less those of the first page on average, so that no digits are lost to large means.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor
from torch.nn import functional as F

from ..core.errors import InputError
from ..corpus.excerpts import Page
from ..models.answers import LOGITS
from ..models.norms import at_least_float32
from .sides import Side

FOUND = ("match_layer", "match_neuron", "correlation", "own_correlation", "baseline")
"""What is found of each neuron, in this order."""
TIED = 1e-9
"""Correlations nearer than that are equal: then the neuron's own place goes first, and its own layer."""
CONSTANT = 1e-12
"""Of its mean, the standard deviation below which a coefficient does not vary."""


def layer_pairs(first: int, second: int, reach: int | None) -> dict[int, tuple[int, ...]]:
    """For each layer of the second model those of the first in which its neurons are looked for, nearest first: at the
    same relative depth, up to ``reach`` away.

    Args:
        first, second: how many layers they have.
        reach: None for all layers.
    """
    pairs = {}
    for layer in range(second):
        at = layer if first == second else round(layer * (first - 1) / max(second - 1, 1))
        near = sorted(range(first), key=lambda other: (abs(other - at), other))
        pairs[layer] = tuple(other for other in near if reach is None or abs(other - at) <= reach)
    return pairs


def rotated(x: Float[Tensor, "n d"], signs: Float[Tensor, " d"]) -> Float[Tensor, "n d"]:
    """x R for an orthogonal R that mixes all d evenly: random signs, then a Hartley transform, in O(n d log d)."""
    found = torch.fft.fft(x * signs)
    return (found.real - found.imag) / sqrt(x.shape[1])


def random_signs(d: int, seed: Sequence[int]) -> Float[Tensor, " d"]:
    drawn = np.random.default_rng(list(seed)).integers(0, 2, d)
    return torch.from_numpy((2 * drawn - 1).astype(np.float32))


class PairSums:
    """Sums over the positions of a text of what two models' neurons do there.

    Args:
        first, second: each neuron of the second is looked for in the first.
        pairs: by layer of the second, the layers of the first.
        seed: of the rotations.

    Attributes:
        unsigned: whether both are gated, so that correlations count by their size.
        count: positions. predictions: sums of both losses and of KL; scored: predictions, and those that agree.
    """

    def __init__(self, first: Side, second: Side, pairs: Mapping[int, Sequence[int]], seed: int) -> None:
        self.first, self.second, self.pairs, self.seed = first, second, pairs, seed
        self.unsigned = first.model.gated and second.model.gated
        self.count, self.predictions, self.scored = 0, np.zeros(3), np.zeros(2, np.int64)
        self.wanted = sorted({other for others in pairs.values() for other in others})
        sums: dict[str, np.ndarray] = {}
        for layer in self.wanted:
            d = first.model.ffn[layer].d_mlp
            for name in ("a", "random"):
                sums[f"{name}.{layer}"] = np.zeros((3, d))  # what is taken off, sum, sum of squares
            sums[f"inner.{layer}"] = np.zeros((2, 2, d))  # of gates, of linear parts: mean and deviation
        for layer, others in pairs.items():
            d = second.model.ffn[layer].d_mlp
            sums[f"b.{layer}"] = np.zeros((3, d))
            for other in others:
                for name in ("real", "null"):
                    sums[f"{name}.{layer}.{other}"] = np.zeros((d, first.model.ffn[other].d_mlp))
        self.arrays = sums

    # -- a page --------------------------------------------------------------------------------------------------

    def take(self, page: Page) -> None:
        """Run both models over a page. Raises InputError where numbers are not finite, or a token has no embedding."""
        if not len(page.places):
            return
        if int(page.batch.tokens.max()) >= self.second.model.d_vocab:
            raise InputError(f"{self.second.title} has no embedding of token {int(page.batch.tokens.max())}")
        final: list[Tensor] = []
        kept: dict[int, Tensor] = {}
        self.new = not self.count

        def keep(layer: int, _pre: Tensor, coefficients: Tensor) -> None:
            kept[layer] = coefficients[places]  # in the model's own type: half of float64's room, or less
            self.shifted(f"b.{layer}", kept[layer])

        def multiply(layer: int, pre: Tensor, coefficients: Tensor) -> None:
            part = linear.pop(layer, None)
            if layer in self.wanted:
                own = self.shifted(f"a.{layer}", coefficients[places])
                null = self.random(layer, pre[places], None if part is None else part[places])
                for one, others in self.pairs.items():
                    if layer in others:
                        rows = self.centred(f"b.{one}", kept[one]).to(own.device)
                        add_product(self.arrays[f"real.{one}.{layer}"], rows, own)
                        add_product(self.arrays[f"null.{one}.{layer}"], rows.to(null.dtype), null)

        linear: dict[int, Tensor] = {}
        for side, hand in ((self.second, keep), (self.first, multiply)):
            places = torch.from_numpy(page.places).to(side.model.device)
            tokens = torch.from_numpy(page.batch.tokens).to(side.model.device)
            linear.clear()
            assert side.body is not None
            lengths = page.batch.lengths
            side.body.run(tokens, hand, lengths=lengths, on_linear=linear.__setitem__, on_final=final.append)
        self.count += len(page.places)
        self.compare_answers(page, final[1], final[0])
        for name, sums in self.arrays.items():
            if name.startswith(("a.", "b.", "random.")) and not np.isfinite(sums[2]).all():
                side = self.second if name.startswith("b.") else self.first
                raise InputError(f"coefficients of layer {name.split('.')[1]} of {side.title} are not finite")

    def shifted(self, name: str, x: Float[Tensor, "n d"]) -> Float64[Tensor, "n d"]:
        """Coefficients less what is taken off of them, in float64, counted."""
        held = torch.from_numpy(self.arrays[name])
        if self.new:
            held[0] = x.double().mean(0).cpu()
        wide = self.centred(name, x)
        held[1] += wide.sum(0).cpu()
        held[2] += wide.square().sum(0).cpu()
        return wide

    def centred(self, name: str, x: Float[Tensor, "n d"]) -> Float64[Tensor, "n d"]:
        return x.double() - torch.from_numpy(self.arrays[name][0]).to(x.device)

    def random(
        self, layer: int, pre: Float[Tensor, "n d"], linear: Float[Tensor, "n d"] | None
    ) -> Float[Tensor, "n d"]:
        """What the random neurons of the baseline do, less its mean, in at least float32."""
        fired = self.first.fired(
            layer, self.turned(layer, 0, pre), None if linear is None else self.turned(layer, 1, linear)
        )
        return self.shifted(f"random.{layer}", fired).float()

    def turned(self, layer: int, part: int, x: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        """Pre-activations, or linear parts, in units of their deviations from their means, rotated among each other."""
        wide, held = at_least_float32(x), torch.from_numpy(self.arrays[f"inner.{layer}"])
        if self.new:
            held[part, 0], held[part, 1] = wide.double().mean(0).cpu(), wide.double().std(0, correction=0).cpu()
        centre, length = (one.to(wide) for one in held[part])
        alike = (wide - centre) / torch.where(length > 0, length, 1.0)
        return rotated(alike, random_signs(x.shape[1], (self.seed, layer, part)).to(wide)) * length + centre

    def compare_answers(
        self, page: Page, one: Float[Tensor, "rows pos d_model"], other: Float[Tensor, "rows pos d_model"]
    ) -> None:
        """Add what both predict of the page's next tokens, a few positions at once."""
        first, second = self.first.model, self.second.model
        content = torch.from_numpy(page.mask.reshape(page.batch.tokens.shape))
        rows, at = content[:, 1:].nonzero(as_tuple=True)  # where the next token is content
        tokens, vocab = torch.from_numpy(page.batch.tokens), min(first.d_vocab, second.d_vocab)
        at_once = max(1, LOGITS // vocab)
        for start in range(0, len(rows), at_once):
            some, places = rows[start : start + at_once], at[start : start + at_once]
            with torch.inference_mode():
                logs = [
                    model.logits_of(final[some.to(final.device), places.to(final.device)])[:, :vocab]
                    for model, final in ((first, one), (second, other))
                ]
                p, q = (at_least_float32(found).log_softmax(-1).to(logs[0].device) for found in logs)
                due = tokens[some, places + 1].to(p.device)
                self.predictions += [
                    float(F.nll_loss(p, due, reduction="none").double().sum()),
                    float(F.nll_loss(q, due, reduction="none").double().sum()),
                    float((p.exp() * (p - q)).double().sum()),
                ]
                self.scored += [len(due), int((p.argmax(-1) == q.argmax(-1)).sum())]

    # -- what comes of it --------------------------------------------------------------------------------------------

    def matches(self, layer: int) -> Float64[np.ndarray, "d found"]:
        """FOUND of each neuron of a layer: the best match, its own place's, and that of the baseline. Its sums go."""
        d = self.second.model.ffn[layer].d_mlp
        found = np.full((d, len(FOUND)), np.nan)
        best, null = np.full(d, -np.inf), np.full(d, -np.inf)
        each = np.arange(d)
        for other in self.pairs[layer]:
            signed = self.correlations(layer, other, "real")
            sizes = np.abs(signed) if self.unsigned else signed
            filled = np.nan_to_num(sizes, nan=-np.inf)
            at = filled.argmax(1)
            if self.has_places(layer, other):
                found[:, 3] = np.diagonal(signed)
                at = np.where(np.diagonal(filled) >= filled[each, at] - TIED, each, at)
            better = filled[each, at] > best + TIED
            found[better, 0], found[better, 1] = other, at[better]
            found[better, 2] = signed[each, at][better]
            best = np.where(better, filled[each, at], best)
            random = self.correlations(layer, other, "null")
            random = np.abs(random, out=random) if self.unsigned else random
            null = np.maximum(null, np.nan_to_num(random, nan=-np.inf, copy=False).max(1))
        found[:, 4] = np.where(np.isfinite(null) & np.isfinite(best), null, np.nan)
        return found

    def has_places(self, layer: int, other: int) -> bool:
        """Whether a neuron has a place of its own in the other layer."""
        first, second = self.first.model, self.second.model
        a, b = first.ffn[other], second.ffn[layer]
        alike = (first.n_layers, a.d_mlp, a.expert_sizes) == (second.n_layers, b.d_mlp, b.expert_sizes)
        return layer == other and alike

    def correlations(self, layer: int, other: int, kind: str) -> Float64[np.ndarray, "d_b d_a"]:
        """Pearson's, made of the sums in their place; NaN where a coefficient does not vary."""
        count, found = self.count, self.arrays.pop(f"{kind}.{layer}.{other}")
        b, a = self.arrays[f"b.{layer}"], self.arrays[f"{'a' if kind == 'real' else 'random'}.{other}"]
        found -= np.outer(b[1], a[1] / count)
        for sums, shape in ((b, (-1, 1)), (a, (1, -1))):
            variance = sums[2] - sums[1] ** 2 / count
            varies = variance > count * (CONSTANT * sums[0]) ** 2
            found /= np.sqrt(np.where(varies, variance, np.nan)).reshape(shape)
        return np.clip(found, -1.0, 1.0, out=found)


def add_product(
    total: Float64[np.ndarray, "d_b d_a"], one: Float[Tensor, "n d_b"], other: Float[Tensor, "n d_a"]
) -> None:
    """Add oneᵀ·other in place."""
    into = torch.from_numpy(total)
    if one.dtype == into.dtype and one.device == into.device:
        into.addmm_(one.T, other)
    else:
        into += (one.T @ other).to(into.device)
