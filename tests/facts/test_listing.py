"""Facts chosen, and listed."""

from __future__ import annotations

import pytest

from ffnmem.core.errors import InputError
from ffnmem.facts import Fact
from ffnmem.facts.listing import choose_facts, list_facts, list_lacks, list_relations

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


def test_listings() -> None:
    """Counts would be of the rows that are shown, not of all facts."""
    found = list_facts(FACTS, 2, targets=True)
    assert found.to_dict(1) == {"rows": [FACTS[0].to_dict()]}
    assert found.counts == (
        "2 of 3 facts; 2 with no new target, 2 with no paraphrases, 2 with no neighbours; "
        "--limit 3 shows all, --relation and --subject choose"
    )
    assert list_facts(FACTS[:1], targets=True).counts == "1 of 1 fact; each has new target, paraphrases and neighbours"
    row = next(line.split() for line in printed(found.sheet()) if line.startswith("landmark.city"))
    assert row[-4:] == ["Paris", "Rome", "1", "1"]
    (city, other), counts = list_relations(FACTS).records, list_relations(FACTS, 1).counts
    assert city == {"relation": "landmark.city", "facts": 2, "targets": 1, "prompt": "The {} is in"}
    assert (other["relation"], counts) == ("landmarks", "1 relation, 2 of 3 facts")
    lacks = list_lacks(FACTS)
    assert {"metric": "ES", "facts": 2, "of": 3, "reason": FACTS[1].lacks["ES"]} in lacks.records
    assert {"metric": "notes", "facts": 2, "of": 3, "reason": "paraphrase left out: …"} in lacks.records
    assert lacks.counts.startswith("1 of 3 facts have all that S")
