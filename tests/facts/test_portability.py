"""One-hop questions found in a set of facts."""

from __future__ import annotations

import dataclasses

from ffnmem.facts import Fact, Probe, load_facts, with_portability

COUNTRIES = {"Paris": "France", "Lyon": "France", "Rome": "Italy"}


def city(i: int, new: str | None = "Rome") -> Fact:
    return Fact(f"house {i}", "house.city", "{} is in the city of", ("Paris", "Lyon")[i % 2], target_new=new)


def country(i: int, target: str = "France") -> Fact:
    return Fact(f"house {i}", "house.country", "{} is in the country of", target)


def world(houses: int = 10) -> list[Fact]:
    towns = [Fact(town, "city.country", "{} is a city of", target) for town, target in COUNTRIES.items()]
    return [*map(city, range(houses)), *map(country, range(houses)), *towns]


def test_a_question_follows_from_the_edit() -> None:
    facts = world()
    found = with_portability(facts)
    assert [dataclasses.replace(fact, probes=()) for fact in found] == facts
    assert found[0].probes == (Probe("portability", "house 0 is in the country of", "Italy"),)
    assert all(len(fact.probes) == (fact.relation == "house.city") for fact in found)
    assert with_portability(found) == found


def test_only_where_the_answer_changes() -> None:
    """A question whose answer is the old one would be passed by doing nothing."""
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
