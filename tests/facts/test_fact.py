"""One fact."""

from __future__ import annotations

import json
import unicodedata
from dataclasses import replace
from typing import Any

import ffnmem as fm
from ffnmem.core.errors import InputError
from ffnmem.facts import Probe
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
FULL = replace(
    EIFFEL,
    neighbour_prompts=("The Louvre stands in",),
    probes=tuple(Probe(kind, f"about {kind}", "Italy") for kind in KINDS),
    notes=("a paraphrase left out",),
    true_aliases=("Lutetia",),
    new_aliases=("Roma", "Rom"),
)
PROBE = {"kind": "alias", "prompt": "x", "target": "y"}


def test_a_fact() -> None:
    """The model would be asked about a pair of braces; side effects be measured on half of the prompts."""
    assert EIFFEL.text == "The Eiffel Tower is located in the city of"
    assert EIFFEL.ask(EIFFEL.paraphrases[0]) == "The city that is home to the Eiffel Tower is"
    assert EIFFEL.ask(EIFFEL.prompt, "{0} \\1") == "The {0} \\1 is located in the city of"
    about = ["The Louvre is located in the city of", "The Panthéon is located in the city of", "The Louvre stands in"]
    assert FULL.prompts_about_neighbours == about
    assert replace(EIFFEL, neighbours=()).prompts_about_neighbours == []
    for fact in (EIFFEL, FULL):
        assert fm.Fact.from_dict(json.loads(json.dumps(fact.to_dict()))) == fact
    for target, lacking in (("target_true", "target_new"), ("target_new", "target_true")):
        least = fm.Fact.from_dict({"subject": "Eiffel Tower", "prompt": EIFFEL.prompt, target: "Rome"})
        assert (least.relation, least.text, getattr(least, lacking) or "") == ("", EIFFEL.text, "")
        assert fm.Fact.from_dict(least.to_dict()) == least
        assert lacking in least.lacks["ES"]


def test_a_fact_of_a_text(tiny: fm.Model) -> None:
    """The subject's place is found, in a text too that somebody else's program decomposed."""
    made = fm.Fact.from_text(EIFFEL.text, "Eiffel Tower", "Rome", true="Paris", id="tower")
    assert (made.prompt, made.target_new, made.target_true, made.id) == (EIFFEL.prompt, "Rome", "Paris", "tower")
    assert fm.Fact.from_text(EIFFEL.prompt, "Eiffel Tower", "Rome").prompt == EIFFEL.prompt
    assert fm.Fact.from_text("The Iranian capital of Iran is", "Iran", "Rome").prompt == "The Iranian capital of {} is"
    for text in ("Beyonce\u0301 is a", "It is Beyonc\u00e9 who"):
        for form in ("NFC", "NFD"):
            name = unicodedata.normalize(form, "Beyonc\u00e9")
            fact, asked = fm.Fact.from_text(text, name, "singer"), find_subject(tiny, text, name)
            assert fact.text == text
            assert tiny.tokenizer.decode([asked.tokens[i] for i in asked.subject]).strip() == fact.subject


NO_TEXTS = [
    ("The Louvre, yes the Louvre is in", "Louvre", "'Louvre' stands 2 times"),
    ("The Louvre is in", " ", "the subject is empty"),
    ("x = {} # The Eiffel Tower is in", "Eiffel Tower", "both {} and the subject 'Eiffel Tower' stand in"),
    ("Cafe\u0301 {} and", "Caf\u00e9", "both {} and"),
    ("D’Artagnan is a", "D'Artagnan", "the text has '’' (U+2019) for \"'\" (U+0027)"),
    ("The louvre is in", "Louvre", "the text has 'l' (U+006C) for 'L' (U+004C)"),
]
NO_FACTS: list[tuple[dict[str, Any], str]] = [
    ({"colour": "red"}, "colour"),
    ({"subject": "  "}, "subject is empty"),
    ({"target_true": "", "target_new": None}, "has no target"),
    ({"prompt": "no braces"}, "'no braces'"),
    ({"paraphrases": ["{} and {}"]}, "'{} and {}'"),
    ({"neighbours": ["Louvre", 3]}, "neighbours"),
    ({"neighbour_prompts": [" "]}, "neighbour_prompts"),
    ({"probes": [{**PROBE, "kind": "other"}]}, "'other'"),
    ({"true_aliases": [""]}, "true_aliases"),
]


def test_what_is_no_fact() -> None:
    """Another word of a text would be rewritten, a misspelt field dropped, or a prompt about nothing scored."""
    for text, subject, says in NO_TEXTS:
        with refuses(InputError, ValueError, says):
            fm.Fact.from_text(text, subject, "Rome")
    for change, says in NO_FACTS:
        with refuses(InputError, ValueError, says):
            fm.Fact.from_dict({**EIFFEL.to_dict(), **change})
    with refuses(InputError, ValueError, "'subject' is missing"):
        fm.Fact.from_dict({"prompt": "{} is"})


LACKS: list[tuple[dict[str, Any], str]] = [
    ({}, ""),
    ({"target_new": None}, "ES EM PS PM NS NM S NS_plus"),
    ({"paraphrases": ()}, "PS PM S"),
    ({"neighbours": ()}, ""),
    ({"neighbour_prompts": ()}, ""),
    ({"neighbours": (), "neighbour_prompts": ()}, "NS NM S NS_plus NKL"),
    ({"generation_prompts": ()}, ""),
    ({"probes": FULL.probes[1:]}, "unrelated"),
    ({"probes": ()}, "unrelated reverse alias"),
]


def test_what_a_record_lacks() -> None:
    """A metric would be computed from nothing, and its mean be over other facts than it says."""
    for change, metrics in LACKS:
        assert set(replace(FULL, **change).lacks) == set(metrics.split())
    bare = fm.Fact("Tower", "r", "The {} is in", "Paris").lacks
    assert bare["S"] == "no target_new, no paraphrases, no neighbours and no neighbour_prompts"
    assert bare["alias"] == "no probe of kind 'alias'"


def test_a_known_fact_by_its_prompt_or_a_paraphrase() -> None:
    """Otherwise paraphrases and neighbours would be missing although they are known."""
    facts = fm.load_facts("atlas")
    fact = next(f for f in facts if f.subject == "Eiffel Tower" and f.relation == "landmark.city")
    assert known_fact(fact.prompt, fact.subject, facts) is fact
    first, second, third = fact.paraphrases
    other = known_fact(second, fact.subject, facts)
    assert other is not None
    assert (other.id, other.prompt, {*other.paraphrases}) == (fact.id, second, {fact.prompt, first, third})
    assert known_fact("{} is", fact.subject, facts) is None
    assert known_fact(fact.prompt, "Colosseum of London", facts) is None
