"""Triples with templates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ffnmem.core.errors import FileError
from ffnmem.facts import Fact, load_facts

from ..helpers import refuses

PATTERNS = [
    "The capital of [X] is [Y] .",
    "[X],  whose capital is [Y].",
    "[Y] is the capital of [X] .",
    "[X]'s capital is [Y]",
    "[X] and [X] have [Y]",
    "[X] has [Y] as its capital",
    "[X]-[Y]",
]
PAIRS = [("France", "Paris"), ("Italy", "Rome"), ("Gaul", "Paris")]
TRIPLES: list[Any] = [[s, "P36", o] for s, o in PAIRS]
NOTES = (
    "punctuation after [Y] dropped from 2 templates",
    "double spaces made one in 1 templates",
    f"4 templates left out that do not end in [Y]: {', '.join(repr(PATTERNS[i]) for i in (2, 4, 5, 6))}",
)
EXPECTED = [
    Fact(
        subject,
        "P36",
        "The capital of {} is",  # a prompt must not go on after the place of the answer
        target,
        paraphrases=("{}, whose capital is", "{}'s capital is"),
        neighbours=neighbours,
        id=f"P36.{i}",
        notes=NOTES,
    )
    for i, ((subject, target), neighbours) in enumerate(zip(PAIRS, (("Gaul",), (), ("France",)), strict=True))
]


def read(path: Path, triples: Any, templates: Any, seed: int = 0, **options: Any) -> list[Fact]:
    path.write_text(json.dumps({"triples": triples, "templates": templates}, **options))
    return load_facts(path, seed=seed)


def folder(path: Path, name: str = "patterns") -> Path:
    for part, rows in (
        (name, [{"pattern": text, "lemma": "capital"} for text in PATTERNS]),
        ("trex_lms_vocab", [{"sub_label": s, "obj_label": o, "uuid": "u"} for s, o in PAIRS]),
    ):
        (path / part).mkdir(parents=True)
        (path / part / "P36.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return path


def test_folders_and_documents(tmp_path: Path) -> None:
    """As its authors have it, and the same in one file, with triples as objects or arrays."""
    for name in ("patterns", "pattern_data/graphs_json"):
        place = folder(tmp_path / name.replace("/", "_"), name)
        assert load_facts(place) == load_facts(place, "pararel") == EXPECTED
    path, own = tmp_path / "triples.json", {"P36": PATTERNS, "P1": []}
    assert read(path, TRIPLES, own) == read(path, TRIPLES, own, indent=1) == EXPECTED
    labelled = [{"sub_label": s, "predicate_id": "P36", "obj_label": o} for s, o in PAIRS]
    named = [{"subject": s, "relation": "P36", "object": o} for s, o in PAIRS]
    patterns = {"P36": [{"pattern": text} for text in PATTERNS]}
    assert read(path, labelled, patterns) == read(path, named, patterns) == EXPECTED
    twice = read(path, [*TRIPLES, TRIPLES[0]], own)  # no neighbour of itself
    assert [fact.neighbours for fact in twice] == [("Gaul",), (), ("France",), ("Gaul",)]
    assert len({fact.id for fact in twice}) == 4


def test_neighbours_are_drawn_with_a_seed(tmp_path: Path) -> None:
    """Side effects would be measured on other subjects at every reading, or on the subject itself."""
    triples = [[f"town {i}", "in", "France"] for i in range(40)] + [["Berlin", "in", "Germany"]]
    path, templates = tmp_path / "triples.json", {"in": ["[X] is in [Y]"]}
    facts = read(path, triples, templates)
    for fact in facts[:40]:
        assert len(set(fact.neighbours)) == 10
        assert not {fact.subject, "Berlin"} & set(fact.neighbours)
    assert facts[40].neighbours == ()
    assert len({fact.neighbours for fact in facts[:40]}) > 30
    assert read(path, triples, templates) == facts != read(path, triples, templates, seed=1)
    backwards = {fact.subject: fact.neighbours for fact in read(path, triples[::-1], templates)}
    assert all(backwards[fact.subject] == fact.neighbours for fact in facts)


BROKEN: list[tuple[Any, Any, str]] = [
    (3, {"P36": PATTERNS}, "triples"),
    ([*TRIPLES[:1], ["Italy", "P36"]], {"P36": PATTERNS}, "triples[1]"),
    ([{"subject": "France", "relation": "P36"}], {"P36": PATTERNS}, "object"),
    (TRIPLES, {"P1": PATTERNS}, "'P36'"),
    (TRIPLES, {"P36": [3]}, "templates.P36[0]"),
    (TRIPLES, {"P36": PATTERNS[2:3]}, "[Y]"),
]


def test_what_is_refused(tmp_path: Path) -> None:
    for triples, templates, named in BROKEN:
        with refuses(FileError, OSError, named):
            read(tmp_path / "triples.json", triples, templates)
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
