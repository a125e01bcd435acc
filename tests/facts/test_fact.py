"""One fact."""

from __future__ import annotations

import dataclasses
import json
import unicodedata
from typing import Any

import pytest

import ffnmem as fm
from ffnmem.core.errors import InputError
from ffnmem.facts import Hop, MultiHop, Probe
from ffnmem.facts.fact import KINDS, known_fact
from ffnmem.facts.questions import find_subject

from ..helpers import refuses

EIFFEL = fm.Fact(
    subject="Eiffel Tower",
    relation="landmark.city",
    prompt="The {} is located in the city of",
    target_true="Paris",
    target_new="Rome",
    paraphrases=("The city that is home to the {} is",),
    neighbours=("Louvre", "Panthéon"),
    generation_prompts=("Visitors to the {} often",),
    false_targets=("Rome", "Berlin"),
    id="landmark.city.000",
)
FULL = dataclasses.replace(
    EIFFEL,
    neighbour_prompts=("The Louvre stands in",),
    probes=tuple(Probe(kind, f"about {kind}", "Italy") for kind in KINDS),
    notes=("a paraphrase left out",),
    true_aliases=("Lutetia",),
    new_aliases=("Roma", "Rom"),
    multi_hop=(
        MultiHop(
            ("Of what country is the Eiffel Tower's city the capital?",),
            ("France",),
            ("Italy", "Italia"),
            hops_after=(Hop("In what city is it?", "It is in", "Rome"), Hop("", "Rome is in", "Italy", ("Italia",))),
            needs=("city.country.7",),
        ),
    ),
)
HOP = {"question": "", "cloze": " ", "answer": "x"}
PROBE = {"kind": "alias", "prompt": "x", "target": "y"}
ASKED = {"questions": ["x"], "before": [], "after": ["y"]}


def changed(fact: fm.Fact, change: dict[str, Any]) -> fm.Fact:
    return dataclasses.replace(fact, **change)


def test_text_and_ask() -> None:
    """The model would be asked about a pair of braces, or about the wrong subject."""
    assert EIFFEL.text == "The Eiffel Tower is located in the city of"
    assert EIFFEL.ask(EIFFEL.paraphrases[0]) == "The city that is home to the Eiffel Tower is"
    assert EIFFEL.ask(EIFFEL.prompt, "Louvre") == "The Louvre is located in the city of"
    assert EIFFEL.ask(EIFFEL.prompt, "{0} \\1") == "The {0} \\1 is located in the city of"


def test_dictionaries_round_trip() -> None:
    """A fact would change by being saved."""
    record = json.loads(json.dumps(EIFFEL.to_dict()))
    assert fm.Fact.from_dict(record) == EIFFEL
    assert fm.Fact.from_dict(json.loads(json.dumps(FULL.to_dict()))) == FULL
    least = {name: record[name] for name in ("subject", "relation", "prompt", "target_true")}
    fact = fm.Fact.from_dict(least)
    assert (fact.target_new, fact.paraphrases, fact.neighbours, fact.id) == (None, (), (), "")


@pytest.mark.parametrize("target", ["target_true", "target_new"])
def test_subject_prompt_and_a_target_are_enough(target: str) -> None:
    """A relation would have to be invented for a fact that belongs to no data set."""
    fact = changed(fm.Fact("Eiffel Tower", prompt=EIFFEL.prompt, target_new="x"), {"target_new": None, target: "Rome"})
    assert (fact.relation, fact.text) == ("", EIFFEL.text)
    assert fm.Fact.from_dict(fact.to_dict()) == fact
    assert fm.Fact.from_dict({"subject": "Eiffel Tower", "prompt": EIFFEL.prompt, target: "Rome"}) == fact
    lacking = "target_true" if target == "target_new" else "target_new"
    assert lacking in fact.lacks["ES"]
    with refuses(InputError, ValueError, "'Eiffel Tower' has no target", "target_true or target_new"):
        fm.Fact(subject="Eiffel Tower", prompt=EIFFEL.prompt)


def test_a_fact_of_a_text() -> None:
    """The subject's place would have to be marked by hand in every text."""
    made = fm.Fact.from_text(EIFFEL.text, "Eiffel Tower", "Rome", true="Paris", id="tower")
    assert (made.prompt, made.target_new, made.target_true, made.id) == (EIFFEL.prompt, "Rome", "Paris", "tower")
    assert fm.Fact.from_text(EIFFEL.prompt, "Eiffel Tower", "Rome").prompt == EIFFEL.prompt
    assert fm.Fact.from_text("The Iranian capital of Iran is", "Iran", "Rome").prompt == "The Iranian capital of {} is"


@pytest.mark.parametrize("text", ["Beyonce\u0301 is a", "It is Beyonc\u00e9 who"])
def test_canonically_equivalent_spellings(text: str, tiny: fm.Model) -> None:
    """A name typed in composed letters would not be found in a text that somebody else's program decomposed."""
    for form in ("NFC", "NFD"):
        fact = fm.Fact.from_text(text, unicodedata.normalize(form, "Beyonc\u00e9"), "singer")
        assert fact.text == text
        asked = find_subject(tiny, text, unicodedata.normalize(form, "Beyonc\u00e9"))
        found = "".join(tiny.tokenizer.decode([asked.tokens[i] for i in asked.subject]))
        assert found.strip() == fact.subject
    assert fm.Fact.from_text("{} is a", "Beyonc\u00e9", "x").subject == "Beyonc\u00e9"


@pytest.mark.parametrize(
    ("text", "subject", "named"),
    [
        ("The Louvre is in", "Eiffel Tower", "'Eiffel Tower' is not in 'The Louvre is in'"),
        ("The louvre is in", "Louvre", "spelled the same"),
        ("The Louvre, yes the Louvre is in", "Louvre", "'Louvre' stands 2 times"),
        ("The Louvre is in", " ", "the subject is empty"),
        (
            "x = {} # The Eiffel Tower is in",
            "Eiffel Tower",
            "both {} and the subject 'Eiffel Tower' stand in",
        ),
        ("Cafe\u0301 {} and", "Caf\u00e9", "both {} and"),
        ("D’Artagnan is a", "D'Artagnan", "the text has '’' (U+2019) for \"'\" (U+0027)"),
        ("New\u00a0York is a", "New York", "(U+00A0) for ' ' (U+0020)"),
        ("The louvre is in", "Louvre", "the text has 'l' (U+006C) for 'L' (U+004C)"),
    ],
)
def test_a_text_without_its_subject(text: str, subject: str, named: str) -> None:
    """Another word of the text would be rewritten."""
    with refuses(InputError, ValueError, named):
        fm.Fact.from_text(text, subject, "Rome")


@pytest.mark.parametrize("name", ["subject", "relation", "target_true"])
def test_empty_fields(name: str) -> None:
    """A prompt about nothing, or a target that is nothing, would be scored."""
    with refuses(InputError, ValueError, EIFFEL.id, name, "empty"):
        changed(EIFFEL, {name: "  "})


@pytest.mark.parametrize("template", ["no braces", "{} and {}", ""])
@pytest.mark.parametrize("name", ["prompt", "paraphrases", "generation_prompts"])
def test_templates_without_one_place(name: str, template: str) -> None:
    """The subject would not be in the prompt, or twice."""
    value = template if name == "prompt" else (EIFFEL.prompt, template)
    with refuses(InputError, ValueError, EIFFEL.id, repr(template), "{}"):
        changed(EIFFEL, {name: value})


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"colour": "red"}, "colour"),
        ({"subject": 3}, "subject"),
        ({"id": None}, "id"),
        ({"neighbours": ["Louvre", 3]}, "neighbours"),
        ({"notes": "text"}, "notes"),
        ({"neighbour_prompts": [" "]}, "neighbour_prompts"),
        ({"probes": [{**PROBE, "colour": "red"}]}, "probes"),
        ({"probes": [{**PROBE, "kind": "other"}]}, "'other'"),
        ({"probes": [{**PROBE, "target": " "}]}, "target"),
        ({"probes": [{**PROBE, "aliases": [" "]}]}, "aliases"),
        ({"true_aliases": [""]}, "true_aliases"),
        ({"multi_hop": [{**ASKED, "questions": []}]}, "needs its words"),
        ({"multi_hop": [{**ASKED, "after": []}]}, "answer of after"),
        ({"multi_hop": [{**ASKED, "before": [""]}]}, "before"),
        ({"multi_hop": [{**ASKED, "hops_after": ["z"]}]}, "hops_after"),
        ({"multi_hop": [{**ASKED, "hops_after": [HOP]}]}, "a question or"),
    ],
    ids=str,
)
def test_records_that_are_no_facts(change: dict[str, Any], named: str) -> None:
    """A misspelt field would be dropped, or a number turned into a word."""
    with refuses(InputError, ValueError, named):
        fm.Fact.from_dict({**EIFFEL.to_dict(), **change})


def test_missing_fields() -> None:
    """A traceback about an argument of __init__."""
    with refuses(InputError, ValueError, "'subject' is missing"):
        fm.Fact.from_dict({"prompt": "{} is"})


def test_html_is_escaped() -> None:
    """A file of facts from elsewhere could run a script in the reader's notebook."""
    evil = "<script>alert(1)</script>"
    html = fm.Fact(evil, "r", "{} " + evil, evil, target_new=evil, id=evil)._repr_html_()
    assert "<script" not in html
    assert html.count("&lt;script&gt;") == 5


def test_prompts_about_neighbours() -> None:
    """Side effects would be measured on half of the prompts, or on the subject itself."""
    assert FULL.prompts_about_neighbours == [
        "The Louvre is located in the city of",
        "The Panthéon is located in the city of",
        "The Louvre stands in",
    ]
    assert dataclasses.replace(EIFFEL, neighbours=()).prompts_about_neighbours == []


@pytest.mark.parametrize(
    ("change", "metrics"),
    [
        ({}, ""),
        ({"target_new": None}, "ES EM PS PM NS NM S NS_plus"),
        ({"paraphrases": ()}, "PS PM S"),
        ({"neighbours": ()}, ""),
        ({"neighbour_prompts": ()}, ""),
        ({"neighbours": (), "neighbour_prompts": ()}, "NS NM S NS_plus NKL"),
        ({"generation_prompts": ()}, "GE RS"),
        ({"probes": FULL.probes[1:]}, "unrelated"),
        ({"probes": ()}, "unrelated portability reverse alias"),
    ],
    ids=str,
)
def test_what_a_record_lacks(change: dict[str, Any], metrics: str) -> None:
    """A metric would be computed from nothing, and its mean be over other facts than it says."""
    lacks = changed(FULL, change).lacks
    assert set(lacks) == set(metrics.split())
    assert all(reason.startswith("no ") for reason in lacks.values())


def test_why_it_lacks_it() -> None:
    bare = fm.Fact("Tower", "r", "The {} is in", "Paris")
    assert bare.lacks["ES"] == "no target_new"
    assert bare.lacks["S"] == "no target_new, no paraphrases, no neighbours and no neighbour_prompts"
    assert bare.lacks["alias"] == "no probe of kind 'alias'"


def test_a_known_fact_by_its_prompt_or_a_paraphrase() -> None:
    """Otherwise paraphrases and neighbours would be missing although they are known."""
    facts = fm.load_facts("atlas")
    fact = next(f for f in facts if f.subject == "Eiffel Tower" and f.relation == "landmark.city")
    assert known_fact(fact.prompt, fact.subject, facts) is fact
    other = known_fact(fact.paraphrases[1], fact.subject, facts)
    assert other is not None
    assert other.id == fact.id
    assert other.prompt == fact.paraphrases[1]
    assert set(other.paraphrases) == {fact.prompt, fact.paraphrases[0], fact.paraphrases[2]}
    assert known_fact("{} is", fact.subject, facts) is None
    assert known_fact(fact.prompt, "Colosseum of London", facts) is None
