"""Planted roles: neurons that predict, suppress, split the vocabulary, set the entropy, tell positions or tokens.

A role that shows in what a neuron writes has a value of its kind and a key that fires for no clear reason; a role that
shows in when it fires has a key of its kind and a value that says nothing clear. Nothing is taken from the rules that
find roles; only sizes are chosen so that the published thresholds, made for GPT-2, can tell roles from chance: a random
value's cosines with the vocabulary have the variance 1/d_model, which must lie well below the .005 of a partition
neuron, and be so small that two or three tokens among a thousand make the kurtosis of a prediction neuron, above 10.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import skeleton as bare
import torch
from skeleton import Planted
from torch import Tensor

D_MODEL = 384  # 1/384 = .0026
HEADS = 4
UNREAD = D_MODEL // 64  # as many near-null directions of W_U as Stolfo et al. count in GPT-2 small, for its width
POSITION = 0.3  # the size of a position embedding beside a word's, which is 1
ATTENTION = 0.2  # the size of what attention adds, about
SMALL, LARGE = (0.03, 0.05), (0.15, 0.2)  # lengths of values, of entropy neurons'
RATES = (0.1, 0.5)  # of words, for which a neuron without a role of its key fires
FALSE = 0.9995  # of the text that is not a detector's, below where it fires
MARGIN, REDRAWS = 0.5, 20  # of the pre-activation, between a detector's words and the rest; draws of noise to get it
ROUNDS = 8  # times that each word occurs in what keys are solved on

# A vocabulary whose embeddings say how frequent a word is and what letters it has, and text drawn from it.
#
# Every word has a direction of its own. Besides, all share one direction on which log-frequency lies, and one for each
# attribute, a split of the words in two by one of their letters. A few directions of the residual stream hold next to
# nothing of any word, so that no unembedding row reads what is written there.

ATTRIBUTE = 0.022  # of an embedding's square, on the direction of each attribute
FREQUENT = 0.003  # of an embedding's square, on the direction of log-frequency
WAVES, WEAKER = 10, 0.5  # directions kept for positions, and what an embedding has there, against one of its own
FAINT = 0.05  # what an embedding has on an unread direction, against one of its own
FLATTER = 10  # of the Zipf–Mandelbrot law 1/(rank + 10): no word makes up more than some 2% of the text
SHORTEST = 40  # words of a document; the longest fill the context


@dataclass(frozen=True, eq=False)
class Lexicon:
    """Words, their text and their embeddings. Made by :func:`draw_lexicon`.

    Attributes:
        words: with token ids from ``len(SPECIAL)`` on.
        rows: the text, documents as word numbers. counts: how often each word occurs there.
        embeddings: of all tokens, special ones too; nearly of length 1. own: the part that each shares with no other.
        attributes, frequency, unread, waves: directions, orthonormal; the last are for positions.
    """

    words: tuple[str, ...]
    rows: list[np.ndarray]
    counts: np.ndarray
    embeddings: Tensor
    own: Tensor
    attributes: Tensor
    frequency: Tensor
    unread: Tensor
    waves: Tensor


def draw_lexicon(rng: np.random.Generator, *, n_words: int, n_tokens: int) -> Lexicon:
    """So many words, about so long a text, and embeddings."""
    words = bare.stems(n_words, rng)
    rows = draw_text(rng, n_words, n_tokens)
    counts = np.bincount(np.concatenate(rows), minlength=n_words)
    signs = split_words(words, rng)
    room = bare.Room(D_MODEL, rng)
    attributes, frequency, faint = room.take(len(signs)), room.take(1)[0], room.take(UNREAD)
    waves = room.take(WAVES)
    kept = torch.cat([WEAKER * waves, room.take(len(room.free))])
    vocabulary = len(bare.SPECIAL) + n_words
    own = (1 - ATTRIBUTE * len(signs) - FREQUENT) ** 0.5 * bare.unit_rows(vocabulary, kept, rng)
    rare = np.log1p(np.concatenate([np.zeros(len(bare.SPECIAL)), counts]))
    rare = FREQUENT**0.5 * (rare - rare.mean()) / rare.std()
    sides = np.concatenate([np.zeros((len(signs), len(bare.SPECIAL))), signs], axis=1)
    traces = FAINT * len(kept) ** -0.5 * rng.standard_normal((vocabulary, UNREAD))
    shared = torch.tensor(ATTRIBUTE**0.5 * sides.T) @ attributes + torch.outer(torch.tensor(rare), frequency)
    embeddings = own + shared + torch.tensor(traces) @ faint
    return Lexicon(tuple(words), rows, counts, embeddings, own, attributes, frequency, faint, waves)


def draw_text(rng: np.random.Generator, n_words: int, n_tokens: int) -> list[np.ndarray]:
    """Documents that ``SHORTEST`` words or more make, up to the context; word 0 is the most frequent."""
    weight = 1 / (1 + np.arange(n_words) + FLATTER)
    weight /= weight.sum()
    rows = []
    left = n_tokens
    while left > 0:
        length = int(rng.integers(SHORTEST, bare.CONTEXT))
        rows.append(rng.choice(n_words, length, p=weight))
        left -= length
    return rows


def split_words(words: list[str], rng: np.random.Generator) -> np.ndarray:
    """Four splits of words in two halves, +1 and −1: by which consonant or vowel is their 1st, 2nd, 3rd, 4th letter."""
    signs = []
    for place, letters in enumerate((bare.CONSONANTS, bare.VOWELS) * 2):
        side = rng.choice(list(letters), len(letters) // 2, replace=False)
        signs.append([1.0 if word[place] in side else -1.0 for word in words])
    return np.array(signs)


def even_rows(rng: np.random.Generator, n_words: int, rounds: int, longest: int) -> Tensor:
    """Token ids, BOS in front, in which every word occurs about ``rounds`` times whatever its frequency in the text."""
    line = np.concatenate([rng.permutation(n_words) for _ in range(rounds)]) + len(bare.SPECIAL)
    line = line[: len(line) // longest * longest].reshape(-1, longest)
    return torch.tensor(np.concatenate([np.zeros((len(line), 1), dtype=np.int64), line], axis=1))


# The plan of planted roles: what each neuron of a layer is for, drawn at random, and the truth that says so.

ROLES = ("prediction", "suppression", "partition", "entropy", "position", "frequency", "detector", "dead", "none")
TURNED = ("prediction", "suppression", "partition", "frequency", "dead", "none")  # whose key may lie along ± the value
ALONG = (0.65, 0.95)  # cosine of key and value of neurons that write along or against what they read, before noise
SEEN = 25  # times at least that a detector's tokens occur in the text
GAINS = (2.0, 3.0)  # pre-activation of detectors and position neurons where they fire, and below 0 elsewhere


@dataclass(frozen=True, eq=False)
class PlannedRole:
    """What a neuron is made for, which is the truth about it.

    Attributes:
        role: as the truth has it.
        writes: its value points there, or away from there (``sign`` −1); None: in a random direction.
        words, span: for which a detector fires; the first and last position of a position neuron.
        cosine: of its key with its value.
        gain: the pre-activation of a detector or position neuron where it fires, and −``gain`` is that elsewhere.
    """

    role: str
    writes: Tensor | None = None
    words: tuple[int, ...] = ()
    sign: int = 1
    span: tuple[int, int] = (0, 0)
    cosine: float = 0.0
    gain: float = 0.0


def plan_layer(
    rng: np.random.Generator, neurons: int, per_role: int, lexicon: Lexicon, *, last: bool
) -> list[PlannedRole]:
    """What each neuron of a layer is for, in random order."""
    roles = [role for role in ROLES[:-1] if last or role != "entropy"] * per_role
    roles += ["none"] * (neurons - len(roles))
    planned = [plan_neuron(rng, roles[i], n, lexicon) for n, i in enumerate(rng.permutation(neurons))]
    turned = rng.permutation([i for i, neuron in enumerate(planned) if neuron.role in TURNED])
    for n, i in enumerate(turned[: 2 * per_role]):
        planned[i] = replace(planned[i], cosine=float(rng.uniform(*ALONG)) * (-1) ** n)
    return planned


def plan_neuron(rng: np.random.Generator, role: str, n: int, lexicon: Lexicon) -> PlannedRole:
    """The words, the attribute, the direction or the positions of a role."""
    sign = (-1) ** n
    if role in ("prediction", "suppression"):
        words = rng.choice(len(lexicon.words), int(rng.integers(2, 4)), replace=False)
        # Of what tells the words from others; what they share with half of the vocabulary would move that too.
        return PlannedRole(role, lexicon.own[words + len(bare.SPECIAL)].sum(0), sign=1 if role == "prediction" else -1)
    if role == "detector":
        common = np.flatnonzero(lexicon.counts >= SEEN)
        words = rng.choice(common, int(rng.integers(1, 6)), replace=False).tolist()
        return PlannedRole(role, words=tuple(words), gain=float(rng.uniform(*GAINS)))
    if role == "partition":
        return PlannedRole(role, lexicon.attributes[int(rng.integers(len(lexicon.attributes)))], sign=sign)
    if role == "entropy":
        return PlannedRole(role, lexicon.unread[int(rng.integers(len(lexicon.unread)))], sign=sign)
    if role == "frequency":
        return PlannedRole(role, lexicon.frequency, sign=sign)
    if role == "position":
        length, start = int(rng.integers(14, 33)), int(rng.integers(-6, 36))
        span = (max(start, 1), min(start + length, bare.CONTEXT - 1))
        return PlannedRole(role, span=span, gain=float(rng.uniform(*GAINS)))
    return PlannedRole(role, sign=sign)


def plant_roles(
    *,
    seed: int = 0,
    n_layers: int = 3,
    neurons: int = 256,
    per_role: int = 12,
    noise: float = 0.3,
    n_words: int = 1000,
    n_tokens: int = 60_000,
) -> Planted:
    """A model of neurons with known roles, 384 wide.

    Args:
        seed: of everything.
        n_layers: how many; all hold every role, but entropy neurons are in the last one only.
        neurons: per layer. per_role: how many of them have each role; the rest has none. As many keys lie along, and
            against, their values.
        noise: on keys and values, Gaussian, its length against theirs; drawn again (up to 20 times) for a detector that
            it would leave unable to tell its tokens.
        n_words: of the vocabulary, 768 to 2000: with fewer, W_U has a near-null space that nobody planted; with more,
            two tokens are too few for a kurtosis above 10.
        n_tokens: about how long the corpus is, 20 a word at least; words' frequencies follow Zipf's law.

    The truth has layer, neuron and role: one of :data:`ROLES`.
    """
    rng = np.random.default_rng([seed, 2])
    lexicon = draw_lexicon(rng, n_words=n_words, n_tokens=n_tokens)
    tokenizer = bare.build_tokenizer(lexicon.words)
    hf = bare.empty_gpt2(
        len(tokenizer), n_layers=n_layers, d_model=D_MODEL, d_mlp=neurons, n_ctx=bare.CONTEXT, n_heads=HEADS
    )
    bare.write_embeddings(hf, lexicon.embeddings, waves(lexicon))
    sample = even_rows(rng, n_words, ROUNDS, bare.CONTEXT - 1)
    planned = []
    for layer in range(n_layers):
        planned.append(plan_layer(rng, neurons, per_role, lexicon, last=layer == n_layers - 1))
        mix_positions(hf, layer, rng)
        write_layer(hf, layer, planned[-1], sample, noise, rng)
    truth = [
        {"layer": layer, "neuron": i, "role": neuron.role}
        for layer, roles in enumerate(planned)
        for i, neuron in enumerate(roles)
    ]
    texts = tuple(" ".join(lexicon.words[i] for i in row) for row in lexicon.rows)
    return Planted(bare.load(hf, tokenizer, f"planted-roles-{seed}"), hf, pd.DataFrame(truth), texts)


def waves(lexicon: Lexicon) -> Tensor:
    """Position embeddings: slow cosines, on directions that words use less than others, as in trained models."""
    n = len(lexicon.waves)
    at = (torch.arange(bare.CONTEXT, dtype=torch.float64) + 0.5) / bare.CONTEXT
    angles = torch.outer(at, torch.arange(1, n + 1, dtype=torch.float64)) * torch.pi
    return POSITION * (2 / n) ** 0.5 * angles.cos() @ lexicon.waves


def mix_positions(hf: Any, layer: int, rng: np.random.Generator) -> None:
    """Random attention heads: a little of the words before, in random directions, as the keys above have to bear."""
    width = D_MODEL // HEADS
    for head in range(HEADS):
        query, key, value = (torch.tensor(rng.standard_normal((D_MODEL, width))) / D_MODEL**0.5 for _ in range(3))
        out = torch.tensor(rng.standard_normal((width, D_MODEL))) * ATTENTION / D_MODEL
        bare.write_head(hf, layer, query=query, key=key, value=value, out=out, head=head)


# -- weights ---------------------------------------------------------------------------------------------------------


def write_layer(
    hf: Any,
    layer: int,
    planned: Sequence[PlannedRole],
    sample: Tensor,
    noise: float,
    rng: np.random.Generator,
) -> None:
    """One layer's keys, biases and values, solved on what it reads with the layers below in place, then made noisy."""
    x, words = bare.ffn_inputs(hf, layer, sample)[:, 1:], sample[:, 1:] - len(bare.SPECIAL)
    written = [random_rows(1, rng)[0] if neuron.writes is None else neuron.writes for neuron in planned]
    values = torch.stack([one.sign * way / way.norm() for one, way in zip(planned, written, strict=True)])
    clean = draw_keys(planned, values, x, words, rng)
    x, words = x.flatten(0, 1), words.flatten()
    keys = noisy_keys(planned, clean, x, words, noise, rng)
    bias = draw_biases(planned, keys, x, words, rng)
    lengths = [rng.uniform(*(LARGE if neuron.role == "entropy" else SMALL)) for neuron in planned]
    bare.write_ffn(hf, layer, keys, bias, with_noise(torch.tensor(lengths)[:, None] * values, noise, rng))


def with_noise(rows: Tensor, noise: float, rng: np.random.Generator) -> Tensor:
    return rows + noise * rows.norm(dim=-1, keepdim=True) * random_rows(len(rows), rng)


def random_rows(count: int, rng: np.random.Generator) -> Tensor:
    """Vectors of length 1 in all directions that a norm does not remove."""
    found = torch.tensor(rng.standard_normal((count, D_MODEL)))
    found -= found.mean(-1, keepdim=True)
    return found / found.norm(dim=-1, keepdim=True)


def draw_keys(
    planned: Sequence[PlannedRole],
    values: Tensor,
    x: Tensor,
    words: Tensor,
    rng: np.random.Generator,
) -> Tensor:
    """Keys of detectors and position neurons are solved for; others are random, at their cosine with the value."""
    cosine = torch.tensor([[neuron.cosine] for neuron in planned])
    aside = random_rows(len(planned), rng)
    aside -= (aside * values).sum(-1, keepdim=True) * values
    keys = cosine * values + (1 - cosine**2).sqrt() * aside / aside.norm(dim=-1, keepdim=True)
    keys *= torch.tensor(rng.uniform(0.7, 1.5, (len(planned), 1)))  # inputs have the length √d_model
    told = told_apart(x)
    keys -= keys @ told.T @ told
    spread = x.flatten(0, 1) - x.flatten(0, 1).mean(0)
    scatter = spread.T @ spread / len(spread)
    places = torch.arange(words.shape[1]).expand(len(words), -1)
    for role, groups, count in (
        ("detector", words, int(words.max()) + 1),
        ("position", places, words.shape[1]),
    ):
        chosen = [i for i, neuron in enumerate(planned) if neuron.role == role]
        targets = torch.zeros(count, len(chosen), dtype=torch.float64)
        for column, i in enumerate(chosen):
            first, end = planned[i].span
            targets[list(planned[i].words) if role == "detector" else slice(first - 1, end), column] = (
                2 * planned[i].gain
            )
        means = bare.mean_by(groups.reshape(-1, 1), spread, count)
        keys[chosen] = bare.solve_keys(means, scatter, targets)
    return keys


def told_apart(x: Tensor) -> Tensor:
    """The directions by which inputs at different positions differ on average, orthonormal.

    A key that reads them tells positions, so one that is not planted to must not.
    """
    means = x.mean(0)
    return torch.linalg.svd(means - means.mean(0), full_matrices=False)[2][:WAVES]


def noisy_keys(
    planned: Sequence[PlannedRole],
    clean: Tensor,
    x: Tensor,
    words: Tensor,
    noise: float,
    rng: np.random.Generator,
) -> Tensor:
    """Keys with noise, drawn again for detectors that it leaves unable to tell their words: they would be none."""
    keys = with_noise(clean, noise, rng)
    left = [i for i, neuron in enumerate(planned) if neuron.role == "detector"]
    for _ in range(REDRAWS):
        raw = x @ keys[left].T
        ends = [weakest_and_rest(planned[i], raw[:, column], words) for column, i in enumerate(left)]
        left = [i for i, (weakest, rest) in zip(left, ends, strict=True) if weakest - rest < MARGIN]
        if not left:
            break
        keys[left] = with_noise(clean[left], noise, rng)
    return keys


def weakest_and_rest(neuron: PlannedRole, raw: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
    """Where a detector's weakest word is at its weakest, and where ``FALSE`` of all else is below."""
    own = torch.isin(words, torch.tensor(neuron.words))
    return raw[own].min(), raw[~own].quantile(FALSE)


def draw_biases(
    planned: Sequence[PlannedRole],
    keys: Tensor,
    x: Tensor,
    words: Tensor,
    rng: np.random.Generator,
) -> Tensor:
    """Where neurons begin to fire: half-way from a detector's weakest word to the rest, half-way up a position neuron's
    span, at a quantile of the words for others, and nowhere for the dead."""
    mean, raw = keys @ x.mean(0), x @ keys.T
    pre = raw.sort(dim=0).values
    found = torch.empty(len(planned), dtype=torch.float64)
    for i, neuron in enumerate(planned):
        silent = round((1 - rng.uniform(*RATES)) * (len(x) - 1))
        if neuron.role == "dead":
            found[i] = -1.5 * D_MODEL**0.5 * keys[i].norm()  # no input of length √d_model can lift it above 0
        elif neuron.role == "detector":
            found[i] = -torch.stack(weakest_and_rest(neuron, raw[:, i], words)).mean()
        elif neuron.role == "position":
            found[i] = -neuron.gain - mean[i]
        else:
            found[i] = -pre[silent, i]
    return found
