"""One-hop questions found in a set of facts."""

from __future__ import annotations

import dataclasses

import pytest

import ffnmem as fm
from ffnmem.facts import Fact, Probe, load_facts, with_portability
from ffnmem.facts.portability import ComposedRelation, rules_of, tabulated

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


def test_rules_need_subjects_that_agree() -> None:
    """A coincidence would be taken for a rule."""
    table, _ = tabulated(world())
    assert rules_of(table) == [ComposedRelation("house.city", "city.country", "house.country")]
    assert rules_of(tabulated(world(9))[0]) == []
    facts = [*world(40), *(country(i, "Italy") for i in range(40, 42)), *(city(i) for i in range(40, 42))]
    assert len(rules_of(tabulated(facts)[0])) == 1  # 40 of 42 agree
    found = with_portability(facts)
    assert found[0].probes
    assert not [fact for fact in found if fact.subject in ("house 40", "house 41") and fact.probes]
    facts = [*world(20), *(country(i, "Italy") for i in range(20, 22)), *(city(i) for i in range(20, 22))]
    assert rules_of(tabulated(facts)[0]) == []  # 20 of 22


def test_subjects_with_two_answers_tell_nothing() -> None:
    assert rules_of(tabulated([*world(), country(0, "Spain")])[0]) == []


def test_two_rules_that_disagree() -> None:
    """Which of two answers is right is not known."""
    places = [
        Fact(town, "city.land", "{} is in the land of", {"Italy": "Roma"}.get(c, c)) for town, c in COUNTRIES.items()
    ]
    assert len(rules_of(tabulated([*world(), *places])[0])) == 2
    assert not any(fact.probes for fact in with_portability([*world(), *places]))


@pytest.fixture(scope="module")
def atlas_facts() -> list[fm.Fact]:
    return load_facts("atlas")


def test_of_the_embedded_facts(atlas_facts: list[fm.Fact]) -> None:
    """Landmarks, companies, books: every rule is one that a reader would agree to."""
    rules = rules_of(tabulated(atlas_facts)[0])
    assert ComposedRelation("landmark.city", "city.country", "landmark.country") in rules
    assert all(rule.second.split(".")[0] in ("city", "country") for rule in rules)
    assert all(rule.whole.split(".")[1] == rule.second.split(".")[1] for rule in rules)
    found = with_portability(atlas_facts)
    assert sum(bool(fact.probes) for fact in found) >= 200
