"""Facts made ready for edits: new targets, paraphrases and neighbours from their relation."""

from __future__ import annotations

import ffnmem as fm
from ffnmem.core.errors import InputError
from ffnmem.facts import Fact, with_targets

from ..helpers import refuses

CITIES = {"Louvre": "Paris", "Pantheon": "Paris", "Colosseum": "Rome", "Prado": "Madrid"}


def landmarks() -> list[Fact]:
    prompts = ("{} is in", "{} stands in the city of")
    facts = [Fact(subject, "city", prompts[i % 2], city) for i, (subject, city) in enumerate(CITIES.items())]
    return [*facts, Fact("Prado", "city", prompts[0], "Spain"), Fact("Ebro", "river", "{} flows to", "the sea")]


def test_what_a_fact_lacks_is_taken_from_its_relation(tiny: fm.Model) -> None:
    found = with_targets(landmarks())
    assert [(fact.subject, fact.target_true) for fact in found] == [(f.subject, f.target_true) for f in landmarks()]
    louvre, prado, ebro = found[0], found[3], found[5]
    assert (louvre.paraphrases, louvre.neighbours) == (("{} stands in the city of",), ("Pantheon",))
    assert prado.target_new in {"Paris", "Rome"}  # Spain is true of it, too
    assert ebro == landmarks()[5]  # nothing else is known of rivers
    assert {with_targets(landmarks(), seed=seed)[0].target_new for seed in range(20)} == {"Rome", "Madrid", "Spain"}
    assert with_targets(found) == found  # nothing is lacking, nothing changes
    assert with_targets(landmarks()[:5]) == found[:5]  # other relations do not matter
    given = Fact("Louvre", "city", "{} is in", "Paris", target_new="Oslo", neighbours=("Orsay",))
    own = with_targets([given, *landmarks()[1:]])[0]
    assert (own.target_new, own.neighbours, own.paraphrases) == ("Oslo", ("Orsay",), louvre.paraphrases)
    scores = fm.evaluate(tiny, found[:2], "none", metrics=("S", "PS", "NS"))
    assert (len(scores), len(scores.missing)) == (2, 0)  # all that S needs is there
    with refuses(InputError, ValueError, "neighbours"):
        with_targets(landmarks(), neighbours=0)
