"""``ffnmem facts``: the library's facts, chosen and counted."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from pathlib import Path

import pytest

import ffnmem as fm
from tests.cli.running import data, mistake, run, table


@pytest.fixture(scope="module")
def every() -> list[fm.Fact]:
    return fm.load_facts("atlas")


def test_json_is_every_fact(every: list[fm.Fact]) -> None:
    assert data("facts") == [fact.to_dict() for fact in every]


def test_csv_keeps_lists(every: list[fm.Fact]) -> None:
    """A list in a cell is JSON, so that a comma in a template loses nothing."""
    rows = list(csv.DictReader(io.StringIO(run("facts", "--csv").stdout)))
    assert len(rows) == len(every)
    for row, fact in zip(rows, every, strict=True):
        assert json.loads(row["paraphrases"]) == list(fact.paraphrases)
        assert row["prompt"] == fact.prompt
        assert row["target_new"] == (fact.target_new or "")


@pytest.mark.parametrize("relation", ["landmark.city", "landmark", "landmark."])
def test_relation_or_family(every: list[fm.Fact], relation: str) -> None:
    wanted = [f.id for f in every if f.relation == relation or f.relation.startswith(relation.rstrip(".") + ".")]
    assert [row["id"] for row in data("facts", "--relation", relation)] == wanted
    assert wanted


def test_subject_in_any_case(every: list[fm.Fact]) -> None:
    found = data("facts", "--subject", "eiffel tOWER")
    assert {row["subject"] for row in found} == {"Eiffel Tower"}
    assert len(found) >= 4
    only = data("facts", "--subject", "eiffel", "--relation", "landmark.city")
    assert [row["target_true"] for row in only] == ["Paris"]


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (["--relation", "country.capitol"], ["'country.capitol'", "country.capital"]),
        (["--relation", "land"], ["'land'", "--relations"]),
        (["--relation", "qqqq"], ["'qqqq'", "in all"]),
        (["--subject", "Eifel Tower"], ["'Eifel Tower'", "Eiffel Tower"]),
        (["--subject", "Eiffel", "--relation", "animal"], ["'Eiffel'", "animal"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_what_is_not_there(args: list[str], named: list[str]) -> None:
    """An empty table would look like a fact about the world."""
    mistake("facts", *args, named=tuple(named))


def test_limit_holds_for_every_form(every: list[fm.Fact]) -> None:
    assert [row["id"] for row in data("facts", "--limit", 3)] == [fact.id for fact in every[:3]]
    assert len(run("facts", "--limit", 3, "--csv").stdout.splitlines()) == 4
    assert f"3 of {len(every):,} facts" in table("facts", "--limit", 3)
    assert len(data("facts", "--relations", "--limit", 3)) == 3


def test_table_stops_early_and_says_so(every: list[fm.Fact]) -> None:
    out = table("facts")
    assert f"20 of {len(every):,} facts; --limit {len(every)} shows all" in " ".join(out.split())
    assert every[0].text in out
    assert "5 of 5 facts\n" in table("facts", "--subject", "Eiffel Tower")


def test_relations_are_counted(every: list[fm.Fact]) -> None:
    found = data("facts", "--relations")
    assert {row["relation"]: row["facts"] for row in found} == Counter(fact.relation for fact in every)
    city = next(row for row in found if row["relation"] == "landmark.city")
    assert city["targets"] == len({fact.target_true for fact in every if fact.relation == "landmark.city"})
    out = table("facts", "--relations")
    assert f"{len(found)} relations, {len(every):,} of {len(every):,} facts" in out
    assert all(row["relation"] in out for row in found)
    assert run("facts", "--relations", "--csv").stdout.startswith("relation,facts,targets,prompt\n")


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
