"""Planted facts: recalled early, at the subject's last token, or late, at the last token.

Layer 0 finds out who is meant: a head looks one word back, and one neuron per subject fires for its two names and
writes its identity. Then, early: layer 1 holds one neuron per fact, which fires for the identity and writes the object
in the relation's own code; layer 2 has a head per relation that only a word of that relation turns on, and that carries
the code to it, decoded. Or late: a head of layer 2 carries the identity to the relation's word, and that layer's FFN
holds one neuron per fact, which fires for identity and relation together and writes the object.

Every memory's key is scaled by what it meets in its own prompt, so that its pre-activation there is what was meant.
Directions are orthonormal where there is room, so the only errors are those of ``noise`` and of neurons without a role.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, sqrt
from typing import Any

import numpy as np
import pandas as pd
import skeleton as bare
import torch
from skeleton import Planted
from torch import Tensor

import ffnmem as fm

# What is stated: subjects of two words, relations, objects, templates, and a corpus.

SYNONYMS, NEUTRAL, FILLERS, PARAPHRASES = 2, 4, 12, 4
"""Words for one relation, words that may stand between subject and relation, words that mean nothing."""


@dataclass(frozen=True)
class Statements:
    """Everything that can be said.

    Attributes:
        first, last: names; a subject is one of each (``pairs``), and no name belongs to one subject only.
        relations: per relation, its words. objects: per relation, its objects.
        answers: per subject and relation, the number of the object.
        templates: per relation, the prompt, then paraphrases.
    """

    first: tuple[str, ...]
    last: tuple[str, ...]
    relations: tuple[tuple[str, ...], ...]
    objects: tuple[tuple[str, ...], ...]
    neutral: tuple[str, ...]
    fillers: tuple[str, ...]
    pairs: tuple[tuple[int, int], ...]
    answers: np.ndarray
    templates: tuple[tuple[str, ...], ...]

    @property
    def vocabulary(self) -> list[str]:
        grouped = [word for group in (*self.relations, *self.objects) for word in group]
        return [*self.first, *self.last, *grouped, *self.neutral, *self.fillers]

    def subject(self, number: int) -> str:
        first, last = self.pairs[number]
        return f"{self.first[first]} {self.last[last]}"

    def facts(self) -> tuple[fm.Fact, ...]:
        """All facts, the relations of a subject together."""
        found = []
        for (subject, relation), answer in np.ndenumerate(self.answers):
            prompt, *paraphrases = self.templates[relation]
            name, objects = self.relations[relation][0], self.objects[relation]
            fact = fm.Fact(
                self.subject(subject), name, prompt, objects[answer], id=f"{name}.{subject:03d}",
                target_new=objects[(answer + 1) % len(objects)], paraphrases=tuple(paraphrases),
            )  # fmt: skip
            found.append(fact)
        return tuple(found)


def draw_statements(rng: np.random.Generator, n_subjects: int, n_relations: int, n_objects: int) -> Statements:
    """Names, words and who relates to what, at random; every object is that of two subjects at least."""
    names = max(ceil(sqrt(n_subjects)), min(ceil(sqrt(2 * n_subjects)), n_subjects // 2))
    counts = (names, names, *[SYNONYMS] * n_relations, *[n_objects] * n_relations, NEUTRAL, FILLERS)
    words = iter(bare.stems(sum(counts), rng))
    groups = [tuple(next(words) for _ in range(count)) for count in counts]
    relations, neutral, fillers = tuple(groups[2 : 2 + n_relations]), groups[-2], groups[-1]
    # Along diagonals every name comes round before one comes again; then numbered at random.
    diagonal = [(i % names, (i + i // names) % names) for i in range(n_subjects)]
    order = rng.permutation(n_subjects)
    answers = np.stack([rng.permutation(np.arange(n_subjects) % n_objects) for _ in relations], axis=1)
    return Statements(
        groups[0], groups[1], relations, tuple(groups[2 + n_relations : -2]), neutral, fillers,
        tuple(diagonal[i] for i in order), answers,
        tuple(draw_templates(rng, words, neutral, fillers) for words in relations),
    )  # fmt: skip


def draw_templates(
    rng: np.random.Generator, relation: Sequence[str], neutral: Sequence[str], fillers: Sequence[str]
) -> tuple[str, ...]:
    """The prompt, of one form for all relations, and paraphrases: words in front, others between, the synonym."""
    found = [f"{{}} {neutral[0]} {relation[0]}"]
    while len(found) < 1 + PARAPHRASES:
        before = rng.choice(fillers, rng.integers(0, 3))
        between = rng.choice(neutral, rng.integers(1, 3))
        template = " ".join([*before, "{}", *between, relation[int(rng.integers(len(relation)))]])
        if template not in found:
            found.append(template)
    return tuple(found)


def draw_texts(statements: Statements, rng: np.random.Generator) -> tuple[str, ...]:
    """Every fact in every template, up to three to a document, and a quarter as many documents that state nothing."""
    prompts = [(fact, template) for fact in statements.facts() for template in (fact.prompt, *fact.paraphrases)]
    stated = [f"{fact.ask(template)} {fact.target_true}" for fact, template in prompts]
    shuffled, texts = [stated[i] for i in rng.permutation(len(stated))], []
    while shuffled:
        count = int(rng.integers(1, 4))
        texts.append(f" {rng.choice(statements.fillers)} ".join(shuffled[:count]))
        del shuffled[:count]
    texts += [draw_filler(statements, rng) for _ in range(len(texts) // 4)]
    return tuple(texts[i] for i in rng.permutation(len(texts)))


def draw_filler(statements: Statements, rng: np.random.Generator) -> str:
    """Names in other pairs than the subjects', a subject of whom nothing is asked, a relation nobody stands in."""
    every = [(i, j) for i in range(len(statements.first)) for j in range(len(statements.last))]
    unknown = [pair for pair in every if pair not in statements.pairs]
    first, last = unknown[int(rng.integers(len(unknown)))]
    parts = [
        f"{statements.first[first]} {statements.last[last]} {rng.choice(statements.neutral)}",
        f"{statements.subject(int(rng.integers(len(statements.pairs))))} {rng.choice(statements.neutral)}",
        str(rng.choice(statements.first)),
        str(rng.choice(statements.last)),
        *rng.choice(statements.fillers, 6).tolist(),
        *rng.choice(statements.neutral, 2).tolist(),
        str(rng.choice([word for group in statements.objects for word in group])),
    ]
    order = rng.permutation(len(parts))
    # A relation's word comes first, where no subject is before it that it could be about.
    lead = statements.relations[int(rng.integers(len(statements.relations)))][0]
    return " ".join([lead, *(parts[i] for i in order)])


# The memories, and the heads that read them.

FINDER, EARLY, CARRIER = 0, 1, 2  # layers; late facts are in the carrier's FFN
SUBJECT_LAST = 2  # the position in a prompt that is BOS, first name, last name, neutral word, relation
PLANES = 12
MET = 200  # documents on which neurons without a role are given their firing rate
MOST_IDENTITIES = 64  # dimensions; more subjects share them in superposition

# Sizes in the residual stream, where a token's embedding is 1.
POSITION, ARC = 0.5, 3.0  # of the clock, and of the slow position code
SINK = 0.5  # of the mark at position 0
RELATION = 0.8  # of a relation's direction in the embedding of its words; the rest is their own
PREVIOUS = 0.8  # of the first name, carried to the last
IDENTITY, FLAG = 3.0, 6.0
CARRIED = 2.0  # of the identity, where it is carried to the end
CODE, OBJECT = 2.5, 7.0  # of an object in a relation's code, and in the end
DIFFUSE = 0.05  # of the value of a neuron without a role
RATE = 1 / 6  # of the corpus's tokens, on which such a neuron fires

# Pre-activations where a neuron should fire, and by how much below zero where nothing of its feature is there. Where
# one of two features is, they are below zero still. That of a name is larger, so that noise changes less of it.
FOUND, FIRES = 8.0, 4.0
MISSES, BOTH_MISS = 6.0, 16.0

# Attention scores in nats: of a flag, of position 0 (where nothing is asked for), and per word a subject is nearer. A
# subject is found up to MATCH/RECENT words back; the smaller that is, the less noise makes an earlier one be taken.
MATCH, REST, RECENT = 100.0, 40.0, 4.0


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


def fill_layer(hf: Any, layer: int, memories: Memories, documents: Tensor, rng: np.random.Generator) -> list[Any]:
    """Write memories among neurons without a role, in random order; give the layer's rows of the truth.

    A neuron without a role fires on a sixth of what it meets in some documents, by a random key, and writes a little in
    a random direction.
    """
    met = bare.ffn_inputs(hf, layer, documents)[documents != 0]
    d_mlp, d_model = hf.config.n_inner, hf.config.n_embd
    keys = torch.tensor(rng.standard_normal((d_mlp, d_model))) / d_model**0.5
    values = torch.tensor(rng.standard_normal((d_mlp, d_model))) * DIFFUSE / d_model**0.5
    bias = -(met @ keys.T).kthvalue(round((1 - RATE) * len(met)), dim=0).values
    place = torch.tensor(rng.permutation(d_mlp)[: len(memories.rows)])
    blank = {"role": "none", "subject": "", "relation": "", "target": "", "position": ""}
    rows: list[dict[str, Any]] = [{"layer": layer, "neuron": n, **blank} for n in range(d_mlp)]
    keys[place], bias[place], values[place] = memories.keys, -memories.floor, memories.writes / memories.pre
    for n, row in zip(place.tolist(), memories.rows, strict=True):
        rows[n].update(row)
    bare.write_ffn(hf, layer, keys, bias, values)
    return rows


def padded(rows: Sequence[Sequence[int]]) -> Tensor:
    """Token ids with BOS in front, filled up with BOS to the longest."""
    length = max(map(len, rows))
    return torch.tensor([[0, *row, *[0] * (length - len(row))] for row in rows])


def plant_facts(
    *,
    seed: int = 0,
    site: str = "early",
    n_subjects: int = 40,
    n_relations: int = 3,
    n_objects: int = 8,
    n_none: int = 40,
    noise: float = 0.05,
) -> Planted:
    """A model that recalls facts at a known place.

    Args:
        seed: of everything; the facts and the corpus of a seed are the same for both sites.
        site: ``"early"``, at the subject's last token in layer 1; ``"late"``, at the last token in layer 2.
        n_subjects: each of two words, neither of which is one subject's alone; at least 6.
        n_relations: each subject has one object for each.
        n_objects: per relation, at most half as many as subjects, so that each is that of several.
        n_none: neurons without a role in the layer of the facts; layers with fewer facts have more of them.
        noise: standard deviation of the noise on every weight, as a share of the root mean square of its neuron's,
            token's or head's weights. At 0.05 all prompts are recalled.

    Returns:
        Facts, and a truth with layer, neuron, role (subject, fact, none), subject, relation, target (empty where there
        is none) and position: "subject last" or "last", where it fires in a prompt.

    Source: the early site is that of Meng et al. 2022 (2202.05262), with extraction by attention as in Geva et al. 2023
    (2304.14767).
    """
    statements = draw_statements(np.random.default_rng([seed, 0]), n_subjects, n_relations, n_objects)
    facts, texts = statements.facts(), draw_texts(statements, np.random.default_rng([seed, 2]))
    tokenizer, rng = bare.build_tokenizer(statements.vocabulary), np.random.default_rng([seed, 1])
    prompts = padded(tokenizer([fact.text for fact in facts])["input_ids"])
    documents = padded(tokenizer(list(texts[:MET]))["input_ids"])

    # Directions, embeddings, and the head that looks one word back.
    names, words, identities = len(statements.first), NEUTRAL, min(n_subjects, MOST_IDENTITIES)
    needed = 2 * PLANES + 5 + 3 * names + identities + n_relations + 2 * n_relations * n_objects + 3 * words
    width = max(2 * PLANES, names, n_objects, identities, ceil((1 + needed) / n_relations))
    d_model, d_mlp = n_relations * width, n_subjects * n_relations + n_none
    d_vocab = len(bare.SPECIAL) + len(statements.vocabulary)
    hf = bare.empty_gpt2(d_vocab, n_layers=3, d_model=d_model, d_mlp=d_mlp, n_ctx=bare.CONTEXT, n_heads=n_relations)
    room = bare.Room(d_model, rng)
    span = room.take(identities)
    clock = bare.Clock(room.take(2 * PLANES), POSITION, rng)
    slow, rising, sink, known, stored = room.take(5)
    first, previous, last = (room.take(names) for _ in range(3))
    identity = span if n_subjects == identities else bare.unit_rows(n_subjects, span, rng)
    relation = room.take(n_relations)
    objects, codes = (room.take(n_relations * n_objects).reshape(n_relations, n_objects, -1) for _ in range(2))
    blank = room.take(3 * words)
    own = bare.unit_rows(n_relations * SYNONYMS, blank, rng)
    special = bare.unit_rows(len(bare.SPECIAL), blank, rng)
    shared = RELATION * relation.repeat_interleave(SYNONYMS, 0) + (1 - RELATION**2) ** 0.5 * own
    rest = bare.unit_rows(NEUTRAL + FILLERS, blank, rng)
    angle = (torch.arange(bare.CONTEXT, dtype=torch.float64) / (bare.CONTEXT - 1) - 0.5) * torch.pi / 2
    positions = clock.positions(bare.CONTEXT)  # a clock, and a slow turn through a quarter circle
    positions += ARC * torch.stack([angle.cos(), angle.sin()], dim=-1) @ torch.stack([slow, rising])
    positions[0] += SINK * sink
    bare.write_embeddings(hf, torch.cat([special, first, last, shared, objects.flatten(0, 1), rest]), positions)
    scale = (d_model / (1 + POSITION**2 + ARC**2)) ** 0.5
    bare.write_previous_token_head(hf, FINDER, clock, scale=scale, value=first.T, out=PREVIOUS / scale * previous)

    # A neuron per subject, where the previous word is its first name and this its last. For late facts it writes a flag
    # besides, which a head finds it by.
    one, other = (torch.tensor(numbers) for numbers in zip(*statements.pairs, strict=True))
    rows = [{"role": "subject", "subject": fact.subject, "position": "subject last"} for fact in facts[::n_relations]]
    x = bare.ffn_inputs(hf, FINDER, prompts)[::n_relations, SUBJECT_LAST]
    writes = IDENTITY * identity + FLAG * (site == "late") * known
    finders = Memories(x, (previous[one], last[other]), writes, rows, FOUND, BOTH_MISS)
    truth = fill_layer(hf, FINDER, finders, documents, rng)

    # A neuron per fact. The early facts of a subject share in a flag, which a head finds them by, so that nothing but
    # they is needed.
    answers = (torch.arange(n_relations), torch.tensor(statements.answers))
    place = "subject last" if site == "early" else "last"
    rows = [
        {"role": "fact", "subject": f.subject, "relation": f.relation, "target": f.target_true, "position": place}
        for f in facts
    ]
    who = identity.repeat_interleave(n_relations, 0)
    nothing = Memories(who[:0], (who[:0],), who[:0], [], FIRES, MISSES)

    def carry(head: int, asking: Tensor, flag: Tensor, read: Tensor, value: Tensor, out: Tensor) -> None:
        """A head that looks from a word that asks to the nearest flag before it, from all other words to position 0.
        ``read`` is what it reads in the facts' prompts, by which its scores are scaled."""
        asked, flagged = read[:, -1] @ asking, read[:, SUBJECT_LAST] @ flag
        mine, there = (found[found > found.max() / 2].mean() for found in (asked, flagged))
        gains = (
            MATCH / (mine * there),
            RECENT / (mine * there / FLAG * ARC * torch.pi / 2 / (bare.CONTEXT - 1)),
            REST / ((read[:, -1] @ slow).mean() * (read[:, 0] @ sink).mean()),
        )
        query = torch.stack([gains[0] * asking, gains[1] * asking, gains[2] * slow], dim=1) * width**0.5
        key = torch.stack([flag, rising, sink], dim=1)
        bare.write_head(hf, CARRIER, head=head, query=query, key=key, value=value, out=out)

    if site == "early":
        writes = CODE * codes[answers].flatten(0, 1) + FLAG / torch.tensor(n_relations) * stored
        x = bare.ffn_inputs(hf, EARLY, prompts)[:, SUBJECT_LAST]
        truth += fill_layer(hf, EARLY, Memories(x, (who,), writes, rows, FIRES, MISSES), documents, rng)
        read = bare.norm_outputs(hf, CARRIER, prompts)
        for head, code in enumerate(codes):
            found = (read[:, SUBJECT_LAST] @ code.T).amax(-1)
            out = OBJECT / found[found > found.max() / 2].mean() * objects[head]
            carry(head, relation[head], stored, read, code.T, out)
        truth += fill_layer(hf, CARRIER, nothing, documents, rng)
    else:
        truth += fill_layer(hf, EARLY, nothing, documents, rng)
        read = bare.norm_outputs(hf, CARRIER, prompts)
        out = CARRIED / (read[:, SUBJECT_LAST] @ span.T).norm(dim=-1).mean() * span
        carry(0, relation.sum(0), known, read, span.T, out)
        x = bare.ffn_inputs(hf, CARRIER, prompts)[:, -1]
        reads, writes = (who, relation.repeat(n_subjects, 1)), OBJECT * objects[answers].flatten(0, 1)
        truth += fill_layer(hf, CARRIER, Memories(x, reads, writes, rows, FIRES, BOTH_MISS), documents, rng)
    bare.add_noise(hf, noise, rng)
    return Planted(bare.load(hf, tokenizer, f"planted-facts-{site}-{seed}"), hf, pd.DataFrame(truth), texts, facts)
