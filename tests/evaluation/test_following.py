"""Prompts whose answers follow from an edit."""

from __future__ import annotations

from dataclasses import replace

from ffnmem.evaluation.following import prompts_that_follow
from ffnmem.facts import Fact, Probe, load_facts

COUNTRIES = {"Paris": "France", "Lyon": "France", "Rome": "Italy"}


def city(i: int, new: str | None = "Rome") -> Fact:
    target = ("Paris", "Lyon")[i % 2]
    return Fact(f"house {i}", "house.city", "{} is in the city of", target, target_new=new, id=f"city {i}")


def country(i: int, target: str = "France") -> Fact:
    return Fact(f"house {i}", "house.country", "{} is in the country of", target)


def world(houses: int = 10) -> list[Fact]:
    towns = [Fact(town, "city.country", "{} is a city of", target) for town, target in COUNTRIES.items()]
    return [*map(city, range(houses)), *map(country, range(houses)), *towns]


def test_what_follows_from_the_edit() -> None:
    """The new answer would count as damage by the edit; one that stays would not be asked for."""
    follow = prompts_that_follow(world())
    assert follow["city 0"] == {"house 0 is in the country of"}
    assert all(bool(texts) == name.startswith("city ") for name, texts in follow.items())
    alias = replace(city(1, None), probes=(Probe("alias", "It is in", "Lyon"), Probe("reverse", "x", "y")))
    follow = prompts_that_follow([city(0, "Lyon"), alias, city(2, "Berlin"), *world()[3:]])
    assert [follow[f"city {i}"] for i in range(3)] == [set(), {"It is in"}, set()]
    assert follow["city 3"]


def asked(facts: list[Fact]) -> set[str]:
    """The names of facts from which something follows."""
    return {name for name, texts in prompts_that_follow(facts).items() if texts}


def test_rules_need_subjects_that_agree() -> None:
    """A coincidence would be taken for a rule; one that holds, for one without exceptions."""

    def with_exceptions(houses: int) -> list[Fact]:
        odd = range(houses, houses + 2)
        return [*world(houses), *(country(i, "Italy") for i in odd), *map(city, odd)]

    assert not asked(world(9))
    assert asked(with_exceptions(40)) == {f"city {i}" for i in range(40)}  # 40 of 42 agree
    assert not asked(with_exceptions(20))
    assert not asked([*world(), country(0, "Spain")])  # two answers tell nothing, and 9 are left


def test_of_the_embedded_facts() -> None:
    """Landmarks, companies, books."""
    facts, follow = load_facts("atlas"), prompts_that_follow(load_facts("atlas"))
    found = [fact for fact in facts if follow[fact.name]]
    assert len(found) >= 200
    assert {fact.relation.split(".")[1] for fact in found} == {"city", "country", "headquarters"}
