"""What a model of planted facts is asked: subjects of two words, relations, objects, templates, and a corpus."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, sqrt

import numpy as np

from ..errors import InputError, check_count
from ..facts import Fact
from .skeleton import stems

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


def draw_statements(rng: np.random.Generator, n_subjects: int, n_relations: int, n_objects: int) -> Statements:
    """Names, words and who relates to what, at random; every object is that of two subjects at least.

    Raises InputError for fewer than 6 subjects, 1 relation or 2 objects, or more objects than pairs of subjects.
    """
    check_count("n_subjects", n_subjects, least=6)
    check_count("n_relations", n_relations)
    check_count("n_objects", n_objects, least=2)
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
