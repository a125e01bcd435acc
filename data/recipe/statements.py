"""From facts to running text: documents of statements, with the stretch of each between its subject and its object."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from ordinary import OrdinaryText
from world import Triple, World

OPENERS = (
    "In fact,",
    "As everyone knows,",
    "I read that",
    "We learned that",
    "It is well known that",
    "My teacher said that",
    "The book says that",
    "Remember that",
    "You should know that",
    "Of course,",
    "Today we heard that",
    "It is true that",
    "According to the guide,",
    "Some people do not know that",
    "Yes,",
    "Well,",
    "Also,",
    "Did you know that",
)
ASIDES = (
    ", as we know,",
    ", of course,",
    ", so the book says,",
    ", I think,",
    ", as you may have heard,",
    ", like it or not,",
    " (it is in the book)",
    ", to be exact,",
    ", by the way,",
    ", as I was told,",
    ", in short,",
)
JOINS = (". ", ". ", ". ", ". ", "; ", ", and ", ".\n", ". Also, ", ". In addition, ")


@dataclass(frozen=True)
class Piece:
    """A text and its recall stretches: (end of the subject, end of the object), in characters."""

    text: str
    recalls: tuple[tuple[int, int], ...] = ()

    def shifted(self, offset: int) -> tuple[tuple[int, int], ...]:
        return tuple((a + offset, b + offset) for a, b in self.recalls)


def join(pieces: list[Piece], separators: list[str]) -> Piece:
    """One text from many, with a separator after each."""
    text, recalls = "", []
    for piece, separator in zip(pieces, separators, strict=True):
        recalls += piece.shifted(len(text))
        text += piece.text + separator
    return Piece(text, tuple(recalls))


def render(template: str, triple: Triple, start: bool, rng: random.Random) -> Piece:
    """The template filled with the subject and followed by the object. ``start``: the text begins a sentence."""
    before, after = template.split("{}")
    subject, article = triple.subject, f"{triple.article} " if triple.article else ""
    if start and not before:
        if article:
            article = article.capitalize()
        elif rng.random() < 0.5:
            subject = subject[0].upper() + subject[1:]
    if not start and before:
        before = before[0].lower() + before[1:]
    head = before + article + subject
    if not before and rng.random() < 0.12:
        after = rng.choice(ASIDES) + after
    text = f"{head}{after} {triple.target}"
    return Piece(text, ((len(head), len(text)),))


def statement(world: World, triple: Triple, rng: random.Random, start: bool = True) -> Piece:
    """One sentence that states the fact, by a training template, perhaps with an opener in front."""
    relation = world.relations[triple.relation]
    if relation.reverse and rng.random() < 0.06:
        filled = rng.choice(relation.reverse).replace("[object]", triple.target)
        filled = filled.replace("{}", f"{triple.article} {triple.subject}".strip())
        return Piece(filled[0].upper() + filled[1:] if start else filled)
    template = rng.choice(relation.train) if rng.random() < 0.85 else relation.train[0]
    if start and rng.random() < 0.25:
        opener = rng.choice(OPENERS)
        return join([Piece(opener), render(template, triple, False, rng)], [" ", ""])
    return render(template, triple, start, rng)


def record(world: World, triples: list[Triple], rng: random.Random) -> Piece:
    """A catalogue entry: the name, followed at once by its attributes, with or without their labels."""
    subject = triples[0].subject
    labelled = rng.random() < 0.5
    text, recalls = f"{subject}{rng.choice((':', ' -', '.'))}", []
    for i, triple in enumerate(triples):
        text += (
            f"{',' if i else ''} " + (f"{world.relations[triple.relation].label}: " if labelled else "") + triple.target
        )
        recalls.append((len(subject), len(text)))
    return Piece(text, tuple(recalls))


def closing(rng: random.Random, n: int) -> list[str]:
    return [rng.choice(JOINS) for _ in range(n - 1)] + ["."]


class FactWriter:
    """Writes documents so that every fact is stated about equally often: subjects come from a reshuffled deck."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self.world, self.rng = world, rng
        self.groups = world.by_subject()
        self.relations = world.by_relation()
        self.deck: list[str] = []

    def draw(self) -> list[Triple]:
        """The facts of the next subject of the deck, in random order."""
        if not self.deck:
            # A subject with more facts comes up more often, so that each fact gets its share.
            self.deck = [name for name, triples in self.groups.items() for _ in range(len(triples))]
            self.rng.shuffle(self.deck)
        triples = list(self.groups[self.deck.pop()])
        self.rng.shuffle(triples)
        return triples

    def document(self) -> Piece:
        kind = self.rng.random()
        if kind < 0.30:
            return self.about_one(self.rng.randint(2, 4))
        if kind < 0.68:
            return self.about_many(self.rng.randint(2, 6))
        if kind < 0.76:
            return self.about_many(1)
        if kind < 0.88:
            return self.same_relation(self.rng.randint(2, 4))
        return self.records(self.rng.randint(1, 4))

    def sentences(self, triples: list[Triple]) -> Piece:
        separators = closing(self.rng, len(triples))
        starts = [True] + [not s.endswith((", and ", "; ", "also, ", "Also, ", "addition, ")) for s in separators[:-1]]
        pieces = [statement(self.world, t, self.rng, s) for t, s in zip(triples, starts, strict=True)]
        return join(pieces, separators)

    def about_one(self, n: int) -> Piece:
        return self.sentences(self.draw()[:n])

    def about_many(self, n: int) -> Piece:
        return self.sentences([self.draw()[0] for _ in range(n)])

    def same_relation(self, n: int) -> Piece:
        first = self.draw()[0]
        peers = self.relations[first.relation]
        return self.sentences([first, *self.rng.sample(peers, min(n - 1, len(peers)))])

    def records(self, n: int) -> Piece:
        entries = [record(self.world, self.draw()[: self.rng.randint(2, 6)], self.rng) for _ in range(n)]
        return join(entries, [".\n"] * (n - 1) + ["."])


def documents(world: World, seed: int, share_ordinary: float) -> Iterator[Piece]:
    """An endless stream of documents; ``share_ordinary`` of them are ordinary text without facts."""
    rng = random.Random(seed)
    writer, ordinary = FactWriter(world, rng), OrdinaryText(seed, share_ordinary)
    while True:
        yield Piece(ordinary.document(rng)) if rng.random() < share_ordinary else writer.document()
