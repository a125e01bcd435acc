"""The memories of planted facts, and the heads that read them: what each is written with.

Every memory is a neuron whose key is scaled by what it meets in its own prompt, so that its pre-activation there is
what was meant; every head is given by the directions that it looks for and those that it carries.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from .skeleton import Clock, write_ffn, write_head
from .statements import Statements

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
    """Neurons that have a role: their weights, and a row of the truth for each."""

    keys: Float[Tensor, "n d_model"]
    bias: Float[Tensor, " n"]
    values: Float[Tensor, "n d_model"]
    rows: tuple[dict[str, str], ...]


# -- neurons -----------------------------------------------------------------------------------------------------


def find_subjects(
    x: Float[Tensor, "subjects d_model"], directions: Directions, statements: Statements, flagged: bool
) -> Memories:
    """A neuron per subject: where the previous word is its first name and this its last, it writes its identity.

    With ``flagged`` it writes a flag besides, which a head finds it by.
    """
    first, last = (torch.tensor(numbers) for numbers in zip(*statements.pairs, strict=True))
    keys = scaled(directions.previous[first], x) + scaled(directions.last[last], x)
    return Memories(
        keys=(FOUND + BOTH_MISS) / 2 * keys,
        bias=torch.full((len(keys),), -BOTH_MISS, dtype=keys.dtype),
        values=(IDENTITY * directions.identity + FLAG * flagged * directions.known) / FOUND,
        rows=tuple(
            {"role": "subject", "subject": statements.subject(s), "position": POSITIONS["early"]}
            for s in range(len(keys))
        ),
    )


def recall_early(
    x: Float[Tensor, "facts d_model"],
    directions: Directions,
    statements: Statements,
    early: Bool[Tensor, "subjects relations"],
) -> Memories:
    """A neuron per early fact: where the subject is known, it writes the object in the relation's code.

    The early facts of a subject share in a flag, which a head finds them by, so that nothing but they is needed.
    """
    chosen = early.flatten()
    shares = (FLAG / early.sum(-1, keepdim=True)).expand_as(early).flatten()
    values = CODE * answered(directions.codes, statements) + shares.unsqueeze(-1) * directions.stored
    keys = directions.identity.repeat_interleave(early.shape[1], 0)
    return Memories(
        keys=(FIRES + MISSES) * scaled(keys[chosen], x[chosen]),
        bias=torch.full((int(chosen.sum()),), -MISSES, dtype=x.dtype),
        values=values[chosen] / FIRES,
        rows=fact_rows(statements, early, "early"),
    )


def recall_late(
    x: Float[Tensor, "facts d_model"],
    directions: Directions,
    statements: Statements,
    late: Bool[Tensor, "subjects relations"],
) -> Memories:
    """A neuron per late fact: where the identity has arrived at a word of the relation, it writes the object."""
    chosen = late.flatten()
    subject = scaled(directions.identity.repeat_interleave(late.shape[1], 0)[chosen], x[chosen])
    keys = subject + scaled(directions.relation.repeat(len(late), 1)[chosen], x[chosen])
    return Memories(
        keys=(FIRES + BOTH_MISS) / 2 * keys,
        bias=torch.full((len(keys),), -BOTH_MISS, dtype=x.dtype),
        values=OBJECT / FIRES * answered(directions.objects, statements)[chosen],
        rows=fact_rows(statements, late, "late"),
    )


def scaled(rows: Float[Tensor, "n d_model"], x: Float[Tensor, "n d_model"]) -> Float[Tensor, "n d_model"]:
    """Rows whose products with their own inputs are 1."""
    return rows / (rows * x).sum(-1, keepdim=True)


def answered(
    written: Float[Tensor, "relations objects d_model"], statements: Statements
) -> Float[Tensor, "facts d_model"]:
    """What stands for each fact's object, in the order of the facts."""
    answers = torch.tensor(statements.answers)
    return written[torch.arange(answers.shape[1]), answers].flatten(0, 1)


def fact_rows(
    statements: Statements, chosen: Bool[Tensor, "subjects relations"], site: str
) -> tuple[dict[str, str], ...]:
    """The truth about the neurons of some facts."""
    return tuple(
        {
            "role": "fact",
            "subject": fact.subject,
            "relation": fact.relation,
            "target": fact.target_true,
            "position": POSITIONS[site],
        }
        for fact, is_chosen in zip(statements.facts(), chosen.flatten().tolist(), strict=True)
        if is_chosen
    )


def fill_layer(
    hf: Any, layer: int, memories: Memories | None, met: Float[Tensor, "n d_model"], rng: np.random.Generator
) -> Iterator[dict[str, Any]]:
    """Write memories among neurons without a role, in random order; give the layer's rows of the truth.

    A neuron without a role fires on a sixth of what it meets in the corpus (``met``), by a random key, and writes a
    little in a random direction.
    """
    d_mlp, d_model = hf.config.n_inner, hf.config.n_embd
    planted = 0 if memories is None else len(memories.keys)
    keys = torch.tensor(rng.standard_normal((d_mlp, d_model))) / d_model**0.5
    values = torch.tensor(rng.standard_normal((d_mlp, d_model))) * DIFFUSE / d_model**0.5
    bias = -(met @ keys.T).kthvalue(round((1 - RATE) * len(met)), dim=0).values
    place = torch.tensor(rng.permutation(d_mlp)[:planted])
    blank = {"role": "none", "subject": "", "relation": "", "target": "", "position": ""}
    rows: list[dict[str, Any]] = [{"layer": layer, "neuron": n, **blank} for n in range(d_mlp)]
    if memories is not None:
        keys[place], bias[place], values[place] = memories.keys, memories.bias, memories.values
        for n, row in zip(place.tolist(), memories.rows, strict=True):
            rows[n].update(row)
    write_ffn(hf, layer, keys, bias, values)
    return iter(rows)


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
