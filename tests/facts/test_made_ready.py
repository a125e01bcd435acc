"""Facts made ready for edits: new targets, paraphrases and neighbours from their relation; one-hop questions."""

from __future__ import annotations

import dataclasses

import ffnmem as fm
from ffnmem.core.errors import InputError
from ffnmem.facts import Fact, Probe, load_facts, with_portability, with_targets

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


COUNTRIES = {"Paris": "France", "Lyon": "France", "Rome": "Italy"}


def city(i: int, new: str | None = "Rome") -> Fact:
    return Fact(f"house {i}", "house.city", "{} is in the city of", ("Paris", "Lyon")[i % 2], target_new=new)


def country(i: int, target: str = "France") -> Fact:
    return Fact(f"house {i}", "house.country", "{} is in the country of", target)


def world(houses: int = 10) -> list[Fact]:
    towns = [Fact(town, "city.country", "{} is a city of", target) for town, target in COUNTRIES.items()]
    return [*map(city, range(houses)), *map(country, range(houses)), *towns]


def test_a_question_follows_from_the_edit() -> None:
    """Only where the answer changes: a question whose answer is the old one would be passed by doing nothing."""
    facts = world()
    found = with_portability(facts)
    assert [dataclasses.replace(fact, probes=()) for fact in found] == facts
    assert found[0].probes == (Probe("portability", "house 0 is in the country of", "Italy"),)
    assert all(len(fact.probes) == (fact.relation == "house.city") for fact in found)
    assert with_portability(found) == found
    found = with_portability([city(0, "Lyon"), city(1, None), city(2, "Berlin"), *world()[3:]])
    assert [fact.probes for fact in found[:3]] == [(), (), ()]
    assert found[3].probes


def asked(facts: list[Fact]) -> set[str]:
    """The subjects of facts about which a question was found."""
    return {fact.subject for fact in with_portability(facts) if fact.probes}


def test_rules_need_subjects_that_agree() -> None:
    """A coincidence would be taken for a rule; of one that holds, no question to which it is an exception."""

    def with_exceptions(houses: int) -> list[Fact]:
        odd = range(houses, houses + 2)
        return [*world(houses), *(country(i, "Italy") for i in odd), *map(city, odd)]

    assert not asked(world(9))
    assert asked(with_exceptions(40)) == {f"house {i}" for i in range(40)}  # 40 of 42 agree
    assert not asked(with_exceptions(20))
    assert not asked([*world(), country(0, "Spain")])  # two answers tell nothing, and 9 are left


def test_two_rules_that_disagree() -> None:
    """Which of two answers is right is not known."""
    roma = {**COUNTRIES, "Rome": "Roma"}
    assert not asked([*world(), *(Fact(town, "city.land", "{} is in the land of", roma[town]) for town in roma)])


def test_of_the_embedded_facts() -> None:
    """Landmarks, companies, books: every question is one that follows for a reader, too."""
    found = [fact for fact in with_portability(load_facts("atlas")) if fact.probes]
    assert len(found) >= 200
    assert {fact.relation.split(".")[1] for fact in found} == {"city", "country", "headquarters"}
