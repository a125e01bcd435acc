"""``with_targets``: facts that say only what is true made into such that edits can be tried and judged on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from ..core.errors import InputError, check_count
from ..core.types import Seed, Whole, checked
from .fact import Fact


@checked
def with_targets(facts: Iterable[Fact], *, seed: Seed = 0, paraphrases: Whole = 2, neighbours: Whole = 5) -> list[Fact]:
    """The facts, each with what it lacks for an edit, taken from the others of its relation.

    A fact without a new target gets the true object of another fact of its relation, each different one as likely as
    any other; one without paraphrases, other prompts of the relation; one without neighbours, other subjects with its
    own true object, asked by its own prompt. What a fact has already stays as it is.

    Args:
        facts: with relations and true targets, such as known_1000's.
        seed: of the draws; a fact's own do not depend on which others of other relations there are.
        paraphrases, neighbours: of each fact at most.

    Returns: The same facts in the same order; those whose relation has one object alone still have no new target.

    Raises: InputError: a number below 1.

    Source: CounterFact is made in this way (Meng et al. 2022, 2202.05262, appendix E), but its paraphrases, which a
        model wrote there; the prompts of a relation in known_1000 do not always mean quite the same.
    """
    for name, count in (("paraphrases", paraphrases), ("neighbours", neighbours)):
        check_count(name, count)
    every = list(facts)
    if not all(isinstance(fact, Fact) for fact in every):
        raise InputError("with_targets takes facts: load_facts reads them from a file")
    groups: dict[str, list[Fact]] = defaultdict(list)
    for fact in every:
        if fact.relation and fact.target_true:
            groups[fact.relation].append(fact)
    draws = {relation: np.random.default_rng([seed, *relation.encode()]) for relation in groups}
    return [
        complete_fact(fact, groups[fact.relation], draws[fact.relation], paraphrases, neighbours)
        if fact.relation in groups and fact.target_true
        else fact
        for fact in every
    ]


def complete_fact(fact: Fact, group: list[Fact], draw: np.random.Generator, paraphrases: int, neighbours: int) -> Fact:
    """A fact with what it lacks, from those of its relation."""
    right = {fact.target_true, *fact.true_aliases}
    # A subject that has several objects would be asked for an answer that is true already.
    right |= {other.target_true for other in group if other.subject == fact.subject}

    def shuffle(values: set[str]) -> list[str]:
        ordered = sorted(values)
        return [ordered[i] for i in draw.permutation(len(ordered))]

    objects = shuffle({other.target_true for other in group} - right)
    prompts = shuffle({other.prompt for other in group} - {fact.prompt})
    subjects = shuffle({other.subject for other in group if other.target_true == fact.target_true} - {fact.subject})
    return replace(
        fact,
        target_new=fact.target_new or next(iter(objects), None),
        paraphrases=fact.paraphrases or tuple(prompts[:paraphrases]),
        neighbours=fact.neighbours if fact.prompts_about_neighbours else tuple(subjects[:neighbours]),
    )
