"""Planted meanings: neurons that fire for one concept, for 2, 3, 4 or 8 unrelated ones in superposition, or never.

A concept is a set of words whose embeddings share a direction. There are more concepts than dimensions, so their
directions overlap. In layer 0 a feature is the concept of the word itself; above, after a head that looks one word
back, it may be the concept of the previous word, so that a neuron of one meaning fires on every kind of token. Keys are
solved for on the text itself, so that noise and interference stay what they are instead of being drawn by hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..core.errors import InputError
from ..core.types import Count, Seed, at_least, checked
from .planting import Planted, behind_bridge
from .skeleton import (
    SPECIAL,
    SYLLABLES,
    Clock,
    Room,
    build_tokenizer,
    empty_gpt2,
    ffn_inputs,
    mean_by,
    solve_keys,
    stems,
    unit_rows,
    write_embeddings,
    write_ffn,
    write_previous_token_head,
)

CONTEXT = 64
BOS = 0
PLANES = 12
WIDEST = 4096  # dimensions of content
POSITION = 0.5  # the size of a position embedding beside a concept's, which is 1
CARRIED = 0.8  # of the previous word, where a layer sees it
MEANINGS = (1, 2, 3, 4, 8)
SHARES = (0.4, 0.15, 0.12, 0.12, 0.11)  # of the neurons; the rest is dead
WEAKEST = 0.6  # of a neuron's features, against its strongest
SOLVED_ON = 12_000  # tokens
WITHIN = 1.0  # how much inputs' own variance counts against features' means when keys are solved for
RARER = 0.5  # the exponent of the concepts' frequencies


@dataclass(frozen=True)
class PlannedMeanings:
    """What a neuron is made for: feature numbers and the coefficient that each should give, 0 to 1 of ``gain``."""

    features: tuple[int, ...]
    strengths: tuple[float, ...]
    gain: float
    floor: float
    written: tuple[int, ...]


@checked
def plant_meanings(
    *,
    seed: Seed = 0,
    n_features: Annotated[int, at_least(max(MEANINGS))] = 128,
    neurons: Count = 192,
    superposition: float = 1.5,
    noise: float = 0.7,
    words: Annotated[int, at_least(2)] = 8,
    n_layers: Count = 2,
    n_tokens: Annotated[int, at_least(2000)] = 60_000,
) -> Planted:
    """A model of monosemantic, polysemantic and dead neurons.

    Args:
        seed: of everything.
        n_features: concepts, each a set of words; layers above the first know as many again of the previous word.
        neurons: per layer.
        superposition: features (concepts, twice where the previous word's count too) per dimension that they share.
        noise: how much of a word's embedding is its own, against its concept's (1).
        words: per concept.
        n_layers: each with the same mixture of neurons.
        n_tokens: about how long the corpus is.

    Returns:
        A :class:`Planted` whose truth has layer, neuron, meanings (0 for dead), verdict, features, strengths,
        written (the concepts that its value writes), and leak: the mean coefficient at the feature that it should not
        fire for and most does, as a share of that at its weakest planted one, on the text that keys were solved on.

    Raises: InputError.
    """
    if words > len(SYLLABLES):
        raise InputError(f"words must be at most {len(SYLLABLES)}, not {words}: so many endings there are")
    if not (0 < superposition < np.inf and 0 <= noise < np.inf):
        raise InputError(f"superposition must be above 0 and noise at least 0, not {superposition} and {noise}")
    rng = np.random.default_rng([seed, 0])
    concepts = stems(n_features, rng)
    vocabulary = [stem + ending for stem in concepts for ending in SYLLABLES[:words]]
    tokenizer = build_tokenizer(vocabulary)
    features = n_features * min(n_layers, 2)
    if features / superposition > WIDEST:
        raise InputError(
            f"superposition {superposition:g} of {features:,} features takes more than {WIDEST:,} dimensions: give a "
            "larger one, or fewer features"
        )
    d_content = max(4, round(features / superposition))
    d_model = 1 + d_content + 2 * PLANES
    hf = empty_gpt2(len(tokenizer), n_layers=n_layers, d_model=d_model, d_mlp=neurons, n_ctx=CONTEXT)
    room = Room(d_model, rng)
    content, clock = room.take(d_content), Clock(room.take(2 * PLANES), POSITION, rng)
    directions = unit_rows(n_features, content, rng)
    own = noise * unit_rows(len(vocabulary), content, rng)
    # BOS has content of its own: with none, the first word of a text would be read with its own alone, louder.
    special = torch.zeros(len(SPECIAL), d_model)
    special[BOS] = (1 + noise**2) ** 0.5 * unit_rows(1, content, rng)[0]
    embeddings = torch.cat([special, directions.repeat_interleave(words, 0) + own])
    write_embeddings(hf, embeddings, clock.positions(CONTEXT))
    text = Text(n_features, words, rng)
    documents, sample = text.documents(n_tokens), text.full_rows(SOLVED_ON)
    if n_layers > 1:
        see_previous(hf, clock, content, float((1 + noise**2 + POSITION**2) ** 0.5), rng)
    planned: list[list[PlannedMeanings]] = []
    for layer in range(n_layers):
        planned.append(plan_layer(rng, neurons, n_features, n_features * (1 if layer == 0 else 2)))
        solve_layer(hf, layer, planned[-1], sample, directions, words)
    model = behind_bridge(hf, tokenizer, f"planted-meanings-{seed}")
    settings = {
        "seed": seed, "n_features": n_features, "neurons": neurons, "superposition": superposition, "noise": noise,
        "words": words, "n_layers": n_layers, "n_tokens": n_tokens,
    }  # fmt: skip
    return Planted(
        kind="meanings",
        model=model,
        truth=truth(hf, planned, concepts, sample, words),
        texts=tuple(" ".join(vocabulary[i] for i in row) for row in documents),
        settings=settings,
        pristine=hf,
    )


class Text:
    """Words drawn at random: concepts of unequal frequency, the words of a concept of equal."""

    def __init__(self, n_features: int, words: int, rng: np.random.Generator) -> None:
        weight = (1 + rng.permutation(n_features)) ** -RARER
        self.shares, self.words, self.rng = weight / weight.sum(), words, rng

    def draw(self, length: int) -> Int[np.ndarray, " length"]:
        """The numbers of some words in a row."""
        concepts = self.rng.choice(len(self.shares), length, p=self.shares)
        return concepts * self.words + self.rng.integers(0, self.words, length)

    def documents(self, n_tokens: int) -> list[Int[np.ndarray, " length"]]:
        """Documents of 10 to 50 words."""
        rows: list[np.ndarray] = []
        while n_tokens > 0:
            rows.append(self.draw(int(self.rng.integers(10, 51))))
            n_tokens -= len(rows[-1])
        return rows

    def full_rows(self, n_tokens: int) -> Int[Tensor, "rows pos"]:
        """Token ids, BOS in front, that fill the context: what keys are solved on, so that every position counts."""
        rows = [self.draw(CONTEXT - 1) + len(SPECIAL) for _ in range(n_tokens // (CONTEXT - 1))]
        return torch.tensor(np.array([[BOS, *row] for row in rows]))


def see_previous(hf: Any, clock: Clock, content: Tensor, norm: float, rng: np.random.Generator) -> None:
    """A head in layer 1 that writes the previous word's content, turned, beside the word's own."""
    d_content, d_model = content.shape
    turn = torch.tensor(np.linalg.qr(rng.standard_normal((d_content, d_content)))[0])
    scale = d_model**0.5 / norm
    write_previous_token_head(hf, 1, clock, scale=scale, value=content.T, out=(CARRIED / scale) * turn @ content)


def plan_layer(rng: np.random.Generator, neurons: int, n_concepts: int, n_inputs: int) -> list[PlannedMeanings]:
    """What each neuron of a layer is for: meanings in fixed shares, in random order."""
    counts = np.repeat((*MEANINGS, 0), largest_remainders((*SHARES, 1 - sum(SHARES)), neurons))
    planned = []
    for meanings in rng.permutation(counts):
        features = rng.choice(n_inputs, meanings, replace=False)
        strengths = np.ones(meanings)
        strengths[1:] = rng.uniform(WEAKEST, 1.0, max(meanings - 1, 0))
        planned.append(
            PlannedMeanings(
                tuple(int(f) for f in features),
                tuple(float(s) for s in strengths),
                gain=float(rng.uniform(2.0, 4.0)),
                floor=float(rng.uniform(1.5, 2.5)),
                written=tuple(int(f) for f in rng.choice(n_concepts, max(int(meanings), 1), replace=False)),
            )
        )
    return planned


def largest_remainders(shares: Sequence[float], total: int) -> list[int]:
    """Whole numbers in given shares that sum to ``total`` (Hamilton's method)."""
    exact = np.array(shares) * total
    counts = np.floor(exact).astype(int)
    for i in np.argsort(counts - exact, kind="stable")[: total - int(counts.sum())]:
        counts[i] += 1
    return [int(c) for c in counts]


def active(sample: Int[Tensor, "rows pos"], words: int, n_concepts: int) -> Int[Tensor, "n 2"]:
    """The features at each position behind BOS: the word's own concept, and the previous word's, or, last, BOS."""
    concept = torch.where(sample == BOS, n_concepts, (sample - len(SPECIAL)) // words)
    return torch.stack([concept[:, 1:].flatten(), n_concepts + concept[:, :-1].flatten()], dim=1)


def strengths_of(neurons: Sequence[PlannedMeanings], n_features: int) -> Float[Tensor, "neurons features"]:
    found = torch.zeros(len(neurons), n_features, dtype=torch.float64)
    for i, neuron in enumerate(neurons):
        found[i, list(neuron.features)] = torch.tensor(neuron.strengths, dtype=torch.float64)
    return found


def solve_layer(
    hf: Any,
    layer: int,
    neurons: Sequence[PlannedMeanings],
    sample: Int[Tensor, "rows pos"],
    directions: Float[Tensor, "concepts d_model"],
    words: int,
) -> None:
    """Keys whose pre-activation is gain · strength where a feature is there and −floor elsewhere, as far as that goes.

    A dead neuron's key is as large as the others', and its bias below anything that it meets.
    """
    x = ffn_inputs(hf, layer, sample)[:, 1:].flatten(0, 1)
    seen = active(sample, words, len(directions))[:, : 1 if layer == 0 else 2]
    gain, floor = (torch.tensor([getattr(n, name) for n in neurons], dtype=torch.float64) for name in ("gain", "floor"))
    strength = strengths_of(neurons, 2 * len(directions) + 1)[:, : len(directions) if layer == 0 else None]
    centre = x.mean(0)
    means = mean_by(seen, x - centre, strength.shape[1])
    present = ~means.isnan().any(-1)
    scatter = ((x - centre).T @ (x - centre) / len(x)) * WITHIN
    targets = (gain[:, None] * strength + floor[:, None] * (strength > 0)).T
    keys = solve_keys(means[present], scatter, targets[present])
    bias = -floor - keys @ centre
    dead = torch.tensor([not n.features for n in neurons])
    some = keys[~dead].norm(dim=-1).mean() if bool((~dead).any()) else torch.tensor(1.0)
    stray = torch.randn(len(neurons), x.shape[1], dtype=torch.float64, generator=torch.Generator().manual_seed(layer))
    stray -= stray.mean(-1, keepdim=True)
    keys[dead] = (some * stray / stray.norm(dim=-1, keepdim=True))[dead]
    bias[dead] = -1.5 * x.shape[1] ** 0.5 * some  # no input of norm √d_model can lift it above 0
    values = torch.stack([directions[list(n.written)].sum(0) for n in neurons])
    values /= 10 * values.norm(dim=-1, keepdim=True)
    write_ffn(hf, layer, keys, bias, values)


@torch.no_grad()
def truth(
    hf: Any,
    planned: Sequence[Sequence[PlannedMeanings]],
    concepts: Sequence[str],
    sample: Int[Tensor, "rows pos"],
    words: int,
) -> pd.DataFrame:
    """One row a neuron, with what it was measured to do besides."""
    names = [*concepts, *(f"after {concept}" for concept in concepts), "after BOS"]
    features = active(sample, words, len(concepts))
    rows = []
    for layer, neurons in enumerate(planned):
        x = ffn_inputs(hf, layer, sample)[:, 1:].flatten(0, 1)
        mlp = hf.transformer.h[layer].mlp
        m = mlp.act(mlp.c_fc(x.float())).double()
        means = mean_by(features, m, len(names))
        strength = strengths_of(neurons, len(names))
        for i, neuron in enumerate(neurons):
            wanted = strength[i] > 0
            others = means[~wanted, i].nan_to_num(-1.0)
            weakest = float(means[wanted, i].min()) if neuron.features else float("nan")
            rows.append(
                {
                    "layer": layer,
                    "neuron": i,
                    "meanings": len(neuron.features),
                    "verdict": ("inactive", "monosemantic", "polysemantic")[min(len(neuron.features), 2)],
                    "features": ", ".join(names[f] for f in neuron.features),
                    "strengths": ", ".join(f"{s:.2f}" for s in neuron.strengths),
                    "written": ", ".join(concepts[f] for f in neuron.written),
                    "leak": max(float(others.max()), 0.0) / weakest if neuron.features else float("nan"),
                }
            )
    return pd.DataFrame(rows)
