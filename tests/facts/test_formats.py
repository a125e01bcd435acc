"""Records of public data sets as facts."""

from __future__ import annotations

import dataclasses
import json
import warnings
from pathlib import Path
from typing import Any

import pytest

import ffnmem as fm
from ffnmem.core.errors import InputError
from ffnmem.facts import Probe, load_facts, write_facts
from ffnmem.facts.formats import detect, facts_of_record

from ..helpers import refuses

COUNTERFACT: dict[str, Any] = {
    "case_id": 7,
    "pararel_idx": 2796,
    "requested_rewrite": {
        "prompt": "The mother tongue of {} is",
        "relation_id": "P103",
        "target_new": {"str": "English", "id": "Q1860"},
        "target_true": {"str": "French", "id": "Q150"},
        "subject": "Ann Dupont",
    },
    "paraphrase_prompts": [
        "He paid. Ann Dupont, a native",
        "Spoken by Ann Dupont, Ann Dupont's language is",
        "She, a native",
    ],
    "neighborhood_prompts": ["The mother tongue of Guy Martin is", "Guy Martin spoke "],
    "attribute_prompts": ["The mother tongue of John Smith is"],
    "generation_prompts": ["Ann Dupont's mother tongue is", "Ann Dupont lives in"],
}
TRACING: dict[str, Any] = {
    "relation": "The mother tongue of {} is",
    "relation_prefix": "The mother tongue of",
    "relation_suffix": " is",
    "prompt": "The mother tongue of Ann Dupont is",
    "relation_id": "P103",
    "target_false_id": "Q1860",
    "target_true_id": "Q150",
    "target_true": " French",
    "target_false": " English",
    "subject": " Ann Dupont",
}
KNOWN: dict[str, Any] = {
    "known_id": 0,
    "subject": "Mount Erebus",
    "attribute": "Antarctica",
    "template": "{} is located in the continent",
    "prediction": " of Antarctica. It is",
    "prompt": "Mount Erebus is located in the continent of",
    "relation_id": "P30",
}
ZSRE: dict[str, Any] = {
    "subject": "Ann Dupont",
    "src": "What university did Ann Dupont attend?",
    "pred": "Trinity College",
    "rephrase": "What university did Ann Dupont take part in?",
    "alt": "University of Michigan",
    "answers": ["Illinois Institute of Technology", "IIT"],
    "loc": "nq question: who played desmond doss father in hacksaw ridge",
    "loc_ans": "Hugo Weaving",
    "cond": "Trinity College >> University of Michigan || What university did Ann Dupont attend?",
}


def read(format: str, record: dict[str, Any], number: int = 1) -> fm.Fact:
    return facts_of_record(record, number, format, 0)[0]


def test_counterfact() -> None:
    fact = read("counterfact", COUNTERFACT)
    assert fact == fm.Fact(
        subject="Ann Dupont",
        relation="P103",
        prompt="The mother tongue of {} is",
        target_true="French",
        target_new="English",
        paraphrases=("He paid. {}, a native",),
        generation_prompts=("{}'s mother tongue is", "{} lives in"),
        id="counterfact.7",
        neighbour_prompts=("The mother tongue of Guy Martin is", "Guy Martin spoke"),
        notes=fact.notes,
    )
    assert len(fact.notes) == 2
    assert "2 times" in fact.notes[0]
    assert "She, a native" in fact.notes[1]


def test_counterfact_with_one_column_a_field() -> None:
    """The hub's copy for tracing: spaces before subject and targets belong to the text around them."""
    fact = read("counterfact", TRACING, 12)
    assert (fact.subject, fact.prompt, fact.relation) == ("Ann Dupont", "The mother tongue of {} is", "P103")
    assert (fact.target_true, fact.target_new, fact.id) == ("French", "English", "counterfact.12")
    assert fact.text == TRACING["prompt"]
    first = {
        **TRACING,
        "subject": "Ann",
        "relation_prefix": "",
        "relation_suffix": ", a native",
        "prompt": "Ann, a native",
    }
    assert read("counterfact", first).prompt == "{}, a native"
    least = {"subject": "Ann", "prompt": "Ann speaks", "target_true": "French"}
    fact = read("counterfact", least)
    assert (fact.prompt, fact.target_new, fact.relation) == ("{} speaks", None, "counterfact")
    other = read("counterfact", {**TRACING, "relation_prefix": "What?", "subject": "Dupont"})
    assert other.prompt == "The mother tongue of Ann {} is"


def test_known_1000_takes_the_prompt() -> None:
    """Its template leaves out words that the prompt has, after which the attribute follows."""
    fact = read("known_1000", KNOWN)
    assert fact.prompt == "{} is located in the continent of"
    assert (fact.target_true, fact.target_new, fact.relation) == ("Antarctica", None, "P30")
    assert (fact.id, fact.paraphrases, fact.neighbours, fact.notes) == ("known_1000.0", (), (), ())


def test_zsre() -> None:
    fact = read("zsre", ZSRE, 4)
    assert fact.prompt == "What university did {} attend?"
    assert fact.paraphrases == ("What university did {} take part in?",)
    assert fact.target_true == "Illinois Institute of Technology"
    assert fact.target_new == "University of Michigan"
    assert fact.id == "zsre.3"
    assert fact.probes == (Probe("unrelated", f"{ZSRE['loc']}?", "Hugo Weaving"),)
    other = read("zsre", {**ZSRE, "rephrase": "Which university was hers?", "alt": None, "loc": None})
    assert (other.target_new, other.paraphrases, other.probes) == (None, (), ())
    assert len(other.notes) == 1


@pytest.mark.parametrize(
    ("format", "change", "named"),
    [
        ("counterfact", {"requested_rewrite": 3}, "requested_rewrite"),
        ("counterfact", {"requested_rewrite": {"subject": "Ann"}}, "prompt"),
        ("counterfact", {"requested_rewrite": {**COUNTERFACT["requested_rewrite"], "prompt": "It is"}}, "It is"),
        ("counterfact", {"paraphrase_prompts": "Ann"}, "paraphrase_prompts"),
        ("counterfact", {"neighborhood_prompts": [{"prompt": "x"}]}, "neighborhood_prompts"),
        ("known_1000", {"subject": "Erebus, Mount"}, "Erebus, Mount"),
        ("known_1000", {"attribute": 3}, "attribute"),
        ("zsre", {"answers": []}, "answers"),
        ("zsre", {"src": "Which one?"}, "Which one?"),
        ("ffnmem", {}, "no field"),
    ],
)
def test_broken_records(format: str, change: dict[str, Any], named: str) -> None:
    """A record that lacks what a fact is made of would become a fact about something else."""
    records = {"counterfact": COUNTERFACT, "known_1000": KNOWN, "zsre": ZSRE, "ffnmem": KNOWN}
    with refuses(InputError, ValueError, named):
        read(format, {**records[format], **change})


def test_detect() -> None:
    """A format would be read as another one, with fields of the same name."""
    own = read("known_1000", KNOWN).to_dict()
    flat = {"subject": "Ann", "prompt": "Ann speaks", "target_true": "French", "target_new": "English", "relation": "r"}
    assert detect(own) == "ffnmem"
    assert detect({**own, "colour": "red"}) == "ffnmem"
    assert detect(COUNTERFACT) == detect(TRACING) == detect(flat) == "counterfact"
    assert detect(KNOWN) == "known_1000"
    assert detect(ZSRE) == "zsre"
    assert detect({"triples": [], "templates": {}}) == "pararel"
    assert detect({"question": "Who?", "answer": "Ann"}) is None
    assert detect({}) is None


def test_counterfact_round_trip(tmp_path: Path) -> None:
    """File, facts, file: the same records but for what no fact holds."""
    facts = [read("counterfact", COUNTERFACT)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        path = write_facts(facts, tmp_path / "out.json", "counterfact")
    rewrite = COUNTERFACT["requested_rewrite"]
    assert json.loads(path.read_text("utf-8")) == [
        {
            "case_id": 7,
            "requested_rewrite": {
                **rewrite,
                "target_new": {"str": "English"},
                "target_true": {"str": "French"},
            },
            "paraphrase_prompts": COUNTERFACT["paraphrase_prompts"][:1],
            "neighborhood_prompts": ["The mother tongue of Guy Martin is", "Guy Martin spoke"],
            "attribute_prompts": [],
            "generation_prompts": COUNTERFACT["generation_prompts"],
        }
    ]
    assert [dataclasses.replace(fact, notes=()) for fact in facts] == load_facts(path)
    known = [read("known_1000", KNOWN)]
    with refuses(InputError, ValueError, "'known_1000.0'", "no new target"):
        write_facts(known, path, "counterfact")
    assert load_facts(path)[0].id == "counterfact.7"
