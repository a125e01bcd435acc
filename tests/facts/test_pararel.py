"""Triples with templates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ffnmem.core.errors import FileError, InputError
from ffnmem.facts import Fact, load_facts
from ffnmem.facts.formats import facts_of_record
from ffnmem.facts.pararel import NEIGHBOURS, facts_of_relation, templates_of_patterns

from ..helpers import refuses

PATTERNS = [
    "The capital of [X] is [Y] .",
    "[X],  whose capital is [Y].",
    "[Y] is the capital of [X] .",
    "[X]'s capital is [Y]",
    "[X] and [X] have [Y]",
    "[X] has [Y] as its capital",
]
PAIRS = [("France", "Paris"), ("Italy", "Rome"), ("Gaul", "Paris")]
TRIPLES: list[Any] = [[s, "P36", o] for s, o in PAIRS]
EXPECTED = facts_of_relation("P36", PATTERNS, PAIRS, 0)


def read_document(triples: Any, templates: Any) -> list[Fact]:
    return facts_of_record({"triples": triples, "templates": templates}, 1, "pararel", 0)


def folder(path: Path, name: str = "patterns") -> Path:
    for part, rows in (
        (name, [{"pattern": text, "lemma": "capital"} for text in PATTERNS]),
        ("trex_lms_vocab", [{"sub_label": s, "obj_label": o, "uuid": "u"} for s, o in PAIRS]),
    ):
        (path / part).mkdir(parents=True)
        (path / part / "P36.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return path


def test_templates() -> None:
    """A prompt would go on after the place of the answer."""
    templates, notes = templates_of_patterns(PATTERNS)
    assert templates == ("The capital of {} is", "{}, whose capital is", "{}'s capital is")
    assert len(notes) == 3
    assert "dropped from 2 templates" in notes[0]
    assert "double spaces made one in 1" in notes[1]
    assert all(repr(PATTERNS[i]) in notes[2] for i in (2, 4, 5))
    assert templates_of_patterns(["[X] is [Y]", "[X] is [Y] ."])[0] == ("{} is",)
    assert templates_of_patterns(["[X]-[Y]"])[0] == ()


def test_facts() -> None:
    assert [(fact.subject, fact.target_true, fact.id) for fact in EXPECTED] == [
        ("France", "Paris", "P36.0"),
        ("Italy", "Rome", "P36.1"),
        ("Gaul", "Paris", "P36.2"),
    ]
    assert EXPECTED[0].text == "The capital of France is"
    assert EXPECTED[0].paraphrases == ("{}, whose capital is", "{}'s capital is")
    assert [fact.neighbours for fact in EXPECTED] == [("Gaul",), (), ("France",)]
    assert (EXPECTED[0].target_new, len(EXPECTED[0].notes)) == (None, 3)
    twice = facts_of_relation("P36", PATTERNS, [*PAIRS, PAIRS[0]], 0)  # no neighbour of itself
    assert [fact.neighbours for fact in twice] == [("Gaul",), (), ("France",), ("Gaul",)]
    assert len({fact.id for fact in twice}) == 4


@pytest.mark.parametrize("name", ["patterns", "pattern_data/graphs_json"])
def test_folders_and_documents(tmp_path: Path, name: str) -> None:
    """As its authors have it, and the same in one file, with triples as objects or arrays."""
    assert load_facts(folder(tmp_path, name)) == load_facts(tmp_path, "pararel") == EXPECTED
    path = tmp_path / "triples.json"
    for indent in (None, 1):
        path.write_text(json.dumps({"triples": TRIPLES, "templates": {"P36": PATTERNS, "P1": []}}, indent=indent))
        assert load_facts(path) == EXPECTED
    labelled = [{"sub_label": s, "predicate_id": "P36", "obj_label": o} for s, o in PAIRS]
    named = [{"subject": s, "relation": "P36", "object": o} for s, o in PAIRS]
    patterns = {"P36": [{"pattern": text} for text in PATTERNS]}
    assert read_document(labelled, patterns) == read_document(named, patterns) == EXPECTED


def test_neighbours_are_drawn_with_a_seed() -> None:
    """Side effects would be measured on other subjects at every reading, or on the subject itself."""
    pairs = [(f"town {i}", "France") for i in range(40)] + [("Berlin", "Germany")]
    facts = facts_of_relation("country", PATTERNS[:1], pairs, 0)
    for fact in facts[:40]:
        assert len(set(fact.neighbours)) == NEIGHBOURS
        assert not {fact.subject, "Berlin"} & set(fact.neighbours)
    assert facts[40].neighbours == ()
    assert len({fact.neighbours for fact in facts[:40]}) > 30
    assert facts_of_relation("country", PATTERNS[:1], pairs, 0) == facts
    assert facts_of_relation("country", PATTERNS[:1], pairs, 1) != facts
    backwards = {fact.subject: fact.neighbours for fact in facts_of_relation("country", PATTERNS[:1], pairs[::-1], 0)}
    assert all(backwards[fact.subject] == fact.neighbours for fact in facts)


@pytest.mark.parametrize(
    ("triples", "templates", "named"),
    [
        (3, {"P36": PATTERNS}, "triples"),
        ([*TRIPLES[:1], ["Italy", "P36"]], {"P36": PATTERNS}, "triples[1]"),
        ([3], {"P36": PATTERNS}, "triples[0]"),
        ([{"subject": "France", "relation": "P36"}], {"P36": PATTERNS}, "object"),
        (TRIPLES, {"P1": PATTERNS}, "'P36'"),
        (TRIPLES, {"P36": "text"}, "list"),
        (TRIPLES, {"P36": [3]}, "templates.P36[0]"),
        (TRIPLES, {"P36": PATTERNS[2:3]}, "[Y]"),
    ],
    ids=str,
)
def test_broken_documents(triples: Any, templates: Any, named: str) -> None:
    with refuses(InputError, ValueError, named):
        read_document(triples, templates)


def test_broken_folders(tmp_path: Path) -> None:
    with refuses(FileError, OSError, str(tmp_path), "patterns/", "trex_lms_vocab"):
        load_facts(tmp_path)
    place = folder(tmp_path / "facts")
    file = place / "trex_lms_vocab" / "P36.jsonl"
    file.write_text('{"sub_label": "France", "obj_label": "Paris"}\n{"sub_label": "Italy"}\n')
    with refuses(FileError, OSError, str(file), "line 2", "object"):
        load_facts(place)
    file.rename(file.with_name("P37.jsonl"))
    with refuses(FileError, OSError, "facts", "[Y]"):
        load_facts(place)
