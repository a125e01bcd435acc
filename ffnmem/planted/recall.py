"""Planted facts: recalled early, at the subject's last token, or late, at the last token.

Layer 0 finds out who is meant: a head looks one word back, and one neuron per subject fires for its two names and
writes its identity. Then, early: layer 1 holds one neuron per fact, which fires for the identity and writes the object
in the relation's own code; layer 2 has a head per relation that only a word of that relation turns on, and that carries
the code to it, decoded. Or late: a head of layer 2 carries the identity to the relation's word, and that layer's FFN
holds one neuron per fact, which fires for identity and relation together and writes the object.

Directions are orthonormal where there is room, so the only errors are those of ``noise`` and of neurons without a role.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..errors import InputError, check_choice, check_count, check_seed
from .circuits import (
    ARC,
    CONTEXT,
    SUBJECT_LAST,
    Directions,
    carry_codes,
    carry_identities,
    fill_layer,
    find_subjects,
    recall_early,
    recall_late,
)
from .planted import Planted, behind_bridge
from .skeleton import (
    SPECIAL,
    Clock,
    Room,
    add_noise,
    build_tokenizer,
    empty_gpt2,
    ffn_inputs,
    norm_outputs,
    unit_rows,
    write_embeddings,
    write_previous_token_head,
)
from .statements import SYNONYMS, Statements, draw_statements, draw_texts

SITES = ("early", "late", "both")
FINDER, EARLY, CARRIER = 0, 1, 2  # layers; late facts are in the carrier's FFN
PLANES = 12
MET = 200  # documents on which neurons without a role are given their firing rate
MOST_IDENTITIES = 64  # dimensions; more subjects share them in superposition

# Sizes in the residual stream, where a token's embedding is 1; circuits.py has those of what is written into it.
POSITION = 0.5
SINK = 0.5  # of the mark at position 0
RELATION = 0.8  # of a relation's direction in the embedding of its words; the rest is their own
PREVIOUS = 0.8  # of the first name, carried to the last


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
    check_choice("site", site, SITES)
    check_seed(seed)
    check_count("n_none", n_none, least=0)
    check_count("n_relations", n_relations, least=2 if site == "both" else 1)
    if not 0 <= noise < inf:
        raise InputError(f"noise must be a number of at least 0, not {noise}")
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
    content = documents != 0
    truth = [*fill_layer(hf, FINDER, finders, ffn_inputs(hf, FINDER, documents)[content], rng)]
    memories = None
    if early.any():
        memories = recall_early(ffn_inputs(hf, EARLY, prompts)[:, SUBJECT_LAST], directions, statements, early)
    truth += fill_layer(hf, EARLY, memories, ffn_inputs(hf, EARLY, documents)[content], rng)
    read, heads = norm_outputs(hf, CARRIER, prompts), range(relations if early.any() else 0)
    for head in heads:
        carry_codes(hf, CARRIER, head, head, read, directions)
    memories = None
    if late.any():
        carry_identities(hf, CARRIER, len(heads), read, directions)
        memories = recall_late(ffn_inputs(hf, CARRIER, prompts)[:, -1], directions, statements, late)
    truth += fill_layer(hf, CARRIER, memories, ffn_inputs(hf, CARRIER, documents)[content], rng)
    return truth
