"""Cases of MQuAKE: several rewrites, and a question that follows from all of them."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import ffnmem as fm
from ffnmem.core.errors import FfnmemWarning, InputError
from ffnmem.evaluation.measuring import prompts
from ffnmem.facts import Hop, MultiHop, load_facts, write_facts
from ffnmem.facts.foreign import LeftOut
from ffnmem.facts.formats import detect, facts_of_record

from ..helpers import refuses


def rewrite(subject: str, new: str, true: str) -> dict[str, Any]:
    return {
        "prompt": "{} is a citizen of",
        "relation_id": "P27",
        "target_new": {"str": new, "id": "Q1"},
        "target_true": {"str": true, "id": "Q2"},
        "subject": subject,
        "question": f"What is the country of citizenship of {subject}?",
    }


def hop(subject: str, answer: str, *aliases: str) -> dict[str, Any]:
    return {
        "question": f"What is the country of citizenship of {subject}?",
        "cloze": f"{subject} is a citizen of",
        "answer": answer,
        "answer_alias": list(aliases),
    }


def mquake(record: dict[str, Any], number: int) -> list[fm.Fact]:
    return facts_of_record(record, number, "mquake", 0)


CHAIN = {"question": "Who leads Acme?", "cloze": "The head of Acme is", "answer": "Ann Dupont", "answer_alias": []}
ONE: dict[str, Any] = {
    "case_id": 2500,
    "requested_rewrite": [rewrite("Ann Dupont", "Libya", "France")],
    "questions": ["Of what country is the head of Acme?", "Where does the head of Acme vote?"],
    "answer": "France",
    "answer_alias": ["French Republic"],
    "new_answer": "Libya",
    "new_answer_alias": ["State of Libya"],
    "single_hops": [CHAIN, hop("Ann Dupont", "France", "French Republic")],
    "new_single_hops": [CHAIN, hop("Ann Dupont", "Libya", "State of Libya")],
    "orig": {"triples": [["Q44567", "P108", "Q35339"]]},
}
TWO = {**ONE, "case_id": 2501, "requested_rewrite": [*ONE["requested_rewrite"], rewrite("Guy Martin", "Peru", "Chad")]}


def test_a_case_of_one_rewrite() -> None:
    hops = (Hop(CHAIN["question"], CHAIN["cloze"], "Ann Dupont"),)  # type: ignore[arg-type]
    ways = ("What is the country of citizenship of Ann Dupont?", "Ann Dupont is a citizen of")
    assert mquake(ONE, 1) == [
        fm.Fact(
            subject="Ann Dupont",
            relation="P27",
            prompt="{} is a citizen of",
            target_true="France",
            target_new="Libya",
            paraphrases=("What is the country of citizenship of {}?",),
            id="mquake.2500.1",
            notes=("fields left out: orig",),
            true_aliases=("French Republic",),
            new_aliases=("State of Libya",),
            multi_hop=(
                MultiHop(
                    tuple(ONE["questions"]),
                    ("France", "French Republic"),
                    ("Libya", "State of Libya"),
                    (*hops, Hop(*ways, "France", ("French Republic",))),
                    (*hops, Hop(*ways, "Libya", ("State of Libya",))),
                ),
            ),
        )
    ]
    assert mquake(ONE, 1)[0].multi_hop[0].hops == 2


def test_a_case_of_several() -> None:
    """An edit of one fact would be blamed for a question that follows from two."""
    first, second = mquake(TWO, 1)
    assert (first.id, second.id) == ("mquake.2501.1", "mquake.2501.2")
    assert first.multi_hop[0].needs == ("mquake.2501.2",)
    assert second.multi_hop == ()
    asked = {text for _, text, _ in prompts(first, "Libya")}
    assert not asked & set(ONE["questions"])


def test_other_forms_of_it() -> None:
    """Copies with one field a text, answers of MQuAKE-T, and cases that say less."""
    flat = {**rewrite("Ann Dupont", "", ""), "target_new_str": "Libya", "target_true_str": "France"}
    del flat["target_new"], flat["target_true"], flat["relation_id"]
    least = {"requested_rewrite": flat, "questions": "Where?", "new_answer": "Libya", "answer_extended": ["Gaul", "x"]}
    fact = mquake(least, 3)[0]
    assert (fact.id, fact.relation, fact.target_new, fact.target_true) == ("mquake.#3.1", "mquake", "Libya", "France")
    assert fact.multi_hop == (MultiHop(("Where?",), ("Gaul", "x"), ("Libya",)),)
    assert fact.multi_hop[0].hops == 0
    assert fact.notes == ("answer_extended joined with answer_alias",)
    text = {**rewrite("Ann", "", ""), "target_new": "Libya", "target_true": None, "question": "Of which country?"}
    fact = mquake({**ONE, "requested_rewrite": [text]}, 1)[0]
    assert (fact.target_new, fact.target_true, fact.paraphrases) == ("Libya", "", ())
    assert fact.notes[0].startswith("question left out")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"requested_rewrite": []}, "requested_rewrite"),
        ({"requested_rewrite": [3]}, "requested_rewrite"),
        ({"requested_rewrite": [{**rewrite("Ann", "x", "y"), "target_new": None}]}, "target_new"),
        ({"requested_rewrite": [{**rewrite("Ann", "x", "y"), "target_new": {"id": "Q1"}}]}, "str"),
        ({"requested_rewrite": [{**rewrite("Ann", "x", "y"), "subject": 3}]}, "subject"),
        ({"questions": []}, "questions"),
        ({"questions": [3]}, "questions"),
        ({"new_answer": ""}, "new_answer"),
        ({"new_answer": ["x"]}, "new_answer"),
        ({"answer_alias": {"x": 1}}, "answer_alias"),
        ({"single_hops": "text"}, "single_hops"),
        ({"new_single_hops": [{"question": "x"}]}, "new_single_hops"),
        ({"new_single_hops": [{"answer": "x"}]}, "new_single_hops"),
    ],
    ids=str,
)
def test_broken_cases(change: dict[str, Any], named: str) -> None:
    with refuses(InputError, ValueError, named):
        mquake({**ONE, **change}, 1)


def test_a_subject_that_is_not_in_its_prompt() -> None:
    with pytest.raises(LeftOut, match="does not stand"):
        mquake({**ONE, "requested_rewrite": [{**rewrite("Ann", "x", "y"), "prompt": "She is of"}]}, 1)


def test_it_is_told_from_counterfact() -> None:
    assert detect(ONE) == detect({**ONE, "requested_rewrite": ONE["requested_rewrite"][0]}) == "mquake"
    assert detect({"requested_rewrite": ONE["requested_rewrite"][0]}) == "counterfact"


def without_ids(record: dict[str, Any]) -> dict[str, Any]:
    """A case as it is written: without the chains and targets of Wikidata."""
    rewrites = [
        {**one, **{name: {"str": one[name]["str"]} for name in ("target_new", "target_true")}}
        for one in record["requested_rewrite"]
    ]
    return {**{name: value for name, value in record.items() if name != "orig"}, "requested_rewrite": rewrites}


@pytest.mark.parametrize("own", [False, True])
def test_round_trip(tmp_path: Path, own: bool) -> None:
    """File, facts, file: the same cases, by way of a file of our own too."""
    path = tmp_path / "first.json"
    unnamed = {name: value for name, value in TWO.items() if name != "case_id"}
    path.write_text(json.dumps([ONE, TWO, unnamed]))
    facts = load_facts(path)
    assert [fact.id for fact in facts] == [f"mquake.{name}" for name in ("2500.1", "2501.1", "2501.2", "#3.1", "#3.2")]
    if own:
        again = load_facts(write_facts(facts, tmp_path / "own.jsonl"))
        assert again == facts
        facts = again
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        second = write_facts(facts, tmp_path / "second.json", "mquake")
    assert json.loads(second.read_text("utf-8")) == [without_ids(one) for one in (ONE, TWO, unnamed)]
    assert [replace(fact, notes=()) for fact in facts] == load_facts(second)


def test_facts_that_are_no_cases(tmp_path: Path) -> None:
    """A case without its other rewrites would ask for what cannot follow."""
    facts = mquake(TWO, 1)
    with refuses(InputError, ValueError, "'mquake.2501.2'", "none of these facts"):
        write_facts(facts[:1], tmp_path / "out.json", "mquake")
    with refuses(InputError, ValueError, "1 of 1 facts have no part"):
        write_facts(facts[1:], tmp_path / "out.json", "mquake")
    with refuses(InputError, ValueError, "'mquake.2501.2'", "no new target"):
        write_facts([facts[0], replace(facts[1], target_new=None)], tmp_path / "out.json", "mquake")
    assert list(tmp_path.iterdir()) == []


def test_a_fact_with_two_questions_is_two_cases(tmp_path: Path) -> None:
    fact = mquake(ONE, 1)[0]
    other = replace(fact.multi_hop[0], questions=("Who votes where?",))
    with pytest.warns(FfnmemWarning, match=r"id \(2\), multi_hop \(2\)"):
        path = write_facts([replace(fact, multi_hop=(*fact.multi_hop, other))], tmp_path / "out.json", "mquake")
    assert [found.multi_hop for found in load_facts(path)] == [fact.multi_hop, (other,)]


def test_mquake_as_other_formats(tmp_path: Path) -> None:
    """Its rewrites are read by the programs of CounterFact and EasyEdit; its questions are said to be lost."""
    facts = mquake(ONE, 1)
    for format in ("counterfact", "knowedit"):
        with pytest.warns(FfnmemWarning, match=r"multi_hop \(1\)"):
            path = write_facts(facts, tmp_path / "out.json", format)
        found = load_facts(path)[0]
        assert (found.text, found.target_new, found.target_true) == (facts[0].text, "Libya", "France")
        assert found.relation == "P27"
