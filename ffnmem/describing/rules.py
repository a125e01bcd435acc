"""The explainer that asks nobody: what tokens the shown contexts fire at have in common, against how frequent that is.

A rule is a few atoms (a word, words that begin or end alike, numbers, …) of the firing token or of the one before it.
It is worth its share of the shown contexts minus the chance that a context of random tokens holds one: twice the
balanced accuracy that detection would then have, minus 1. Atoms are added while that grows.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Int64, Real

from ..core.errors import InputError
from ..core.token_text import visible
from ..neurons.counting import content_counts
from ..scanning.store import Store
from .extracts import Extract, NeuronContexts

OFFSETS = (0, -1)
GAIN = 0.1
"""An atom, and the token before in place of the firing one, must be worth so much more."""
UNSEEN = 0.25
"""Where at most this share of contexts has a word of its own, such words count too: about so much of the activation is
at words that were not seen (Good 1953)."""
HALF = 0.5  # of the contexts must be held by other atoms before
ATOMS = 8
BEGINS, ENDS = 3, 2  # letters, at least
FEWEST = 4  # contexts that a rule is made of
NOTHING = "no token that its contexts share"


def plain(token: str) -> str:
    """A token without its spaces and capitals; one of spaces alone as it is."""
    return token.strip().casefold() or token


CLASSES: Mapping[str, Callable[[str], bool]] = {
    "numbers": lambda token: token.strip().isdigit(),
    "words with a capital": lambda token: token.strip()[:1].isupper() and token.strip()[1:].islower(),
    "words in capitals": lambda token: len(token.strip()) > 1 and token.strip().isupper(),
    "punctuation": lambda token: bool(token.strip()) and not any(c.isalnum() for c in token),
}


@dataclass(frozen=True)
class Atom:
    """One kind of tokens: ``kind`` "word", "beginning", "ending" or "class", and which."""

    kind: str
    text: str

    def holds(self, token: str) -> bool:
        """Whether a token is one."""
        if self.kind == "class":
            return CLASSES[self.text](token)
        word = plain(token)
        if self.kind == "word":
            return word == self.text
        return word.startswith(self.text) if self.kind == "beginning" else word.endswith(self.text)


@dataclass(frozen=True)
class Rule:
    """``atoms`` of which one must hold, of the token itself (``offset`` 0) or the one before it (−1); ``share`` of the
    shown contexts in which it does."""

    offset: int
    atoms: tuple[Atom, ...]
    share: float

    def matches(self, tokens: Sequence[str], at: int) -> bool:
        """Whether it holds at one of some tokens."""
        place = at + self.offset
        return 0 <= place < len(tokens) and any(atom.holds(tokens[place]) for atom in self.atoms)

    def within(self, extract: Extract) -> bool:
        """Whether it holds anywhere in a context."""
        return any(self.matches(extract.tokens, at) for at in range(len(extract.tokens)))

    @property
    def words(self) -> str:
        """In words."""
        if not self.atoms:
            return NOTHING
        parts = []
        for kind, some in groupby(sorted(self.atoms, key=lambda atom: KINDS.index(atom.kind)), lambda atom: atom.kind):
            names = [atom.text if kind == "class" else f'"{visible(atom.text)}"' for atom in some]
            parts.append(f"{SAID[kind]}{' or '.join(names)}")
        after = "what follows " if self.offset else ""
        return f"{after}{'; '.join(parts)} ({self.share:.0%} of its contexts)"


SAID = {"word": "", "beginning": "words that begin with ", "ending": "words that end in ", "class": ""}
KINDS = list(SAID)


def shares(unigram: Real[np.ndarray, " vocab"]) -> Float64[np.ndarray, " vocab"]:
    """Counts or shares as probabilities that sum to 1; raises InputError."""
    counts = unigram.astype(np.float64)
    total = float(counts.sum())
    if not np.isfinite(total) or not total > 0 or (counts < 0).any():
        raise InputError(f"unigram must hold counts or shares of at least 0 with a sum above 0, not a sum of {total}")
    return counts / total


class Vocabulary:
    """How frequent each kind of token is: of tokens and their shares of a text."""

    def __init__(self, tokens: Sequence[str], share: Float64[np.ndarray, " vocab"]) -> None:
        there = np.flatnonzero(share)
        texts = [tokens[i] for i in there.tolist()]
        words = [plain(text) for text in texts]
        self.share = share[there]
        self.sorted, self.turned = Alphabet(words), Alphabet([word[::-1] for word in words])
        self.classes = {name: np.array([holds(text) for text in texts], bool) for name, holds in CLASSES.items()}

    @staticmethod
    def of(store: Store) -> Vocabulary:
        """Of a store's text."""
        return Vocabulary(store.contexts.strings(range(store.corpus.vocab)), shares(content_counts(store)))

    def which(self, atom: Atom) -> Int64[np.ndarray, " n"]:
        """The tokens that an atom holds for."""
        if atom.kind == "class":
            return np.flatnonzero(self.classes[atom.text])
        if atom.kind == "ending":
            return self.turned.beginning(atom.text[::-1])
        return self.sorted.beginning(atom.text) if atom.kind == "beginning" else self.sorted.equal(atom.text)


class Alphabet:
    """Words in order, to find those that begin alike."""

    def __init__(self, words: Sequence[str]) -> None:
        self.order = np.array(sorted(range(len(words)), key=words.__getitem__), np.int64)
        self.words = [words[i] for i in self.order.tolist()]

    def beginning(self, text: str) -> Int64[np.ndarray, " n"]:
        return self.order[bisect_left(self.words, text) : bisect_left(self.words, text + "\U0010ffff")]

    def equal(self, text: str) -> Int64[np.ndarray, " n"]:
        return self.order[bisect_left(self.words, text) : bisect_right(self.words, text)]


def learn_rule(drawn: NeuronContexts, vocabulary: Vocabulary) -> Rule:
    """The rule that the shown contexts of a neuron follow; one without atoms where they share nothing."""
    best, worth = Rule(0, (), 0.0), 0.0
    if len(drawn.shown) < FEWEST:
        return best
    length = float(np.mean([len(one.tokens) for one in drawn.shown]))
    for offset in OFFSETS:
        firing = [one.tokens[one.at + offset] if one.at + offset >= 0 else "" for one in drawn.shown]
        found, value = learn_atoms(firing, vocabulary, length)
        if value > worth + (GAIN if offset else 0.0):
            best, worth = Rule(offset, *found), value
    return best


def learn_atoms(
    firing: Sequence[str], vocabulary: Vocabulary, length: float
) -> tuple[tuple[tuple[Atom, ...], float], float]:
    """Atoms of some tokens with the share of them that these hold for; and what they are worth.

    Args:
        length: tokens of a context, in which a frequent token stands by chance.
    """
    table = {atom: np.array([atom.holds(token) for token in firing], bool) for atom in list_atoms(firing)}
    common = {atom: at for atom, at in table.items() if at.sum() > 1}
    alone = {atom: at for atom, at in table.items() if atom.kind == "word" and at.sum() == 1}
    cover = Cover(vocabulary, np.zeros(len(firing), bool), length)
    while len(cover.atoms) < ATOMS and (found := cover.best(common, GAIN)) is not None:
        cover.add(*found)
    if cover.held.mean() >= HALF and len(alone) <= UNSEEN * len(firing):
        while len(cover.atoms) < ATOMS and (found := cover.best(alone, 0.0)) is not None:
            cover.add(*found)
    return (tuple(cover.atoms), float(cover.held.mean())), cover.worth


class Cover:
    """Atoms under choice. ``held``: the tokens that one of them holds for."""

    def __init__(self, vocabulary: Vocabulary, held: Bool[np.ndarray, " n"], length: float) -> None:
        self.vocabulary, self.held, self.length = vocabulary, held, length
        self.base = np.zeros(len(vocabulary.share), bool)
        self.atoms: list[Atom] = []
        self.worth = 0.0

    def best(self, atoms: Mapping[Atom, Bool[np.ndarray, " n"]], least: float) -> tuple[Atom, Any, float] | None:
        """The atom that adds most, if that is more than ``least``; words before what is less plain."""
        found, most = None, least + 1e-9
        for atom, at in atoms.items():
            if not (at & ~self.held).any():
                continue
            base = self.base.copy()
            base[self.vocabulary.which(atom)] = True
            chance = 1 - (1 - min(float(self.vocabulary.share[base].sum()), 1.0)) ** self.length
            worth = float((self.held | at).mean()) - chance
            if worth - self.worth > most:
                found, most = (atom, at, worth), worth - self.worth + 1e-9
        return found

    def add(self, atom: Atom, at: Bool[np.ndarray, " n"], worth: float) -> None:
        self.atoms.append(atom)
        self.held = self.held | at
        self.base[self.vocabulary.which(atom)] = True
        self.worth = worth


def list_atoms(firing: Iterable[str]) -> Iterator[Atom]:
    """What might be said of some tokens, plainest first: what at least two words share, and each word."""
    words = sorted({plain(token) for token in firing if token})
    for word in words:
        yield Atom("word", word)
    letters = [word for word in words if word.isalpha()]
    for kind, least, several in (("beginning", BEGINS, 2), ("ending", ENDS, 3)):
        ends: dict[str, int] = {}
        for word in letters:
            for n in range(least, len(word) + 1):
                end = word[:n] if kind == "beginning" else word[-n:]
                ends[end] = ends.get(end, 0) + 1
        # Of beginnings that the same words share, the longest.
        longest: dict[frozenset[str], str] = {}
        for end, count in ends.items():
            if count >= several:
                some = frozenset(word for word in letters if Atom(kind, end).holds(word))
                longest[some] = max(longest.get(some, ""), end, key=len)
        for end in sorted(longest.values()):
            yield Atom(kind, end)
    for name in CLASSES:
        yield Atom("class", name)
