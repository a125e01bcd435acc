"""Planted facts: what is asked, the memories and heads that answer, recalled early or late."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from math import ceil, inf, sqrt
from operator import add
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..core.errors import InputError
from ..core.types import Count, Range, Seed, Whole, at_least, checked
from ..facts.fact import Fact
from .planting import Planted, behind_bridge
from .skeleton import (
    SPECIAL,
    Clock,
    Room,
    add_noise,
    build_tokenizer,
    empty_gpt2,
    ffn_inputs,
    norm_outputs,
    stems,
    unit_rows,
    write_embeddings,
    write_ffn,
    write_head,
    write_previous_token_head,
)

# What a model of planted facts is asked: subjects of two words, relations, objects, templates, and a corpus.

SYNONYMS = 2  # words for one relation
NEUTRAL = 4  # words that may stand between subject and relation
FILLERS = 12  # words that mean nothing
PARAPHRASES = 4
MOST_STATEMENTS = 3  # in one document


@dataclass(frozen=True)
class Statements:
    """Everything that can be said, as words and numbers.

    Attributes:
        first, last: names; a subject is one of each, and no name belongs to one subject only.
        relations: per relation, its words; the first is the relation's name.
        objects: per relation, its objects.
        neutral, fillers: words without meaning, between subject and relation, and anywhere.
        pairs: per subject, the numbers of its first and last name.
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
    answers: tuple[tuple[int, ...], ...]
    templates: tuple[tuple[str, ...], ...]

    @property
    def vocabulary(self) -> list[str]:
        """All words: first names, last names, relations' words, objects, neutral words, fillers."""
        grouped = [word for group in (*self.relations, *self.objects) for word in group]
        return [*self.first, *self.last, *grouped, *self.neutral, *self.fillers]

    def subject(self, number: int) -> str:
        first, last = self.pairs[number]
        return f"{self.first[first]} {self.last[last]}"

    def target(self, subject: int, relation: int) -> str:
        return self.objects[relation][self.answers[subject][relation]]

    def facts(self) -> tuple[Fact, ...]:
        """All facts, the relations of a subject together."""
        subjects, relations = range(len(self.pairs)), range(len(self.relations))
        return tuple(self.fact(subject, relation) for subject in subjects for relation in relations)

    def fact(self, subject: int, relation: int) -> Fact:
        answer, objects = self.answers[subject][relation], self.objects[relation]
        others = [objects[(answer + step) % len(objects)] for step in range(1, len(objects))]
        prompt, *paraphrases = self.templates[relation]
        return Fact(
            subject=self.subject(subject),
            relation=self.relations[relation][0],
            prompt=prompt,
            target_true=objects[answer],
            target_new=others[0],
            paraphrases=tuple(paraphrases),
            neighbours=tuple(
                self.subject(s) for s, row in enumerate(self.answers) if s != subject and row[relation] == answer
            ),
            generation_prompts=(f"{{}} {self.neutral[0]}",),
            false_targets=tuple(others),
            id=f"{self.relations[relation][0]}.{subject:03d}",
        )


@checked
def draw_statements(
    rng: np.random.Generator,
    n_subjects: Annotated[int, at_least(6)],
    n_relations: Count,
    n_objects: Annotated[int, at_least(2)],
) -> Statements:
    """Names, words and who relates to what, at random; every object is that of two subjects at least.

    Raises InputError for more objects than pairs of subjects.
    """
    if 2 * n_objects > n_subjects:
        raise InputError(
            f"n_objects must be at most {n_subjects // 2} for {n_subjects} subjects, so that each has neighbours, "
            f"not {n_objects}"
        )
    names = max(ceil(sqrt(n_subjects)), min(ceil(sqrt(2 * n_subjects)), n_subjects // 2))
    counts = (names, names, *[SYNONYMS] * n_relations, *[n_objects] * n_relations, NEUTRAL, FILLERS)
    words = iter(stems(sum(counts), rng))
    groups = [tuple(next(words) for _ in range(count)) for count in counts]
    relations = tuple(groups[2 : 2 + n_relations])
    neutral, fillers = groups[-2], groups[-1]
    # Along diagonals every name comes round before one comes again; then numbered at random.
    diagonal = [(i % names, (i + i // names) % names) for i in range(n_subjects)]
    order = rng.permutation(n_subjects)
    objects = np.stack([rng.permutation(np.arange(n_subjects) % n_objects) for _ in relations], axis=1)
    return Statements(
        first=groups[0],
        last=groups[1],
        relations=relations,
        objects=tuple(groups[2 + n_relations : -2]),
        neutral=neutral,
        fillers=fillers,
        pairs=tuple(diagonal[i] for i in order),
        answers=tuple(tuple(int(number) for number in row) for row in objects),
        templates=tuple(draw_templates(rng, words, neutral, fillers) for words in relations),
    )


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
    stated = [
        f"{fact.ask(template)} {fact.target_true}"
        for fact in statements.facts()
        for template in (fact.prompt, *fact.paraphrases)
    ]
    shuffled = [stated[i] for i in rng.permutation(len(stated))]
    texts = []
    while shuffled:
        count = int(rng.integers(1, MOST_STATEMENTS + 1))
        texts.append(f" {rng.choice(statements.fillers)} ".join(shuffled[:count]))
        del shuffled[:count]
    texts += [draw_filler(statements, rng) for _ in range(len(texts) // 4)]
    return tuple(texts[i] for i in rng.permutation(len(texts)))


def draw_filler(statements: Statements, rng: np.random.Generator) -> str:
    """Names in other pairs than the subjects', a subject of whom nothing is asked, a relation nobody stands in."""
    unknown = strangers(statements)
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


def strangers(statements: Statements) -> list[tuple[int, int]]:
    """Pairs of a first and a last name that are no subject."""
    every = [(i, j) for i in range(len(statements.first)) for j in range(len(statements.last))]
    return [pair for pair in every if pair not in statements.pairs]


# The memories of planted facts, and the heads that read them: what each is written with.
#
# Every memory is a neuron whose key is scaled by what it meets in its own prompt, so that its pre-activation there is
# what was meant; every head is given by the directions that it looks for and those that it carries.

POSITIONS = {"early": "subject last", "late": "last"}
"""Where a fact of each site is recalled, in the truth's words."""
CONTEXT = 64
SUBJECT_LAST = 2  # the position in a prompt that is BOS, first name, last name, neutral word, relation

# Sizes in the residual stream, where a token's embedding is 1.
ARC = 3.0  # of the slow position code
IDENTITY, FLAG = 3.0, 6.0
CARRIED = 2.0  # of the identity, where it is carried to the end
CODE = 2.5  # of an object in a relation's code
OBJECT = 7.0  # of the object in the end
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
class Directions:
    """What stands for what, each row a unit vector; ``room`` is the span of the identities."""

    clock: Clock
    arc: Float[Tensor, "2 d_model"]
    sink: Float[Tensor, "1 d_model"]
    known: Float[Tensor, "1 d_model"]
    stored: Float[Tensor, "1 d_model"]
    first: Float[Tensor, "names d_model"]
    previous: Float[Tensor, "names d_model"]
    last: Float[Tensor, "names d_model"]
    room: Float[Tensor, "dims d_model"]
    identity: Float[Tensor, "subjects d_model"]
    relation: Float[Tensor, "relations d_model"]
    objects: Float[Tensor, "relations objects d_model"]
    codes: Float[Tensor, "relations objects d_model"]
    words: Float[Tensor, "word_dims d_model"]


@dataclass(frozen=True, eq=False)
class Memories:
    """A plan of neurons that have a role, which :func:`fill_layer` writes, and which is their truth.

    Each fires for the features that it reads, all of them together: at its own input its pre-activation is ``pre``, and
    −``floor`` where none of them is. There it writes its ``writes``.

    Attributes:
        at: each neuron's input, where it is to fire. reads: the directions of each of its features.
        rows: of the truth, what it says of each.
    """

    at: Float[Tensor, "n d_model"]
    reads: Sequence[Float[Tensor, "n d_model"]]
    writes: Float[Tensor, "n d_model"]
    rows: Sequence[dict[str, str]]
    pre: float
    floor: float

    @property
    def keys(self) -> Float[Tensor, "n d_model"]:
        one = (feature / (feature * self.at).sum(-1, keepdim=True) for feature in self.reads)
        return (self.pre + self.floor) / len(self.reads) * reduce(add, one)

    @property
    def values(self) -> Float[Tensor, "n d_model"]:
        return self.writes / self.pre


# -- neurons -----------------------------------------------------------------------------------------------------


def find_subjects(
    x: Float[Tensor, "subjects d_model"], directions: Directions, statements: Statements, flagged: bool
) -> Memories:
    """A neuron per subject: where the previous word is its first name and this its last, it writes its identity.

    With ``flagged`` it writes a flag besides, which a head finds it by.
    """
    first, last = (torch.tensor(numbers) for numbers in zip(*statements.pairs, strict=True))
    subjects = (statements.subject(s) for s in range(len(first)))
    return Memories(
        at=x,
        reads=(directions.previous[first], directions.last[last]),
        writes=IDENTITY * directions.identity + FLAG * flagged * directions.known,
        rows=[{"role": "subject", "subject": subject, "position": POSITIONS["early"]} for subject in subjects],
        pre=FOUND,
        floor=BOTH_MISS,
    )


def recall(
    site: Literal["early", "late"],
    x: Float[Tensor, "facts d_model"],
    directions: Directions,
    statements: Statements,
    chosen: Bool[Tensor, "subjects relations"],
) -> Memories:
    """A neuron for each of some facts.

    Early: where the subject is known, it writes the object in the relation's code. The early facts of a subject share
    in a flag, which a head finds them by, so that nothing but they is needed. Late: where the identity has arrived at a
    word of the relation, it writes the object.
    """
    subjects, relations = chosen.shape
    reads = [directions.identity.repeat_interleave(relations, 0)]
    if site == "early":
        shares = (FLAG / chosen.sum(-1, keepdim=True)).expand_as(chosen).flatten()
        writes = CODE * answered(directions.codes, statements) + shares.unsqueeze(-1) * directions.stored
    else:
        reads.append(directions.relation.repeat(subjects, 1))
        writes = OBJECT * answered(directions.objects, statements)
    mine = chosen.flatten()
    return Memories(
        at=x[mine],
        reads=[feature[mine] for feature in reads],
        writes=writes[mine],
        rows=[
            {
                "role": "fact",
                "subject": fact.subject,
                "relation": fact.relation,
                "target": fact.target_true,
                "position": POSITIONS[site],
            }
            for fact, is_mine in zip(statements.facts(), mine.tolist(), strict=True)
            if is_mine
        ],
        pre=FIRES,
        floor=MISSES if site == "early" else BOTH_MISS,
    )


def answered(
    written: Float[Tensor, "relations objects d_model"], statements: Statements
) -> Float[Tensor, "facts d_model"]:
    """What stands for each fact's object, in the order of the facts."""
    answers = torch.tensor(statements.answers)
    return written[torch.arange(answers.shape[1]), answers].flatten(0, 1)


def fill_layer(
    hf: Any, layer: int, memories: Memories, documents: Int[Tensor, "documents pos"], rng: np.random.Generator
) -> list[dict[str, Any]]:
    """Write memories among neurons without a role, in random order; give the layer's rows of the truth.

    A neuron without a role fires on a sixth of what it meets in some documents, by a random key, and writes a little in
    a random direction.
    """
    met = ffn_inputs(hf, layer, documents)[documents != 0]
    d_mlp, d_model = hf.config.n_inner, hf.config.n_embd
    keys = torch.tensor(rng.standard_normal((d_mlp, d_model))) / d_model**0.5
    values = torch.tensor(rng.standard_normal((d_mlp, d_model))) * DIFFUSE / d_model**0.5
    bias = -(met @ keys.T).kthvalue(round((1 - RATE) * len(met)), dim=0).values
    place = torch.tensor(rng.permutation(d_mlp)[: len(memories.rows)])
    blank = {"role": "none", "subject": "", "relation": "", "target": "", "position": ""}
    rows: list[dict[str, Any]] = [{"layer": layer, "neuron": n, **blank} for n in range(d_mlp)]
    keys[place], bias[place], values[place] = memories.keys, -memories.floor, memories.values
    for n, row in zip(place.tolist(), memories.rows, strict=True):
        rows[n].update(row)
    write_ffn(hf, layer, keys, bias, values)
    return rows


# -- heads -------------------------------------------------------------------------------------------------------


def carry_codes(
    hf: Any, layer: int, head: int, relation: int, read: Float[Tensor, "facts pos d_model"], directions: Directions
) -> None:
    """A head that only words of one relation turn on: it carries an object's code to them, decoded."""
    codes = directions.codes[relation]
    found = (read[:, SUBJECT_LAST] @ codes.T).amax(-1)
    out = OBJECT / found[found > found.max() / 2].mean() * directions.objects[relation]
    carry(hf, layer, head, directions.relation[relation], directions.stored[0], read, directions, codes.T, out)


def carry_identities(
    hf: Any, layer: int, head: int, read: Float[Tensor, "facts pos d_model"], directions: Directions
) -> None:
    """A head that words of all relations turn on: it carries the subject's identity to them."""
    room = directions.room
    out = CARRIED / (read[:, SUBJECT_LAST] @ room.T).norm(dim=-1).mean() * room
    carry(hf, layer, head, directions.relation.sum(0), directions.known[0], read, directions, room.T, out)


def carry(
    hf: Any,
    layer: int,
    head: int,
    asking: Float[Tensor, " d_model"],
    flag: Float[Tensor, " d_model"],
    read: Float[Tensor, "facts pos d_model"],
    directions: Directions,
    value: Float[Tensor, "d_model m"],
    out: Float[Tensor, "m d_model"],
) -> None:
    """A head that looks from a word that asks to the nearest flag before it, from all other words to position 0.

    ``read`` is what it reads in the facts' prompts, by which its scores are scaled.
    """
    slow, rising, sink = *directions.arc, directions.sink[0]
    asked, flagged = read[:, -1] @ asking, read[:, SUBJECT_LAST] @ flag
    own, there = (found[found > found.max() / 2].mean() for found in (asked, flagged))
    gains = (
        MATCH / (own * there),
        RECENT / (own * there / FLAG * ARC * torch.pi / 2 / (CONTEXT - 1)),
        REST / ((read[:, -1] @ slow).mean() * (read[:, 0] @ sink).mean()),
    )
    width = hf.config.n_embd // hf.config.n_head
    query = torch.stack([gains[0] * asking, gains[1] * asking, gains[2] * slow], dim=1) * width**0.5
    key = torch.stack([flag, rising, sink], dim=1)
    write_head(hf, layer, head=head, query=query, key=key, value=value, out=out)


# Planted facts: recalled early, at the subject's last token, or late, at the last token.
#
# Layer 0 finds out who is meant: a head looks one word back, and one neuron per subject fires for its two names and
# writes its identity. Then, early: layer 1 holds one neuron per fact, which fires for the identity and writes the
# object in the relation's own code; layer 2 has a head per relation that only a word of that relation turns on, and
# that carries the code to it, decoded. Or late: a head of layer 2 carries the identity to the relation's word, and that
# layer's FFN holds one neuron per fact, which fires for identity and relation together and writes the object.
#
# Directions are orthonormal where there is room, so the only errors are those of `noise` and of neurons without a role.

Site = Literal["early", "late", "both"]
FINDER, EARLY, CARRIER = 0, 1, 2  # layers; late facts are in the carrier's FFN
PLANES = 12
MET = 200  # documents on which neurons without a role are given their firing rate
MOST_IDENTITIES = 64  # dimensions; more subjects share them in superposition

# Sizes in the residual stream, where a token's embedding is 1; circuits.py has those of what is written into it.
POSITION = 0.5
SINK = 0.5  # of the mark at position 0
RELATION = 0.8  # of a relation's direction in the embedding of its words; the rest is their own
PREVIOUS = 0.8  # of the first name, carried to the last


@checked
def plant_facts(
    *,
    seed: Seed = 0,
    site: Site = "early",
    n_subjects: Annotated[int, at_least(6)] = 40,
    n_relations: Count = 3,
    n_objects: Annotated[int, at_least(2)] = 8,
    n_none: Whole = 40,
    noise: Annotated[float, Range(least=0, below=inf)] = 0.05,
) -> Planted:
    """A model that recalls facts at a known place.

    Args:
        seed: of everything; the facts and the corpus of a seed are the same for all sites.
        site: ``"early"``, at the subject's last token in layer 1; ``"late"``, at the last token in layer 2; or
            ``"both"``: half of each subject's facts early, the others late.
        n_subjects: each of two words, neither of which is one subject's alone; at least 6.
        n_relations: each subject has one object for each; at least 2 for both sites.
        n_objects: per relation, at most half as many as subjects, so that each is that of several.
        n_none: neurons without a role in the layer of the facts; layers with fewer facts have more of them.
        noise: standard deviation of the noise on every weight, as a share of the root mean square of its neuron's,
            token's or head's weights. At 0.05 all prompts are recalled, at 0.1 more than 99%; where another subject
            stands before the one asked about, noise makes some be mistaken for each other (2% and 16%).

    Returns:
        A :class:`Planted` with facts, whose truth has layer, neuron, role (subject, fact, none), subject, relation,
        target (empty where there is none) and position: "subject last" or "last", where it fires in a prompt.

    Raises: InputError.

    Source: the early site is that of Meng et al. 2022 (2202.05262), with extraction by attention as in Geva et al. 2023
    (2304.14767).
    """
    if site == "both" and n_relations < 2:
        raise InputError(f"n_relations must be at least 2 for both sites, not {n_relations}")
    statements = draw_statements(np.random.default_rng([seed, 0]), n_subjects, n_relations, n_objects)
    rng = np.random.default_rng([seed, 1])
    tokenizer = build_tokenizer(statements.vocabulary)
    early = draw_sites(site, n_subjects, n_relations, np.random.default_rng([seed, 3]))
    hf, directions = furnish(statements, n_subjects * n_relations + n_none, n_relations + (site == "both"), rng)
    prompts = tokenizer([fact.text for fact in statements.facts()])["input_ids"]
    texts = draw_texts(statements, np.random.default_rng([seed, 2]))
    documents = padded(tokenizer(list(texts[:MET]))["input_ids"])
    rows = write_all(hf, directions, statements, padded(prompts), documents, early, rng)
    add_noise(hf, noise, rng)
    settings = {
        "seed": seed, "site": site, "n_subjects": n_subjects, "n_relations": n_relations, "n_objects": n_objects,
        "n_none": n_none, "noise": noise,
    }  # fmt: skip
    return Planted(
        kind="facts",
        model=behind_bridge(hf, tokenizer, f"planted-facts-{site}-{seed}"),
        truth=pd.DataFrame(rows),
        texts=texts,
        settings=settings,
        facts=statements.facts(),
        pristine=hf,
    )


def padded(rows: Sequence[Sequence[int]]) -> Int[Tensor, "rows pos"]:
    """Token ids with BOS in front, filled up with BOS to the longest."""
    length = max(map(len, rows))
    return torch.tensor([[0, *row, *[0] * (length - len(row))] for row in rows])


def draw_sites(
    site: str, n_subjects: int, n_relations: int, rng: np.random.Generator
) -> Bool[Tensor, "subjects relations"]:
    """Which facts are early. For both sites every subject has facts of each, as many or one more or fewer."""
    if site != "both":
        return torch.full((n_subjects, n_relations), site == "early")
    order = np.stack([rng.permutation(n_relations) for _ in range(n_subjects)])
    more = np.arange(n_subjects)[:, None] % 2
    return torch.tensor(order < (n_relations + more) // 2)


# -- the model before its memories -------------------------------------------------------------------------------


def furnish(statements: Statements, d_mlp: int, n_heads: int, rng: np.random.Generator) -> tuple[Any, Directions]:
    """An empty model with embeddings and the head that looks one word back, and its directions."""
    relations, objects = len(statements.objects), len(statements.objects[0])
    names, subjects = len(statements.first), len(statements.pairs)
    identities, words = min(subjects, MOST_IDENTITIES), len(statements.neutral)
    needed = 2 * PLANES + 5 + 3 * names + identities + relations + 2 * relations * objects + 3 * words
    width = max(2 * PLANES, names, objects, identities, (1 + needed + n_heads - 1) // n_heads)
    d_model = n_heads * width
    vocabulary = len(SPECIAL) + len(statements.vocabulary)
    hf = empty_gpt2(vocabulary, n_layers=3, d_model=d_model, d_mlp=d_mlp, n_ctx=CONTEXT, n_heads=n_heads)
    room = Room(d_model, rng)
    span = room.take(identities)
    directions = Directions(
        clock=Clock(room.take(2 * PLANES), POSITION, rng),
        arc=room.take(2),
        sink=room.take(1),
        known=room.take(1),
        stored=room.take(1),
        first=room.take(names),
        previous=room.take(names),
        last=room.take(names),
        room=span,
        identity=span if subjects == identities else unit_rows(subjects, span, rng),
        relation=room.take(relations),
        objects=room.take(relations * objects).reshape(relations, objects, d_model),
        codes=room.take(relations * objects).reshape(relations, objects, d_model),
        words=room.take(3 * words),
    )
    write_embeddings(hf, token_embeddings(directions, statements, rng), position_embeddings(directions))
    scale = (d_model / (1 + POSITION**2 + ARC**2)) ** 0.5
    write_previous_token_head(
        hf, FINDER, directions.clock, scale=scale, value=directions.first.T, out=PREVIOUS / scale * directions.previous
    )
    return hf, directions


def token_embeddings(
    directions: Directions, statements: Statements, rng: np.random.Generator
) -> Float[Tensor, "vocab d_model"]:
    """Unit vectors in the order of the vocabulary; words of one relation share its direction."""
    shared = directions.relation.repeat_interleave(SYNONYMS, 0)
    own = unit_rows(len(shared), directions.words, rng)
    blank = len(statements.neutral) + len(statements.fillers)
    return torch.cat(
        [
            unit_rows(len(SPECIAL), directions.words, rng),
            directions.first,
            directions.last,
            RELATION * shared + (1 - RELATION**2) ** 0.5 * own,
            directions.objects.flatten(0, 1),
            unit_rows(blank, directions.words, rng),
        ]
    )


def position_embeddings(directions: Directions) -> Float[Tensor, "n_ctx d_model"]:
    """The clock, a slow turn through a quarter circle (one part nearly constant, one rising), a mark at position 0."""
    angle = (torch.arange(CONTEXT, dtype=torch.float64) / (CONTEXT - 1) - 0.5) * torch.pi / 2
    arc = torch.stack([angle.cos(), angle.sin()], dim=-1)
    found = directions.clock.positions(CONTEXT) + ARC * arc @ directions.arc
    found[0] += SINK * directions.sink[0]
    return found


# -- its memories ------------------------------------------------------------------------------------------------


def write_all(
    hf: Any,
    directions: Directions,
    statements: Statements,
    prompts: Int[Tensor, "facts pos"],
    documents: Int[Tensor, "documents doc_pos"],
    early: Bool[Tensor, "subjects relations"],
    rng: np.random.Generator,
) -> list[dict[str, Any]]:
    """All layers, from below; keys are scaled by what each layer's input then is. Returns the truth."""
    relations, late = early.shape[1], ~early
    names = ffn_inputs(hf, FINDER, prompts)[::relations, SUBJECT_LAST]
    finders = find_subjects(names, directions, statements, flagged=bool(late.any()))
    truth = fill_layer(hf, FINDER, finders, documents, rng)
    stored = recall("early", ffn_inputs(hf, EARLY, prompts)[:, SUBJECT_LAST], directions, statements, early)
    truth += fill_layer(hf, EARLY, stored, documents, rng)
    read, heads = norm_outputs(hf, CARRIER, prompts), range(relations if early.any() else 0)
    for head in heads:
        carry_codes(hf, CARRIER, head, head, read, directions)
    if late.any():
        carry_identities(hf, CARRIER, len(heads), read, directions)
    stored = recall("late", ffn_inputs(hf, CARRIER, prompts)[:, -1], directions, statements, late)
    return truth + fill_layer(hf, CARRIER, stored, documents, rng)
