"""``ffnmem facts``: the library's facts, chosen and counted."""

from __future__ import annotations

import json
from pathlib import Path

import ffnmem as fm
from ffnmem.facts.listing import choose_facts

from .running import data, mistake, table


def test_another_file_and_its_markup(tmp_path: Path) -> None:
    """A file's text is data: no markup, no control characters."""
    record = {"subject": "[red]Ünder", "relation": "a\x1b.b", "prompt": "{} [/x] is", "target_true": "[bold]no\n"}
    path = tmp_path / "facts.jsonl"
    path.write_text(json.dumps(record), "utf-8")
    out = table("facts", path)
    assert "[red]Ünder" in out
    assert "{} [/x] is" in out
    assert "[bold]no↵" in out
    assert "a\\x1b.b" in out
    assert data("facts", path)["facts"][0]["subject"] == "[red]Ünder"


def test_a_public_format(tmp_path: Path) -> None:
    """Told by the record, or said; what a record lacks, and what was left out of it, is counted and not made up."""
    record = {"subject": "Vinson Massif", "attribute": "Antarctica", "prompt": "Vinson Massif is in", "known_id": 0}
    path = tmp_path / "known.json"
    path.write_text(json.dumps([record]), "utf-8")
    assert data("facts", path)["facts"][0]["prompt"] == "{} is in"
    assert data("facts", path, "--format", "known_1000") == data("facts", path)
    mistake("facts", path, "--format", "zsre", named=("known.json", "src"))
    lacks = {row["metric"]: row for row in data("facts", path)["lacks"]}
    assert lacks["PS"] == {"metric": "PS", "facts": 1, "of": 1, "reason": "no target_new, no paraphrases"}
    assert "0 of them have all that the score S" in " ".join(table("facts", path).split())
    record = {"subject": "Ann", "prompt": "Ann is in", "target_new": "Lyon", "cond": "x", "rephrase": "She is in"}
    path.write_text(json.dumps([record, {**record, "rephrase": "It is in"}, {**record, "rephrase": None}]), "utf-8")
    found = {row["reason"]: row["facts"] for row in data("facts", path)["lacks"] if row["metric"] == "notes"}
    assert found == {"fields left out: cond": 3, "paraphrase left out, the subject is not in it: …": 2}


def test_facts_are_drawn_with_a_seed() -> None:
    """The same seed draws the same facts; the first ones would all be of one relation."""
    every = fm.load_facts("atlas")
    found = choose_facts(every, "atlas", limit=50, seed=3)
    same, other = (choose_facts(every, "atlas", limit=50, seed=seed) for seed in (3, 4))
    assert found == same != other
    places = [every.index(fact) for fact in found]
    assert places == sorted(places)
    assert len({fact.relation for fact in found}) > 10
