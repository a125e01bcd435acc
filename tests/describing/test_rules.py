"""The explainer that asks nobody: what rules are found in tokens, and what they are worth."""

from __future__ import annotations

import numpy as np
import pytest

from ffnmem.describing.extracts import Extract, NeuronContexts
from ffnmem.describing.rules import ATOMS, NOTHING, Atom, Rule, Vocabulary, learn_rule

WORDS = ["the", "of", "know", "known", "running", "walking", "eating", "Paris", "7", "12", "2024", ".", "!", "to", "go"]
FILLER = [f"w{chr(97 + i // 26)}{chr(97 + i % 26)}" for i in range(500)]
TOKENS = [f" {word}" for word in WORDS + FILLER]
SHARE = np.array([0.05, 0.05, *[0.001] * (len(WORDS) - 2), *[0.0017] * 500])
VOCABULARY = Vocabulary(TOKENS, SHARE / SHARE.sum())


def drawn(firing: list[str], before: list[str] | None = None) -> NeuronContexts:
    """A neuron that fires at some tokens, in contexts of twelve others."""
    rng = np.random.default_rng(0)
    extracts = []
    for i, token in enumerate(firing):
        around = [f" {FILLER[j]}" for j in rng.integers(0, 500, 12)]
        tokens = [*around[:5], around[5] if before is None else before[i], token, *around[6:]]
        extracts.append(Extract(i, 6, i, 0, 1.0, tuple(tokens), 6))
    return NeuronContexts(0, 0, "positive", 1.0, tuple(extracts))


@pytest.mark.parametrize(
    ("firing", "atoms"),
    [
        ([" know"] * 6, {Atom("word", "know")}),
        ([" know", "Known", " known", " know", " know"], {Atom("beginning", "know")}),
        ([" running", " walking", " eating", " running"], {Atom("ending", "ing")}),
        ([" 7", " 12", " 2024", " 7"], {Atom("class", "numbers")}),
        ([" .", " !", " .", " !"], {Atom("class", "punctuation")}),
        ([" Paris"] * 3 + [" 7"] * 3, {Atom("word", "paris"), Atom("word", "7")}),
    ],
)
def test_what_tokens_share(firing: list[str], atoms: set[Atom]) -> None:
    found = learn_rule(drawn(firing), VOCABULARY)
    assert (found.offset, set(found.atoms), found.share) == (0, atoms, 1.0)


def test_the_token_before() -> None:
    found = learn_rule(drawn([f" {word}" for word in FILLER[:8]], [" to"] * 8), VOCABULARY)
    assert (found.offset, found.atoms) == (-1, (Atom("word", "to"),))
    assert found.words == 'what follows "to" (100% of its contexts)'
    assert found.matches((" to", " go"), 1)
    assert not found.matches((" to", " go"), 0)


def test_no_rule() -> None:
    """Of tokens that share nothing, of too few, and of one that every context has."""
    assert learn_rule(drawn([f" {word}" for word in FILLER[:8]]), VOCABULARY).atoms == ()
    assert learn_rule(drawn([" know"] * 3), VOCABULARY).words == NOTHING
    assert learn_rule(drawn([" the"] * 8), Vocabulary([" the", " x"], np.array([0.2, 0.8]))).words == NOTHING


def test_words_seen_once_count_where_most_repeat() -> None:
    found = learn_rule(drawn([*[" know"] * 4, *[" Paris"] * 4, " go"]), VOCABULARY)
    assert Atom("word", "go") in found.atoms
    assert Rule(0, found.atoms, 1.0).words.count('"') == 6
    two = [*[" know"] * 3, *[" Paris"] * 3, " go", " to"]  # just the share of which one may be the last of its kind
    assert {Atom("word", "go"), Atom("word", "to")} <= set(learn_rule(drawn(two), VOCABULARY).atoms)


def test_a_rule_has_so_many_atoms_at_most() -> None:
    """Of seven words that repeat, and three of their own behind these."""
    firing = [f" {word}" for word in FILLER[:350:50] * 4 + FILLER[7:187:60]]
    found = learn_rule(drawn(firing), VOCABULARY)
    assert [atom.kind for atom in found.atoms] == ["word"] * ATOMS
