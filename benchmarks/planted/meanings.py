"""Planted meanings: neurons that fire for one concept, for 2, 3, 4 or 8 unrelated ones in superposition, or never.

A concept is a set of words whose embeddings share a direction. There are more concepts than dimensions, so their
directions overlap. In layer 0 a feature is the concept of the word itself; above, after a head that looks one word
back, it may be the concept of the previous word, so that a neuron of one meaning fires on every kind of token. Keys are
solved for on the text itself, so that noise and interference stay what they are instead of being drawn by hand.

In a mixture of experts each concept has two experts that its words go to, and an expert's neurons are of its concepts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mixtures
import numpy as np
import pandas as pd
import skeleton as bare
import torch
from skeleton import Planted
from torch import Tensor

BOS = 0
PLANES = 12
POSITION = 0.5  # the size of a position embedding beside a concept's, which is 1
CARRIED = 0.8  # of the previous word, where a layer sees it
MEANINGS = (1, 2, 3, 4, 8)
SHARES = (0.4, 0.15, 0.12, 0.12, 0.11)  # of the neurons; the rest is dead
WEAKEST = 0.6  # of a neuron's features, against its strongest
SOLVED_ON = 12_000  # tokens
RARER = 0.5  # the exponent of the concepts' frequencies


@dataclass(frozen=True)
class PlannedMeanings:
    """What a neuron is made for: feature numbers and the coefficient that each should give, 0 to 1 of ``gain``."""

    features: tuple[int, ...]
    strengths: tuple[float, ...]
    gain: float
    floor: float
    written: tuple[int, ...]


def plant_meanings(
    *,
    seed: int = 0,
    n_features: int = 128,
    neurons: int = 192,
    superposition: float = 1.5,
    noise: float = 0.7,
    words: int = 8,
    n_layers: int = 2,
    n_tokens: int = 60_000,
    experts: int = 0,
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
        experts: of each layer, which share its neurons; 0 for a GPT-2, else a Mixtral in which the words of a concept
            go to two of the experts.

    The truth has layer, neuron, meanings (0 for dead), features by name, and of a mixture expert.
    """
    rng = np.random.default_rng([seed, 0])
    concepts = bare.stems(n_features, rng)
    vocabulary = [stem + ending for stem in concepts for ending in bare.SYLLABLES[:words]]
    tokenizer = bare.build_tokenizer(vocabulary)
    features = n_features * min(n_layers, 2)
    d_content = max(4, round(features / superposition))
    d_model = 1 + d_content + (experts or 2 * PLANES)
    if experts:
        d_model += -d_model % 8  # which fast implementations of experts ask for
    sizes = {"n_layers": n_layers, "d_model": d_model, "n_ctx": bare.CONTEXT}
    if experts:
        hf = mixtures.empty_mixtral(len(tokenizer), d_expert=neurons // experts, experts=experts, **sizes)
    else:
        hf = bare.empty_gpt2(len(tokenizer), d_mlp=neurons, **sizes)
    room = bare.Room(d_model, rng)
    content = room.take(d_content)
    clock = None if experts else bare.Clock(room.take(2 * PLANES), POSITION, rng)
    directions = bare.unit_rows(n_features, content, rng)
    own = noise * bare.unit_rows(len(vocabulary), content, rng)
    # BOS has content of its own: with none, the first word of a text would be read with its own alone, louder.
    special = torch.zeros(len(bare.SPECIAL), d_model)
    special[BOS] = (1 + noise**2) ** 0.5 * bare.unit_rows(1, content, rng)[0]
    embeddings = torch.cat([special, directions.repeat_interleave(words, 0) + own])
    groups, marks = mixtures.draw_groups(rng, n_features, experts), room.take(experts)
    if clock:
        bare.write_embeddings(hf, embeddings, clock.positions(bare.CONTEXT))
    else:
        embeddings[len(bare.SPECIAL) :] += (mixtures.GROUP * groups @ marks).repeat_interleave(words, 0)
        mixtures.write_tokens(hf, embeddings)
    text = Text(n_features, words, rng)
    documents, sample = text.documents(n_tokens), text.full_rows(SOLVED_ON)
    if n_layers > 1:
        see_previous(hf, clock, content, float((1 + noise**2 + POSITION**2) ** 0.5), rng)
    planned = [write_memories(hf, layer, sample, directions, words, (groups, marks), rng) for layer in range(n_layers)]
    texts = tuple(" ".join(vocabulary[i] for i in row) for row in documents)
    return Planted(bare.load(hf, tokenizer, f"planted-meanings-{seed}"), hf, truth(planned, concepts, experts), texts)


class Text:
    """Words drawn at random: concepts of unequal frequency, the words of a concept of equal."""

    def __init__(self, n_features: int, words: int, rng: np.random.Generator) -> None:
        weight = (1 + rng.permutation(n_features)) ** -RARER
        self.shares, self.words, self.rng = weight / weight.sum(), words, rng

    def draw(self, length: int) -> np.ndarray:
        """The numbers of some words in a row."""
        concepts = self.rng.choice(len(self.shares), length, p=self.shares)
        return concepts * self.words + self.rng.integers(0, self.words, length)

    def documents(self, n_tokens: int) -> list[np.ndarray]:
        """Documents of 10 to 50 words."""
        rows: list[np.ndarray] = []
        while n_tokens > 0:
            rows.append(self.draw(int(self.rng.integers(10, 51))))
            n_tokens -= len(rows[-1])
        return rows

    def full_rows(self, n_tokens: int) -> Tensor:
        """Token ids, BOS in front, that fill the context: what keys are solved on, so that every position counts."""
        rows = [self.draw(bare.CONTEXT - 1) + len(bare.SPECIAL) for _ in range(n_tokens // (bare.CONTEXT - 1))]
        return torch.tensor(np.array([[BOS, *row] for row in rows]))


def see_previous(hf: Any, clock: bare.Clock | None, content: Tensor, norm: float, rng: np.random.Generator) -> None:
    """A head in layer 1 that writes the previous word's content, turned, beside the word's own."""
    d_content, d_model = content.shape
    turn = torch.tensor(np.linalg.qr(rng.standard_normal((d_content, d_content)))[0])
    scale = d_model**0.5 / norm
    out = (CARRIED / scale) * turn @ content
    if clock is None:
        mixtures.write_look_back(hf, 1, content.T, out)
    else:
        bare.write_previous_token_head(hf, 1, clock, scale=scale, value=content.T, out=out)


def plan_layer(rng: np.random.Generator, neurons: int, n_concepts: int, inputs: np.ndarray) -> list[PlannedMeanings]:
    """What each neuron of a layer or an expert is for: meanings in fixed shares, in random order.

    Args:
        n_concepts: of which values write some. inputs: the features for which neurons may fire.
    """
    counts = np.repeat((*MEANINGS, 0), largest_remainders((*SHARES, 1 - sum(SHARES)), neurons))
    planned = []
    for meanings in rng.permutation(counts):
        features = rng.choice(inputs, meanings, replace=False)
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


def active(sample: Tensor, words: int, n_concepts: int) -> Tensor:
    """The features at each position behind BOS: the word's own concept, and the previous word's, or, last, BOS."""
    concept = torch.where(sample == BOS, n_concepts, (sample - len(bare.SPECIAL)) // words)
    return torch.stack([concept[:, 1:].flatten(), n_concepts + concept[:, :-1].flatten()], dim=1)


def strengths_of(neurons: Sequence[PlannedMeanings], n_features: int) -> Tensor:
    found = torch.zeros(len(neurons), n_features, dtype=torch.float64)
    for i, neuron in enumerate(neurons):
        found[i, list(neuron.features)] = torch.tensor(neuron.strengths, dtype=torch.float64)
    return found


def write_memories(
    hf: Any,
    layer: int,
    sample: Tensor,
    directions: Tensor,
    words: int,
    router: tuple[Tensor, Tensor],
    rng: np.random.Generator,
) -> list[PlannedMeanings]:
    """Plan and write the neurons of a layer; of a mixture, expert by expert, and the router.

    Args:
        router: the logits of each concept by group, and the groups' directions.
    """
    count = len(directions)
    x, seen = bare.ffn_inputs(hf, layer, sample)[:, 1:].flatten(0, 1), active(sample, words, count)
    own, previous = np.arange(count), np.arange(count if layer else 0) + count
    groups, marks = router
    if not len(marks):
        planned = plan_layer(rng, hf.config.n_inner, count, np.concatenate([own, previous]))
        solve_layer(hf, layer, planned, x, seen, directions)
        return planned
    order = rng.permutation(len(marks))  # a group has another expert in each layer
    logits, planned = groups[:, order], []
    goes = mixtures.write_router(hf, layer, marks[order], x, logits[seen[:, 0]])
    for expert, at_home in enumerate((logits > 0).T):
        part = plan_layer(rng, hf.config.intermediate_size, count, np.concatenate([own[at_home], previous]))
        meant = goes[:, expert] & at_home[seen[:, 0]]
        solve_layer(hf, layer, part, x[meant], seen[meant], directions, expert)
        planned += part
    return planned


def solve_layer(
    hf: Any,
    layer: int,
    neurons: Sequence[PlannedMeanings],
    x: Tensor,
    seen: Tensor,
    directions: Tensor,
    expert: int | None = None,
) -> None:
    """Keys whose pre-activation is gain · strength where a feature is there and −floor elsewhere, as far as that goes.

    A dead neuron's key is as large as the others', and its bias below anything that it meets. In an expert, gates do
    so, and keys give 1 where a feature is there and 0 elsewhere.

    Args:
        x: what the FFN reads, on which keys are solved. seen: the features there.
    """
    gain, floor = (torch.tensor([getattr(n, name) for n in neurons], dtype=torch.float64) for name in ("gain", "floor"))
    strength = strengths_of(neurons, len(directions) if layer == 0 else 2 * len(directions) + 1)
    seen = seen[:, : 1 if layer == 0 else 2]
    keys, bias = bare.solve_rows(x, seen, (gain[:, None] * strength + floor[:, None] * (strength > 0)).T)
    bias -= floor
    dead = torch.tensor([not n.features for n in neurons])
    some = keys[~dead].norm(dim=-1).mean() if bool((~dead).any()) else torch.tensor(1.0)
    drawn = torch.Generator().manual_seed(layer + len(bare.blocks(hf)) * (expert or 0))
    stray = torch.randn(len(neurons), x.shape[1], dtype=torch.float64, generator=drawn)
    stray -= stray.mean(-1, keepdim=True)
    keys[dead] = (some * stray / stray.norm(dim=-1, keepdim=True))[dead]
    bias[dead] = -1.5 * x.shape[1] ** 0.5 * some  # no input of norm √d_model can lift it above 0
    values = torch.stack([directions[list(n.written)].sum(0) for n in neurons])
    values /= 10 * values.norm(dim=-1, keepdim=True)
    if expert is None:
        bare.write_ffn(hf, layer, keys, bias, values)
        return
    bias[dead] -= mixtures.SHUT
    there, offset = bare.solve_rows(x, seen, (strength > 0).double().T)
    there[dead] = keys[dead]
    mixtures.write_expert(
        hf, layer, expert, mixtures.with_bias(keys, bias, x), mixtures.with_bias(there, offset, x), values
    )


def truth(planned: Sequence[Sequence[PlannedMeanings]], concepts: Sequence[str], experts: int) -> pd.DataFrame:
    """One row a neuron."""
    names, rows = [*concepts, *(f"after {concept}" for concept in concepts), "after BOS"], []
    for layer, neurons in enumerate(planned):
        for i, neuron in enumerate(neurons):
            row: dict[str, Any] = {"layer": layer, "neuron": i, "meanings": len(neuron.features)}
            row["features"] = ", ".join(names[f] for f in neuron.features)
            rows.append({**row, "expert": i * experts // len(neurons)} if experts else row)
    return pd.DataFrame(rows)
