"""Models whose memories are written by hand, so that tests know the right answer: facts, chains, meanings and roles.

Each is a GPT-2 of whole words. All that is planted is written in random directions orthogonal to each other and to the
all-ones vector, so that LayerNorm's centring changes nothing and no neuron lies along an axis of the residual stream.
``truth`` has a row a neuron. ``benchmarks/planted`` plants larger ones, and calibrates the measures on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import ceil, sqrt
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

import ffnmem as fm

SPECIAL = ("<|bos|>", "<|unk|>")
CONSONANTS, VOWELS = "bdfgklmnprstvz", "aeiou"
SYLLABLES = [consonant + vowel for consonant, vowel in product(CONSONANTS, VOWELS)]


@dataclass(frozen=True, eq=False)
class Planted:
    """A planted model: what each neuron was made for, a corpus, and the facts that it recalls."""

    model: fm.Model
    truth: pd.DataFrame
    texts: tuple[str, ...]
    facts: tuple[fm.Fact, ...] = ()


# The bare model, and what is written into it.


def word_tokenizer(words: Sequence[str]) -> Any:
    """A tokenizer in which every word, with the space before it, is one token. Ids 0 and 1 are BOS and unknown."""
    import transformers
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    vocabulary = {token: i for i, token in enumerate((*SPECIAL, *(f" {word}" for word in words)))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=SPECIAL[1]))
    # A text's first word gets the space too, so that a prompt reads the same with and without it; a line's end is one.
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Replace(Regex(r"\s+"), " "), normalizers.Replace(Regex(r"^(?=[^\s<])"), " ")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r" ?[^\s]+"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    names = dict(zip(("bos_token", "eos_token", "unk_token"), (SPECIAL[0], *SPECIAL), strict=True))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **names)


def stems(count: int, rng: np.random.Generator) -> list[str]:
    """Different pronounceable words of two syllables."""
    pool = [a + b for a, b in product(SYLLABLES, SYLLABLES)]
    return [pool[i] for i in rng.permutation(len(pool))[:count]]


def empty_gpt2(d_vocab: int, *, n_layers: int, d_model: int, d_mlp: int, n_ctx: int, n_heads: int = 1) -> Any:
    """A GPT-2 whose weights and biases are all 0 and whose norms only normalise."""
    import transformers

    sizes = {"n_layer": n_layers, "n_embd": d_model, "n_inner": d_mlp, "n_positions": n_ctx, "n_head": n_heads}
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    hf = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=d_vocab, **sizes, **ends)).eval()
    with torch.no_grad():
        for name, parameter in hf.named_parameters():
            parameter.fill_(1.0 if ".ln_" in name and name.endswith("weight") else 0.0)
    return hf


def load(hf: Any, tokenizer: Any, name: str) -> fm.Model:
    hf.config._name_or_path = name
    return fm.load(hf, tokenizer=tokenizer)


class Room:
    """Orthonormal directions of a residual stream, handed out once each, all orthogonal to the all-ones vector."""

    def __init__(self, d_model: int, rng: np.random.Generator) -> None:
        start = np.concatenate([np.ones((d_model, 1)), rng.standard_normal((d_model, d_model - 1))], axis=1)
        self.free = torch.tensor(np.linalg.qr(start)[0].T[1:])

    def take(self, count: int) -> Tensor:
        assert count <= len(self.free), "d_model is too small"
        taken, self.free = self.free[:count], self.free[count:]
        return taken


def unit_rows(count: int, room: Tensor, rng: np.random.Generator) -> Tensor:
    """Random unit vectors in the span of some directions."""
    found = torch.tensor(rng.standard_normal((count, len(room)))) @ room
    return found / found.norm(dim=-1, keepdim=True)


@torch.no_grad()
def write_ffn(hf: Any, layer: int, keys: Tensor, bias: Tensor, values: Tensor) -> None:
    mlp = hf.transformer.h[layer].mlp
    mlp.c_fc.weight.copy_(keys.T)
    mlp.c_fc.bias.copy_(bias)
    mlp.c_proj.weight.copy_(values)


@torch.no_grad()
def write_embeddings(hf: Any, tokens: Tensor, positions: Tensor) -> None:
    hf.transformer.wte.weight.copy_(tokens)
    hf.transformer.wpe.weight.copy_(positions)


@torch.no_grad()
def write_head(hf: Any, layer: int, *, query: Tensor, key: Tensor, value: Tensor, out: Tensor, head: int = 0) -> None:
    """One attention head by its four factors, each narrower than the head; what is not given is 0."""
    attention = hf.transformer.h[layer].attn
    for which, factor in enumerate((query, key, value)):
        start = which * attention.embed_dim + head * attention.head_dim
        attention.c_attn.weight[:, start : start + factor.shape[1]] = factor.float()
    start = head * attention.head_dim
    attention.c_proj.weight[start : start + len(out)] = out.float()


class Clock:
    """Position embeddings on which going one step back is a rotation, so that a head can look at the previous token."""

    def __init__(self, room: Tensor, size: float, rng: np.random.Generator) -> None:
        self.room, self.size = room, size
        self.omega = torch.tensor(np.sort(rng.uniform(0.1, 3.0, len(room) // 2)))

    def positions(self, n_ctx: int) -> Tensor:
        angle = torch.arange(n_ctx, dtype=torch.float64).unsqueeze(-1) * self.omega
        code = torch.stack([angle.cos(), angle.sin()], dim=-1).flatten(1) / len(self.omega) ** 0.5
        return self.size * code @ self.room

    def write_previous_token_head(self, hf: Any, layer: int, *, scale: float, value: Tensor, out: Tensor) -> None:
        """A head that looks at the previous token. ``scale``: what LayerNorm multiplies the residual stream by."""
        back = torch.zeros(len(self.room), len(self.room), dtype=torch.float64)
        for j, (c, s) in enumerate(zip(np.cos(self.omega.tolist()), np.sin(self.omega.tolist()), strict=True)):
            back[2 * j : 2 * j + 2, 2 * j : 2 * j + 2] = torch.tensor([[c, -s], [s, c]])
        gain = 30.0 * hf.transformer.h[layer].attn.head_dim ** 0.5 / (self.size * scale) ** 2
        write_head(hf, layer, query=gain * self.room.T @ back, key=self.room.T, value=value, out=out)


@torch.no_grad()
def add_noise(hf: Any, noise: float, rng: np.random.Generator) -> None:
    """Noise on every weight matrix, of ``noise`` times the root mean square of each neuron's, token's or head's row."""

    def blur(rows: Tensor) -> None:
        drawn = torch.tensor(rng.standard_normal(tuple(rows.shape)), dtype=rows.dtype)
        rows += noise * rows.pow(2).mean(-1, keepdim=True).sqrt() * drawn

    for block in hf.transformer.h:
        mlp, attention = block.mlp, block.attn
        for weight in (mlp.c_fc.weight.T, mlp.c_proj.weight, attention.c_attn.weight.T, attention.c_proj.weight):
            blur(weight)
    blur(hf.transformer.wte.weight)
    blur(hf.transformer.wpe.weight)


@torch.no_grad()
def read_norm(hf: Any, layer: int, tokens: Tensor, norm: str = "ln_2") -> Tensor:
    """What a layer's FFN (attention: ``norm="ln_1"``) reads, in float64, with all below as it is now."""
    found: list[Tensor] = []
    module = getattr(hf.transformer.h[layer], norm)
    handle = module.register_forward_hook(lambda _m, _i, out: found.append(out.double()))
    hf.base_model(tokens, use_cache=False)
    handle.remove()
    return found[0]


def padded(rows: Sequence[Sequence[int]]) -> Tensor:
    """Token ids with BOS in front, filled up with BOS to the longest."""
    length = max(map(len, rows))
    return torch.tensor([[0, *row, *[0] * (length - len(row))] for row in rows])


def mean_by(features: Tensor, x: Tensor, n_features: int) -> Tensor:
    """The mean row where each feature is there; NaN for one that never is."""
    sums, counts = torch.zeros(n_features, x.shape[1], dtype=x.dtype), torch.zeros(n_features, dtype=x.dtype)
    for column in features.T:
        sums.index_add_(0, column, x)
        counts.index_add_(0, column, torch.ones(len(column), dtype=x.dtype))
    return sums / counts.unsqueeze(-1)


def solve_keys(means: Tensor, scatter: Tensor, targets: Tensor) -> Tensor:
    """Keys whose products with features' mean inputs come closest to the targets; where targets are not 0, they are
    met on average. Regularised by what inputs of one feature differ by (``scatter``), as Fisher's discriminant is."""
    gram = means.T @ means + scatter
    gram += 1e-6 * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype)
    keys = torch.linalg.solve(gram, means.T @ targets).T
    met = torch.where(targets.T != 0, keys @ means.T, 0.0).sum(-1)
    return keys * (targets.T.sum(-1) / torch.where(met.abs() > 1e-12, met, 1.0)).unsqueeze(-1)


# Memories among neurons without a role.


@dataclass(frozen=True, eq=False)
class Memories:
    """Neurons with a role. Each fires for its features (``reads``), all of them together: its pre-activation is
    ``pre`` at its own input ``at``, and −``floor`` where none of them is. There it writes ``writes``."""

    at: Tensor
    reads: Sequence[Tensor]
    writes: Tensor
    rows: Sequence[dict[str, str]]
    pre: float
    floor: float

    @property
    def keys(self) -> Tensor:
        one = [feature / (feature * self.at).sum(-1, keepdim=True) for feature in self.reads]
        return (self.pre + self.floor) / len(one) * sum(one[1:], one[0])


BLANK = {"role": "none", "subject": "", "relation": "", "target": "", "position": ""}


def fill_layer(hf: Any, layer: int, memories: Memories, documents: Tensor, rng: np.random.Generator) -> list[Any]:
    """Write memories among neurons without a role, in random order; give the layer's rows of the truth. A neuron
    without a role fires on a sixth of what it meets in some documents, and writes a little in a random direction."""
    met = read_norm(hf, layer, documents)[documents != 0]
    d_mlp, d_model = hf.config.n_inner, hf.config.n_embd
    keys = torch.tensor(rng.standard_normal((d_mlp, d_model))) / d_model**0.5
    values = torch.tensor(rng.standard_normal((d_mlp, d_model))) * 0.05 / d_model**0.5
    bias = -(met @ keys.T).kthvalue(round(5 / 6 * len(met)), dim=0).values
    place = torch.tensor(rng.permutation(d_mlp)[: len(memories.rows)])
    rows: list[dict[str, Any]] = [{"layer": layer, "neuron": n, **BLANK} for n in range(d_mlp)]
    keys[place], bias[place], values[place] = memories.keys, -memories.floor, memories.writes / memories.pre
    for n, row in zip(place.tolist(), memories.rows, strict=True):
        rows[n].update(row)
    write_ffn(hf, layer, keys, bias, values)
    return rows


# Planted facts. Layer 0 finds out who is meant: a head looks one word back, and a neuron per subject fires for its two
# names and writes its identity. Early: layer 1 holds a neuron per fact, which fires for the identity and writes the
# object in the relation's own code; a head of layer 2 per relation, which only a word of that relation turns on,
# carries the code to it, decoded. Late: a head of layer 2 carries the identity to the relation's word, and that layer's
# FFN holds a neuron per fact, which fires for identity and relation together and writes the object.

FINDER, EARLY, CARRIER = 0, 1, 2  # layers; late facts are in the carrier's FFN
SUBJECT_LAST = 2  # the position in a prompt that is BOS, first name, last name, neutral word, relation
CONTEXT = 64
POSITION, SINK, RELATION, PREVIOUS, ARC = 0.5, 0.5, 0.8, 0.8, 3.0  # sizes beside a token's embedding, which is 1
IDENTITY, FLAG, CODE, OBJECT, CARRIED = 3.0, 6.0, 2.5, 7.0, 2.0
FOUND, FIRES, MISSES, BOTH_MISS = 8.0, 4.0, 6.0, 16.0  # pre-activations, and how far below 0 they are elsewhere
MATCH, REST, RECENT = 100.0, 40.0, 4.0  # attention scores: of a flag, of position 0, per word a subject is nearer


def draw_facts(
    rng: np.random.Generator, n_subjects: int, n_relations: int, n_objects: int
) -> tuple[list[list[str]], list[tuple[int, int]], np.ndarray, tuple[fm.Fact, ...]]:
    """The words (first names, last names, relations, all objects, fillers), the names of each subject, the object of
    each subject and relation, and the facts, the relations of a subject together. No name is one subject's only."""
    names = max(ceil(sqrt(n_subjects)), min(ceil(sqrt(2 * n_subjects)), n_subjects // 2))
    words = iter(stems(2 * names + n_relations * (1 + n_objects) + 16, rng))
    groups = [[next(words) for _ in range(n)] for n in (names, names, n_relations, n_relations * n_objects, 16)]
    first, last, relations, objects, fillers = groups
    # Along diagonals every name comes round before one comes again; then numbered at random.
    pairs = [(int(i) % names, (int(i) + int(i) // names) % names) for i in rng.permutation(n_subjects)]
    answers = np.stack([rng.permutation(np.arange(n_subjects) % n_objects) for _ in relations], axis=1)
    facts = []
    for (s, r), answer in np.ndenumerate(answers):
        subject, true = f"{first[pairs[s][0]]} {last[pairs[s][1]]}", objects[r * n_objects + answer]
        facts.append(fm.Fact(subject, relations[r], f"{{}} {fillers[0]} {relations[r]}", true, id=f"{r}.{s:03d}"))
    return groups, pairs, answers, tuple(facts)


def draw_texts(facts: Sequence[fm.Fact], words: Sequence[str], rng: np.random.Generator) -> tuple[str, ...]:
    """Every fact six times, other words in front of it, up to three facts to a document."""
    stated = [f"{fact.text} {fact.target_true}" for fact in facts for _ in range(6)]
    shuffled, texts = [stated[i] for i in rng.permutation(len(stated))], []
    while shuffled:
        count = int(rng.integers(1, 4))
        texts.append(" ".join(" ".join([*rng.choice(words, 4), one]) for one in shuffled[:count]))
        del shuffled[:count]
    return tuple(texts)


def plant_facts(
    seed: int, site: str = "early", *, n_subjects: int = 40, n_relations: int = 3, n_objects: int = 8,
    n_none: int = 40, noise: float = 0.05, stated: int | None = None,
) -> Planted:  # fmt: skip
    """A model that recalls facts at the subject's last token in layer 1 (early) or at the last token in layer 2 (late).

    ``stated``: the seed of the statements, where it is another one. The truth has layer, neuron, role (subject, fact,
    none), subject, relation, target, and position: "subject last" or "last"."""
    said = np.random.default_rng([seed if stated is None else stated, 0])
    groups, pairs, answers, facts = draw_facts(said, n_subjects, n_relations, n_objects)
    rng = np.random.default_rng([seed, 1])
    tokenizer = word_tokenizer([word for group in groups for word in group])
    texts = draw_texts(facts, [*groups[0], *groups[1], *groups[-1]], np.random.default_rng([seed, 2]))
    prompts = padded(tokenizer([fact.text for fact in facts])["input_ids"])
    documents = padded(tokenizer(list(texts[:200]))["input_ids"])

    # Directions, embeddings, and the head that looks one word back.
    names, planes = len(groups[0]), 12
    needed = 2 * planes + 5 + 3 * names + n_subjects + n_relations + 2 * n_relations * n_objects + 12
    width = max(2 * planes, names, n_objects, n_subjects, ceil((1 + needed) / n_relations))
    d_model = n_relations * width
    hf = empty_gpt2(
        len(tokenizer), n_layers=3, d_model=d_model, d_mlp=n_subjects * n_relations + n_none, n_ctx=CONTEXT,
        n_heads=n_relations,
    )  # fmt: skip
    room = Room(d_model, rng)
    identity, clock = room.take(n_subjects), Clock(room.take(2 * planes), POSITION, rng)
    slow, rising, sink, known, stored = room.take(5)
    first, previous, last, relation = (room.take(n) for n in (names, names, names, n_relations))
    objects, codes = (room.take(n_relations * n_objects).reshape(n_relations, n_objects, -1) for _ in range(2))
    blank = room.take(12)
    special, rest = unit_rows(2, blank, rng), unit_rows(16, blank, rng)
    asking = RELATION * relation + (1 - RELATION**2) ** 0.5 * unit_rows(n_relations, blank, rng)
    angle = (torch.arange(CONTEXT, dtype=torch.float64) / (CONTEXT - 1) - 0.5) * torch.pi / 2
    arc = torch.stack([angle.cos(), angle.sin()], dim=-1) @ torch.stack([slow, rising])
    positions = clock.positions(CONTEXT) + ARC * arc
    positions[0] += SINK * sink
    write_embeddings(hf, torch.cat([special, first, last, asking, objects.flatten(0, 1), rest]), positions)
    scale = (d_model / (1 + POSITION**2 + ARC**2)) ** 0.5
    clock.write_previous_token_head(hf, FINDER, scale=scale, value=first.T, out=PREVIOUS / scale * previous)

    # Who is meant.
    one, other = torch.tensor(pairs).T
    rows = [{"role": "subject", "subject": f.subject, "position": "subject last"} for f in facts[::n_relations]]
    x = read_norm(hf, FINDER, prompts)[::n_relations, SUBJECT_LAST]
    writes = IDENTITY * identity + FLAG * (site == "late") * known
    finders = Memories(x, (previous[one], last[other]), writes, rows, FOUND, BOTH_MISS)
    truth = fill_layer(hf, FINDER, finders, documents, rng)

    # What is recalled.
    place = "subject last" if site == "early" else "last"
    rows = [
        {"role": "fact", "subject": f.subject, "relation": f.relation, "target": f.target_true, "position": place}
        for f in facts
    ]
    known_as = identity.repeat_interleave(n_relations, 0)
    nothing = Memories(known_as[:0], (known_as[:0],), known_as[:0], [], FIRES, MISSES)

    def carry(head: int, asking: Tensor, flag: Tensor, read: Tensor, value: Tensor, out: Tensor) -> None:
        """A head that looks from a word that asks to the nearest flag before it, from all other words to position 0."""
        asked, flagged = read[:, -1] @ asking, read[:, SUBJECT_LAST] @ flag
        mine, there = (found[found > found.max() / 2].mean() for found in (asked, flagged))
        gains = (
            MATCH / (mine * there),
            RECENT / (mine * there / FLAG * ARC * torch.pi / 2 / (CONTEXT - 1)),
            REST / ((read[:, -1] @ slow).mean() * (read[:, 0] @ sink).mean()),
        )
        query = torch.stack([gains[0] * asking, gains[1] * asking, gains[2] * slow], dim=1) * width**0.5
        key = torch.stack([flag, rising, sink], dim=1)
        write_head(hf, CARRIER, head=head, query=query, key=key, value=value, out=out)

    if site == "early":
        written = codes[torch.arange(n_relations), torch.tensor(answers)].flatten(0, 1)
        writes = CODE * written + FLAG / n_relations * stored
        x = read_norm(hf, EARLY, prompts)[:, SUBJECT_LAST]
        truth += fill_layer(hf, EARLY, Memories(x, (known_as,), writes, rows, FIRES, MISSES), documents, rng)
        read = read_norm(hf, CARRIER, prompts, "ln_1")
        for head, code in enumerate(codes):
            found = (read[:, SUBJECT_LAST] @ code.T).amax(-1)
            out = OBJECT / found[found > found.max() / 2].mean() * objects[head]
            carry(head, relation[head], stored, read, code.T, out)
        truth += fill_layer(hf, CARRIER, nothing, documents, rng)
    else:
        truth += fill_layer(hf, EARLY, nothing, documents, rng)
        read = read_norm(hf, CARRIER, prompts, "ln_1")
        out = CARRIED / (read[:, SUBJECT_LAST] @ identity.T).norm(dim=-1).mean() * identity
        carry(0, relation.sum(0), known, read, identity.T, out)
        x = read_norm(hf, CARRIER, prompts)[:, -1]
        writes = OBJECT * objects[torch.arange(n_relations), torch.tensor(answers)].flatten(0, 1)
        late = Memories(x, (known_as, relation.repeat(n_subjects, 1)), writes, rows, FIRES, BOTH_MISS)
        truth += fill_layer(hf, CARRIER, late, documents, rng)
    add_noise(hf, noise, rng)
    return Planted(load(hf, tokenizer, f"planted-facts-{site}-{seed}"), pd.DataFrame(truth), texts, facts)


# Planted chains: three memories in three layers, each of which makes the next one fire; the last one's value is the
# answer. A memory of layer 0 fires for a word, the trigger; a head of layer 1 carries what it writes one word on.

STAGES = ("first", "second", "third")


def plant_chains(seed: int, *, n_chains: int = 20, n_none: int = 40, noise: float = 0.05) -> Planted:
    """A model whose answers come from chains: one fact a chain, its subject the trigger. The truth has role ("first",
    "second", "third", "none"), subject, target, and position: "trigger" or "last"."""
    rng = np.random.default_rng([seed, 10])
    words, wide = stems(2 * n_chains + 12, rng), 24
    triggers, answers, fillers = words[:n_chains], words[n_chains : 2 * n_chains], words[2 * n_chains :]
    facts = tuple(
        fm.Fact(trigger, "chain", f"{fillers[i % 12]} {{}} {fillers[(i + 1) % 12]}", answer, id=f"chain {i}")
        for i, (trigger, answer) in enumerate(zip(triggers, answers, strict=True))
    )
    drawn = rng.integers(n_chains, size=200)
    texts = tuple(" ".join([*rng.choice(fillers, 3), triggers[i], *rng.choice(fillers, 3)]) for i in drawn)
    tokenizer = word_tokenizer(words)
    d_model = 2 * wide + 5 * n_chains + 48 + 1
    hf = empty_gpt2(len(tokenizer), n_layers=3, d_model=d_model, d_mlp=n_chains + n_none, n_ctx=16)
    prompts = padded(tokenizer([fact.text for fact in facts])["input_ids"])
    documents = padded(tokenizer(list(texts))["input_ids"])
    room = Room(d_model, rng)
    clock = Clock(room.take(2 * wide), POSITION, rng)
    trigger, answer, first, carried, second = (room.take(n_chains) for _ in range(5))
    blank = unit_rows(14, room.take(36), rng)
    write_embeddings(hf, torch.cat([blank[:2], trigger, answer, blank[2:]]), clock.positions(16))
    truth: list[dict[str, Any]] = []

    def fill(layer: int, reads: Tensor, writes: Tensor) -> None:
        rows = [
            {"role": STAGES[layer], "subject": fact.subject, "target": fact.target_true,
             "position": "last" if layer else "trigger"}
            for fact in facts
        ]  # fmt: skip
        x = read_norm(hf, layer, prompts)[:, 3 if layer else 2]
        truth.extend(fill_layer(hf, layer, Memories(x, (reads,), writes, rows, FIRES, MISSES), documents, rng))

    fill(0, trigger, first)
    scale = (d_model / (2 + POSITION**2)) ** 0.5  # the stream at the trigger has what the first memory wrote, too
    clock.write_previous_token_head(hf, 1, scale=scale, value=first.T, out=2 / scale * carried)
    fill(1, carried, IDENTITY * second)
    fill(2, second, OBJECT * answer)
    add_noise(hf, noise, rng)
    return Planted(load(hf, tokenizer, f"planted-chains-{seed}"), pd.DataFrame(truth), texts, facts)


# Planted meanings: neurons that fire for one concept, for 2, 3, 4 or 8 unrelated ones in superposition, or never. A
# concept is a set of words whose embeddings share a direction. In layer 0 a feature is the concept of the word itself;
# in layer 1, after a head that looks one word back, it may be the concept of the previous word.

MEANINGS, SHARES = (1, 2, 3, 4, 8, 0), (0.4, 0.15, 0.12, 0.12, 0.11, 0.1)


def plant_meanings(
    seed: int, *, n_features: int = 64, neurons: int = 48, superposition: float = 1.2, noise: float = 0.6,
    n_tokens: int = 12_000, words: int = 8,
) -> Planted:  # fmt: skip
    """A model of two layers. The truth has layer, neuron, meanings (0: dead), verdict, and features by name."""
    rng = np.random.default_rng([seed, 0])
    concepts = stems(n_features, rng)
    vocabulary = [stem + ending for stem in concepts for ending in SYLLABLES[:words]]
    tokenizer, d_content = word_tokenizer(vocabulary), round(2 * n_features / superposition)
    hf = empty_gpt2(len(tokenizer), n_layers=2, d_model=25 + d_content, d_mlp=neurons, n_ctx=CONTEXT)
    room = Room(25 + d_content, rng)
    content = room.take(d_content)
    clock, directions = Clock(room.take(24), POSITION, rng), unit_rows(n_features, content, rng)
    own = noise * unit_rows(len(vocabulary), content, rng)
    special = torch.zeros(2, 25 + d_content)
    special[0] = (1 + noise**2) ** 0.5 * unit_rows(1, content, rng)[0]
    write_embeddings(hf, torch.cat([special, directions.repeat_interleave(words, 0) + own]), clock.positions(CONTEXT))
    weight = (1 + rng.permutation(n_features)) ** -0.5

    def draw(length: int) -> np.ndarray:
        drawn = rng.choice(n_features, length, p=weight / weight.sum())
        return drawn * words + rng.integers(0, words, length)

    documents: list[np.ndarray] = []
    while sum(map(len, documents)) < n_tokens:
        documents.append(draw(int(rng.integers(10, 51))))
    sample = torch.tensor(np.array([[0, *(draw(CONTEXT - 1) + 2)] for _ in range(12_000 // (CONTEXT - 1))]))
    turn = torch.tensor(np.linalg.qr(rng.standard_normal((d_content, d_content)))[0])
    scale = (25 + d_content) ** 0.5 / (1 + noise**2 + POSITION**2) ** 0.5
    clock.write_previous_token_head(hf, 1, scale=scale, value=content.T, out=(0.8 / scale) * turn @ content)
    concept = torch.where(sample == 0, n_features, (sample - 2) // words)
    seen = torch.stack([concept[:, 1:].flatten(), n_features + concept[:, :-1].flatten()], dim=1)
    names = [*concepts, *(f"after {one}" for one in concepts)]
    exact = np.array(SHARES) * neurons
    counts = np.floor(exact).astype(int)
    counts[np.argsort(counts - exact, kind="stable")[: neurons - counts.sum()]] += 1
    truth = []
    for layer in (0, 1):
        kinds = (1 + layer) * n_features
        strength = torch.zeros(neurons, kinds + layer, dtype=torch.float64)
        gain, floor = torch.zeros(2, neurons, 1, dtype=torch.float64)
        values = torch.zeros(neurons, 25 + d_content, dtype=torch.float64)
        for i, many in enumerate(rng.permutation(np.repeat(MEANINGS, counts))):
            features, strengths = rng.choice(kinds, many, replace=False), np.ones(many)
            strengths[1:] = rng.uniform(0.6, 1.0, max(many - 1, 0))
            strength[i, features] = torch.tensor(strengths)
            gain[i], floor[i] = rng.uniform(2.0, 4.0), rng.uniform(1.5, 2.5)
            values[i] = directions[rng.choice(n_features, max(int(many), 1), replace=False)].sum(0)
            verdict = ("inactive", "monosemantic", "polysemantic")[min(many, 2)]
            row = {"layer": layer, "neuron": i, "meanings": int(many), "verdict": verdict}
            truth.append({**row, "features": ", ".join(names[f] for f in features)})
        x = read_norm(hf, layer, sample)[:, 1:].flatten(0, 1)
        centre, targets = x.mean(0), (gain * strength + floor * (strength > 0)).T
        means = mean_by(seen[:, : 1 + layer], x - centre, len(targets))
        there = ~means.isnan().any(-1)
        keys = solve_keys(means[there], (x - centre).T @ (x - centre) / len(x), targets[there])
        bias, dead = -(keys @ centre) - floor[:, 0], ~(strength > 0).any(1)
        size = keys[~dead].norm(dim=-1).mean()
        stray = torch.randn(keys.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(layer))
        stray -= stray.mean(-1, keepdim=True)
        keys[dead] = (size * stray / stray.norm(dim=-1, keepdim=True))[dead]
        bias[dead] = -1.5 * x.shape[1] ** 0.5 * size  # no input of norm √d_model can lift it above 0
        write_ffn(hf, layer, keys, bias, values / (10 * values.norm(dim=-1, keepdim=True)))
    texts = tuple(" ".join(vocabulary[i] for i in row) for row in documents)
    return Planted(load(hf, tokenizer, f"planted-meanings-{seed}"), pd.DataFrame(truth), texts)


# Planted roles. A role that shows in what a neuron writes has a value of its kind and a key that fires for no clear
# reason; one that shows in when it fires has a key of its kind and a value that says nothing clear. The width is such
# that the published thresholds, made for GPT-2, can tell roles from chance.

ROLES = ("prediction", "suppression", "partition", "entropy", "position", "frequency", "detector", "dead", "none")
D_MODEL, HEADS, ATTRIBUTE, FREQUENT = 384, 4, 0.022, 0.003


def plant_roles(seed: int, *, per_role: int = 7, n_words: int = 768, n_tokens: int = 16_000) -> Planted:
    """A model of one layer. The truth has layer, neuron and role."""
    rng = np.random.default_rng([seed, 2])
    words, room = stems(n_words, rng), Room(D_MODEL, rng)
    attributes, frequency, unread, waves = room.take(4), room.take(1)[0], room.take(6), room.take(10)

    # Text by Zipf's law; embeddings with a direction of their own, and what words share: letters and log-frequency.
    weight = 1 / (11 + np.arange(n_words))
    rows = rng.choice(n_words, (n_tokens // 60, 60), p=weight / weight.sum())
    rare = np.log1p(np.concatenate([np.zeros(2), np.bincount(rows.ravel(), minlength=n_words)]))
    seen = np.flatnonzero(rare[2:] >= np.log(26))
    letters = [sorted(rng.choice(list(some), len(some) // 2, replace=False)) for some in (CONSONANTS, VOWELS) * 2]
    sides = np.array([[0, 0, *(1.0 if word[i] in some else -1.0 for word in words)] for i, some in enumerate(letters)])
    own = (1 - 4 * ATTRIBUTE - FREQUENT) ** 0.5 * unit_rows(2 + n_words, torch.cat([waves / 2, room.free]), rng)
    shared = ATTRIBUTE**0.5 * torch.tensor(sides.T) @ attributes
    shared += torch.outer(torch.tensor(FREQUENT**0.5 * (rare - rare.mean()) / rare.std()), frequency)
    angles = torch.outer((torch.arange(CONTEXT, dtype=torch.float64) + 0.5) / CONTEXT, torch.arange(1, 11) * torch.pi)
    neurons = per_role * len(ROLES)
    hf = empty_gpt2(2 + n_words, n_layers=1, d_model=D_MODEL, d_mlp=neurons, n_ctx=CONTEXT, n_heads=HEADS)
    write_embeddings(hf, own + shared, 0.3 * (2 / 10) ** 0.5 * angles.cos() @ waves)
    for head in range(HEADS):  # a little of the words before, in random directions
        query, key, value = torch.tensor(rng.standard_normal((3, D_MODEL, D_MODEL // HEADS))) / D_MODEL**0.5
        out = torch.tensor(rng.standard_normal((D_MODEL // HEADS, D_MODEL))) * 0.2 / D_MODEL
        write_head(hf, 0, query=query, key=key, value=value, out=out, head=head)

    # Inputs in which every word occurs as often.
    even = np.concatenate([rng.permutation(n_words) for _ in range(8)])[: 8 * n_words // 63 * 63].reshape(-1, 63) + 2
    x = read_norm(hf, 0, torch.tensor(np.pad(even, ((0, 0), (1, 0)))))[:, 1:]
    at = np.broadcast_to(np.arange(63), even.shape).reshape(-1)
    place_means, flat, token = x.mean(0), x.flatten(0, 1), even.reshape(-1) - 2
    told = torch.linalg.svd(place_means - place_means.mean(0), full_matrices=False)[2][:10]
    spread = flat - flat.mean(0)

    def random_rows(count: int) -> Tensor:
        found = torch.tensor(rng.standard_normal((count, D_MODEL)))
        found -= found.mean(-1, keepdim=True)
        return found / found.norm(dim=-1, keepdim=True)

    def solved(groups: np.ndarray, chosen: np.ndarray) -> Tensor:
        """The key that tells some words, or positions, from the others; 2 above them."""
        targets = torch.zeros(int(groups.max()) + 1, 1, dtype=torch.float64)
        targets[chosen] = 5.0
        means = mean_by(torch.tensor(groups).unsqueeze(1), spread, len(targets))
        return solve_keys(means, spread.T @ spread / len(spread), targets)[0]

    roles = rng.permutation(np.repeat(ROLES, per_role))
    keys, values, bias, truth = random_rows(neurons), random_rows(neurons), torch.zeros(neurons).double(), []
    for i, role in enumerate(roles):
        sign = (-1) ** int(rng.integers(2))
        some = rng.choice(n_words, 3, replace=False) + 2
        ways = {"prediction": own[some].sum(0), "suppression": -own[some].sum(0), "frequency": sign * frequency}
        ways |= {"partition": sign * attributes[i % 4], "entropy": sign * unread[i % 6]}
        values[i] = (way := ways.get(role, values[i])) / way.norm()
        keys[i] -= keys[i] @ told.T @ told
        if role == "detector":
            own_words = rng.choice(seen, int(rng.integers(1, 6)), replace=False)
            keys[i] = solved(token, own_words)
            raw, mine = flat @ keys[i], np.isin(token, own_words)
            bias[i] = -(raw[mine].min() + raw[~mine].quantile(0.9995)) / 2
        elif role == "position":
            start = int(rng.integers(0, 36))
            keys[i] = solved(at, np.arange(start, start + 20))
            bias[i] = -(flat @ keys[i]).mean() - 2.5
        elif role == "dead":
            bias[i] = -1.5 * D_MODEL**0.5 * keys[i].norm()  # no input of length √d_model can lift it above 0
        else:
            bias[i] = -(flat @ keys[i]).quantile(rng.uniform(0.5, 0.9))
        truth.append({"layer": 0, "neuron": i, "role": str(role)})
    lengths = [[0.18] if role == "entropy" else [0.04] for role in roles]
    write_ffn(hf, 0, keys, bias, torch.tensor(lengths) * values)
    texts = tuple(" ".join(words[i] for i in row) for row in rows)
    return Planted(load(hf, word_tokenizer(words), f"planted-roles-{seed}"), pd.DataFrame(truth), texts)
