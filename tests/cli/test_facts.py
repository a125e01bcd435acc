"""``ffnmem facts``: the library's facts, chosen and counted."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

import ffnmem as fm
from ffnmem.cli.options import ModelChoice
from ffnmem.facts.listing import choose_facts

from .running import csv, data, mistake, run, table


@pytest.fixture(scope="module")
def every() -> list[fm.Fact]:
    return fm.load_facts("atlas")


def test_what_is_listed(every: list[fm.Fact]) -> None:
    """Subjects in any case, relations by their beginning; a limit holds for every form."""
    found = data("facts", "--subject", "eiffel tOWER", "--relation", "landmark")
    assert [row["target_true"] for row in found if row["relation"] == "landmark.city"] == ["Paris"]
    assert {row["subject"] for row in found} == {"Eiffel Tower"}
    assert [row["id"] for row in data("facts", "--limit", 3)] == [fact.id for fact in every[:3]]
    assert len(run("facts", "--limit", 3, "--csv").stdout.splitlines()) == 4
    assert f"3 of {len(every):,} facts" in table("facts", "--limit", 3)
    assert f"20 of {len(every):,} facts; --limit {len(every)} shows all" in " ".join(table("facts").split())
    found = data("facts", "--count", "relations")
    assert {row["relation"]: row["facts"] for row in found} == Counter(fact.relation for fact in every)
    city = next(row for row in found if row["relation"] == "landmark.city")
    assert city["targets"] == len({fact.target_true for fact in every if fact.relation == "landmark.city"})
    assert f"{len(found)} relations, {len(every):,} of {len(every):,} facts" in table("facts", "--count", "relations")
    assert len(data("facts", "--count", "relations", "--limit", 3)) == 3


def test_targets_are_shown(tmp_path: Path) -> None:
    """What --targets found, and what it did not, was in the file alone."""
    lines = [("Paris", "France"), ("Lyon", "France"), ("Rome", "Italy")]
    records = [{"subject": s, "relation": "r", "prompt": "{} is in", "target_true": t} for s, t in lines]
    records.append({"subject": "Oslo", "relation": "alone", "prompt": "{} is of", "target_true": "Norway"})
    path = tmp_path / "facts.jsonl"
    path.write_text("\n".join(map(json.dumps, records)), "utf-8")
    found = data("facts", path, "--targets")
    assert [(row["target_new"], len(row["neighbours"])) for row in found] == [
        *(("Italy", 1), ("Italy", 1), ("France", 0), (None, 0))
    ]
    told = "4 of 4 facts; 1 with no new target, 4 with no paraphrases, 2 with no neighbours"
    assert told in " ".join(table("facts", path, "--targets").split())
    assert "new target" not in table("facts", path)


def test_another_file_and_its_markup(tmp_path: Path) -> None:
    """A file's text is data: no markup, no control characters."""
    record = {"subject": "[red]Ünder", "relation": "a\x1b.b", "prompt": "{} [/x] is", "target_true": "[bold]no\n"}
    path = tmp_path / "facts.jsonl"
    path.write_text(json.dumps(record), "utf-8")
    out = table("facts", path)
    assert "[red]Ünder [/x] is" in out
    assert "[bold]no\\n" in out
    assert "a\\x1b.b" in out
    assert data("facts", path)[0]["subject"] == "[red]Ünder"


def test_a_public_format(tmp_path: Path) -> None:
    """Told by the record, or said; what a record lacks, and what was left out of it, is counted and not made up."""
    record = {"subject": "Vinson Massif", "attribute": "Antarctica", "prompt": "Vinson Massif is in", "known_id": 0}
    path = tmp_path / "known.json"
    path.write_text(json.dumps([record]), "utf-8")
    assert data("facts", path)[0]["prompt"] == "{} is in"
    assert data("facts", path, "--format", "known_1000") == data("facts", path)
    mistake("facts", path, "--format", "zsre", named=("known.json", "src"))
    lacks = {row["metric"]: row for row in data("facts", path, "--count", "lacks")}
    assert lacks["PS"] == {"metric": "PS", "facts": 1, "of": 1, "reason": "no target_new, no paraphrases"}
    assert "0 of 1 facts have all that S" in " ".join(table("facts", path, "--count", "lacks").split())
    record = {"subject": "Ann", "prompt": "Ann is in", "target_new": "Lyon", "cond": "x", "rephrase": "She is in"}
    path.write_text(json.dumps([record, {**record, "rephrase": "It is in"}, {**record, "rephrase": None}]), "utf-8")
    found = {row["reason"]: row["facts"] for row in data("facts", path, "--count", "lacks") if row["metric"] == "notes"}
    assert found == {"fields left out: cond": 3, "paraphrase left out, the subject is not in it: …": 2}


def test_known(atlas: fm.Model, every: list[fm.Fact], monkeypatch: pytest.MonkeyPatch) -> None:
    """What the model says, as filter_known has it."""
    monkeypatch.setattr(ModelChoice, "load", lambda choice: atlas)
    arguments = ("facts", "known", "--relation", "artwork.creator")
    mine = fm.facts.filter_known(atlas, [fact for fact in every if fact.relation == "artwork.creator"])
    found = data(*arguments)
    assert (found["known"], found["asked"]) == (len(mine), len(mine.frame))
    assert [row["id"] for row in found["facts"]] == mine.frame["id"].tolist()
    assert f"atlas knows {len(mine)} of {len(mine.frame)} facts" in " ".join(table(*arguments).split())
    known = int(mine.frame["known"][:2].sum())  # no more are asked for than are listed
    assert f"atlas knows {known} of 2 facts" in " ".join(table(*arguments, "--limit", 2).split())
    assert csv(*arguments, "--limit", 3)["rank"].tolist() == mine.frame["rank"][:3].tolist()


def test_facts_are_drawn_with_a_seed(every: list[fm.Fact]) -> None:
    """The same seed draws the same facts; the first ones would all be of one relation."""
    found = choose_facts(every, "atlas", limit=50, seed=3)
    same, other = (choose_facts(every, "atlas", limit=50, seed=seed) for seed in (3, 4))
    assert found == same != other
    places = [every.index(fact) for fact in found]
    assert places == sorted(places)
    assert len({fact.relation for fact in found}) > 10


def test_facts_are_written(tmp_path: Path, every: list[fm.Fact]) -> None:
    """What is listed; the path on standard output, the rest on standard error."""
    cities = [fact for fact in every if fact.relation == "landmark.city"][:5]
    path = tmp_path / "cities.jsonl"
    found = run("facts", "write", "--relation", "landmark.city", "--limit", 5, "-o", path)
    assert found.stdout == f"{path}\n"
    assert "5 facts written" in found.stderr
    assert fm.load_facts(path) == cities
