"""Facts chosen, and listed."""

from __future__ import annotations

from pathlib import Path

import pytest

from ffnmem.core.errors import InputError
from ffnmem.facts import Fact, list_facts, load_facts, with_targets, write_facts
from ffnmem.facts.listing import choose_facts

from ..helpers import printed, refuses

FACTS = [
    Fact("Eiffel Tower", "landmark.city", "The {} is in", "Paris", "Rome", ("{} is in",), ("Louvre",), id="1"),
    Fact("Louvre", "landmark.city", "The {} is in", "Paris", notes=("paraphrase left out: 'x'",), id="2"),
    Fact("Eiffel", "landmarks", "{} was born in", "Dijon", notes=("paraphrase left out: 'y'",), id="3"),
]


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        ({}, "123"),
        ({"relation": "landmark"}, "12"),
        ({"relation": "landmark."}, "12"),
        ({"relation": "landmarks", "limit": 1}, "3"),
        ({"subject": "EIFFEL"}, "13"),
        ({"limit": 3}, "123"),
        ({"limit": 2, "seed": 1}, "13"),
    ],
)
def test_choose_facts(options: dict[str, object], ids: str) -> None:
    assert "".join(fact.id for fact in choose_facts(FACTS, "mine", **options)) == ids  # type: ignore[arg-type]


def test_what_is_not_there() -> None:
    for options, named in (
        ({"relation": "landmrk.city"}, ("'landmrk.city'", "did you mean landmark.city")),
        ({"relation": "x"}, ("'x'", "it has landmark.city, landmarks")),
        ({"subject": "Louvr e", "relation": "landmark"}, ("under landmark", "'Louvr e'", "did you mean Louvre")),
        ({"subject": "x"}, ("no subject of mine contains 'x'", "a part of its name")),
    ):
        with refuses(InputError, ValueError, *named):
            choose_facts(FACTS, "mine", **options)  # type: ignore[arg-type]


def test_listings(tmp_path: Path) -> None:
    """Counts would be of the rows that are shown, not of all facts."""
    source, out = tmp_path / "facts.jsonl", tmp_path / "new.jsonl"
    write_facts(FACTS, source)
    found = list_facts(source, out=out)
    assert found.chosen == (*FACTS,) == (*load_facts(out),)
    assert found.to_dict(1)["facts"] == [FACTS[0].to_dict()]
    assert found.verdict.startswith("3 facts of 2 relations. 1 of them have all")
    row = next(line.split() for line in printed(found.sheet()) if line.startswith("Louvre"))
    assert (row[1], row[-1]) == ("landmark.city", "Paris")
    assert found.relations.values.tolist() == [
        ["landmark.city", 2, 1, "The {} is in"],
        ["landmarks", 1, 1, "{} was born in"],
    ]
    lacks = found.lacks.to_dict("records")
    assert {"metric": "ES", "facts": 2, "of": 3, "reason": FACTS[1].lacks["ES"]} in lacks
    assert {"metric": "notes", "facts": 2, "of": 3, "reason": "paraphrase left out: …"} in lacks
    one = list_facts(source, relation="landmark", targets=True, limit=1)
    assert one.chosen == (with_targets(FACTS)[1],)  # drawn
