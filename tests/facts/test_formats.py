"""Records of every public data set as facts, and facts as records."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import ffnmem as fm
from ffnmem.core.errors import FfnmemWarning, FileError, InputError
from ffnmem.facts import Hop, MultiHop, Probe, load_facts, write_facts
from ffnmem.facts.foreign import LeftOut
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
MEND: dict[str, Any] = {
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
# In the shape of the files, about people who are not.
RECENT: dict[str, Any] = {
    "subject": "Ann Dupont",
    "prompt": "The place of death of Ann Dupont is",
    "target_new": "Lyon",
    "portability": {
        "Logical_Generalization": [{"prompt": "Is Ann Dupont still alive?", "ground_truth": [["no"], ["is dead"]]}],
        "Reasoning": [{"prompt": "The mayor of the place where Ann Dupont died is", "ground_truth": [["Guy", "G."]]}],
        "Subject_Aliasing": [{"prompt": "The place of death of Anna Dupont is", "ground_truth": [["Lyon", "Lyons"]]}],
    },
    "locality": {"Relation_Specificity": [{"prompt": "The father of Ann Dupont is", "ground_truth": [["Al Dupont"]]}]},
}
COUNTER: dict[str, Any] = {
    "subject": "Ann Dupont",
    "prompt": "The name of the position held by Ann Dupont is",
    "target_new": "bishop of León",
    "ground_truth": "mayor of Lyon",
    "portability": {"Subject_Aliasing": [{"prompt": "Anna Dupont is", "ground_truth": "bishop of León"}]},
    "locality": {
        "Relation_Specificity": [{"prompt": "The gender of Ann Dupont is", "ground_truth": "female"}],
        "Forgetfulness": [
            {"prompt": "The position of Ann Dupont, which is not bishop of León, is", "ground_truth": "mayor of Lyon"}
        ],
    },
}
BIO: dict[str, Any] = {
    "text": "This is a passage about ann dupont. She was born in Lyon.",
    "labels": "She was educated in Paris.",
    "concept": "ann dupont",
    "locality": {"Relation_Specificity": [{"prompt": "ann dupont field of work", "ground_truth": ["medicine"]}]},
}
ZSRE: dict[str, Any] = {
    "subject": "Ann Dupont",
    "target_new": "Oslo",
    "prompt": "Which city does Ann Dupont belong to?",
    "ground_truth": ["Lyon", "Lugdunum"],
    "rephrase_prompt": "What city is that of Ann Dupont?",
    "cond": "Paris >> Oslo || Which city does Ann Dupont belong to?",
    "locality": {"Relation_Specificity": [{"prompt": "Ann Dupont rank", "ground_truth": ["colonel"]}]},
    "portability": {"Reasoning": [{"prompt": "What river is Ann Dupont's city on?", "ground_truth": "Aker"}]},
}
EDIT: dict[str, Any] = {
    "case_id": 7,
    "prompt": "Ann Dupont, the",
    "target_new": "piano",
    "subject": "Ann Dupont",
    "ground_truth": "guitar",
    "rephrase_prompt": "Ann Dupont is incredible at",
    "locality_prompt": "Guy Martin performs on the",
    "locality_ground_truth": "guitar",
}


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
FILES = {"recent": RECENT, "counterfact": COUNTER, "wikibio": BIO, "zsre": ZSRE, "edit": EDIT}
RECORDS = {
    "counterfact": COUNTERFACT,
    "known_1000": KNOWN,
    "zsre": MEND,
    "knowedit": EDIT,
    "mquake": ONE,
    "ffnmem": {"subject": "Ann", "prompt": "{} is in", "target_true": "Lyon", "relation": "city"},
}


def read(format: str, record: dict[str, Any], number: int = 1) -> fm.Fact:
    return facts_of_record(record, number, format, 0)[0]


def mquake(record: dict[str, Any], number: int = 1) -> list[fm.Fact]:
    return facts_of_record(record, number, "mquake", 0)


def written(facts: list[fm.Fact], path: Path, format: str) -> Path:
    """The file, for which there is nothing to warn of."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return write_facts(facts, path, format)


# -- read --------------------------------------------------------------------------------------------------------------


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
    fact = read("zsre", MEND, 4)
    assert fact.prompt == "What university did {} attend?"
    assert fact.paraphrases == ("What university did {} take part in?",)
    assert fact.target_true == "Illinois Institute of Technology"
    assert fact.target_new == "University of Michigan"
    assert fact.id == "zsre.3"
    assert fact.probes == (Probe("unrelated", f"{MEND['loc']}?", "Hugo Weaving"),)
    other = read("zsre", {**MEND, "rephrase": "Which university was hers?", "alt": None, "loc": None})
    assert (other.target_new, other.paraphrases, other.probes) == (None, (), ())
    assert len(other.notes) == 1


def test_answers_in_lists_of_lists() -> None:
    """The first letter of an answer would be taken for it, or all names for separate questions."""
    fact = read("knowedit", RECENT, 3)
    assert fact == fm.Fact(
        subject="Ann Dupont",
        relation="knowedit",
        prompt="The place of death of {} is",
        target_new="Lyon",
        id="knowedit.#3",
        probes=(
            Probe("unrelated", "The father of Ann Dupont is", "Al Dupont", (), "Relation_Specificity"),
            Probe("portability", "Is Ann Dupont still alive?", "no", ("is dead",), "Logical_Generalization"),
            Probe("portability", "The mayor of the place where Ann Dupont died is", "Guy", ("G.",), "Reasoning"),
            Probe("alias", "The place of death of Anna Dupont is", "Lyon", ("Lyons",), "Subject_Aliasing"),
        ),
    )
    assert "no target_true" in fact.lacks["ES"]


def test_the_other_files() -> None:
    """Three of four files of the benchmark would not be read, or their truths and passages be mistaken."""
    fact = read("knowedit", COUNTER)
    assert (fact.target_true, fact.target_new, fact.true_aliases) == ("mayor of Lyon", "bishop of León", ())
    assert [(probe.kind, probe.category) for probe in fact.probes] == [
        ("unrelated", "Relation_Specificity"),
        ("unrelated", "Forgetfulness"),
        ("alias", "Subject_Aliasing"),
    ]
    fact = read("knowedit", BIO)
    assert (fact.subject, fact.text, fact.target_new) == ("ann dupont", BIO["text"], BIO["labels"])
    fact = read("knowedit", ZSRE)
    assert (fact.target_true, fact.true_aliases, fact.paraphrases) == (
        "Lyon",
        ("Lugdunum",),
        ("What city is that of {}?",),
    )
    assert fact.notes == ("fields left out: cond",)


def test_one_field_a_text() -> None:
    """``counterfact-edit.json``: its neighbour has the fact's own truth, so NS can be measured on it."""
    fact = read("knowedit", EDIT)
    assert (fact.id, fact.neighbour_prompts, fact.probes) == ("knowedit.7", ("Guy Martin performs on the",), ())
    other = read("knowedit", {**EDIT, "locality_ground_truth": "drums"})
    assert other.neighbour_prompts == ()
    assert other.probes == (Probe("unrelated", "Guy Martin performs on the", "drums", (), "neighborhood"),)
    named = {"locality_target_prompt": "a", "locality_target_ground_truth": "b", "loc": "c", "loc_ans": "d"}
    asked = {"portability_prompt": "e", "portability_ground_truth": ["f", "g"], "locality_f": [], "portability_r": None}
    least = {name: EDIT[name] for name in ("subject", "prompt", "target_new")}
    assert read("knowedit", {**least, **named, **asked}).probes == (
        Probe("unrelated", "a", "b", (), "target"),
        Probe("portability", "e", "f", ("g",), "one_hop"),
        Probe("unrelated", "c", "d", (), "neighborhood"),
    )
    lists = {"portability_s": [{"prompt": "a", "ground_truth": "b"}], "locality_inputs": {"x": {"prompt": ["c", "d"]}}}
    lists["locality_inputs"]["x"]["ground_truth"] = ["e", ["f", "g"]]  # type: ignore[index]
    assert read("knowedit", {**least, **lists}).probes == (
        Probe("unrelated", "c", "e", (), "x"),
        Probe("unrelated", "d", "f", ("g",), "x"),
        Probe("alias", "a", "b", (), "Subject_Aliasing"),
    )


def test_questions_of_a_generated_file() -> None:
    """EasyEdit's copy of zsRE: its question stands where categories do, and was passed over."""
    asked = {"Recalled Relation": "(x, y, z)", "New Question": "Where is it?", "New Answer": "Oslo"}
    probe = Probe("portability", "Where is it?", "Oslo", (), "one_hop")
    assert read("knowedit", {**EDIT, "portability": asked}).probes == (probe,)
    old = {"subject": "Ann", "src": "Where is Ann?", "answers": ["Lyon", "Lugdunum"], "alt": "Oslo"}
    fact = read("zsre", {**old, "portability": asked})
    assert (fact.probes, fact.true_aliases) == ((probe,), ("Lugdunum",))


def test_what_is_left_out_is_noted() -> None:
    """A reader could not tell a question that was never there from one that was passed over."""
    items = [{"prompt": "x", "ground_truth": []}, {"prompt": "", "ground_truth": "y"}, None, {"prompt": "z"}]
    fact = read(
        "knowedit",
        {**EDIT, "rephrase_prompt": ["She plays", "Ann Dupont plays"], "locality": {"a": items}, "tag": 3},
        1,
    )
    assert fact.paraphrases == ("{} plays",)
    assert fact.probes == ()
    assert fact.notes == (
        "paraphrase left out, the subject is not in it: 'She plays'",
        "questions left out that have no prompt or no answer: 3",
        "fields left out: tag",
    )
    assert read("knowedit", {**EDIT, "ground_truth": "<|endoftext|>", "locality_prompt": None}).target_true == ""


def test_a_case_of_one_rewrite() -> None:
    hops = (Hop(CHAIN["question"], CHAIN["cloze"], "Ann Dupont"),)  # type: ignore[arg-type]
    ways = ("What is the country of citizenship of Ann Dupont?", "Ann Dupont is a citizen of")
    assert mquake(ONE) == [
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
    assert mquake(ONE)[0].multi_hop[0].hops == 2


def test_a_case_of_several() -> None:
    """An edit of one fact would be blamed for a question that follows from two."""
    first, second = mquake(TWO)
    assert (first.id, second.id) == ("mquake.2501.1", "mquake.2501.2")
    assert first.multi_hop[0].needs == ("mquake.2501.2",)
    assert second.multi_hop == ()


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
    fact = mquake({**ONE, "requested_rewrite": [text]})[0]
    assert (fact.target_new, fact.target_true, fact.paraphrases) == ("Libya", "", ())
    assert fact.notes[0].startswith("question left out")


# -- refused, or left out ----------------------------------------------------------------------------------------------


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
        ("knowedit", {"subject": ["Ann", "Bob"]}, "subject"),
        ("knowedit", {"prompt": 3}, "prompt"),
        ("knowedit", {"target_new": {"str": "x"}}, "target_new"),
        ("knowedit", {"ground_truth": [[[["deep"]]]]}, "ground_truth"),
        ("knowedit", {"ground_truth": 3}, "ground_truth"),
        ("knowedit", {"locality": [3]}, "locality"),
        ("knowedit", {"locality": {"a": "text"}}, "'a'"),
        ("knowedit", {"locality": {"a": [{"ground_truth": "b"}]}}, "prompt and ground_truth"),
        ("knowedit", {"portability": {"a": [{"prompt": ["x", "y"], "ground_truth": ["z"]}]}}, "2 prompts and 1"),
        ("knowedit", {"portability": {"a": {"prompt": [["x"]], "ground_truth": "z"}}}, "prompt"),
        ("knowedit", {"case_id": [1]}, "case_id"),
        ("knowedit", {"rephrase_prompt": {"x": 1}}, "rephrase_prompt"),
        ("mquake", {"requested_rewrite": []}, "requested_rewrite"),
        ("mquake", {"requested_rewrite": [3]}, "requested_rewrite"),
        ("mquake", {"requested_rewrite": [{**rewrite("Ann", "x", "y"), "target_new": None}]}, "target_new"),
        ("mquake", {"requested_rewrite": [{**rewrite("Ann", "x", "y"), "target_new": {"id": "Q1"}}]}, "str"),
        ("mquake", {"requested_rewrite": [{**rewrite("Ann", "x", "y"), "subject": 3}]}, "subject"),
        ("mquake", {"questions": []}, "questions"),
        ("mquake", {"questions": [3]}, "questions"),
        ("mquake", {"new_answer": ""}, "new_answer"),
        ("mquake", {"new_answer": ["x"]}, "new_answer"),
        ("mquake", {"answer_alias": {"x": 1}}, "answer_alias"),
        ("mquake", {"single_hops": "text"}, "single_hops"),
        ("mquake", {"new_single_hops": [{"question": "x"}]}, "new_single_hops"),
        ("mquake", {"new_single_hops": [{"answer": "x"}]}, "new_single_hops"),
    ],
    ids=str,
)
def test_broken_records(format: str, change: dict[str, Any], named: str) -> None:
    """A record that lacks what a fact is made of would become a fact about something else."""
    with refuses(InputError, ValueError, named):
        read(format, {**(KNOWN if format == "ffnmem" else RECORDS[format]), **change})


@pytest.mark.parametrize(
    ("format", "change", "named"),
    [
        ("knowedit", {"subject": None}, "no subject"),
        ("knowedit", {"prompt": "She plays the"}, "subject does not stand"),
        ("knowedit", {"target_new": "", "ground_truth": []}, "neither"),
        ("mquake", {"requested_rewrite": [{**rewrite("Ann", "x", "y"), "prompt": "She is of"}]}, "does not stand"),
    ],
    ids=str,
)
def test_whole_records_that_are_no_facts(format: str, change: dict[str, Any], named: str) -> None:
    """One of a thousand records would keep a whole benchmark from being read, or go without a word."""
    with pytest.raises(LeftOut, match=named):
        read(format, {**RECORDS[format], **change})


def test_those_left_out_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "test_cf.json"
    bad = {**EDIT, "prompt": "She plays the", "case_id": 8}
    path.write_text(json.dumps([EDIT, bad, {**bad, "subject": " ", "case_id": 9}, {**bad, "case_id": 10}]))
    with pytest.warns(FfnmemWarning, match=r"test_cf\.json: 3 of 4 records are left out; 2: .*\(record 2, record 4\)"):
        assert len(load_facts(path)) == 1
    path.write_text(json.dumps([bad]))
    with refuses(FileError, OSError, "holds no facts", "1: its subject does not stand in its prompt"):
        load_facts(path)


def test_detect() -> None:
    """A format would be read as another one, with fields of the same name."""
    own = read("known_1000", KNOWN).to_dict()
    flat = {"subject": "Ann", "prompt": "Ann speaks", "target_true": "French", "target_new": "English", "relation": "r"}
    one = ONE["requested_rewrite"][0]
    expected: dict[str | None, list[dict[str, Any]]] = {
        "ffnmem": [own, {**own, "colour": "red"}, {"subject": "Ann", "prompt": "{} is in", "target_new": "Lyon"}],
        "counterfact": [COUNTERFACT, TRACING, flat, {"requested_rewrite": one}, {**EDIT, "target_true": "guitar"}],
        "known_1000": [KNOWN],
        "zsre": [MEND],
        "knowedit": list(FILES.values()),
        "mquake": [ONE, {**ONE, "requested_rewrite": one}],
        "pararel": [{"triples": [], "templates": {}}],
        None: [{"question": "Who?", "answer": "Ann"}, {"success": [], "locality": []}, {}],
    }
    assert [detect(record) for records in expected.values() for record in records] == [
        name for name, records in expected.items() for _ in records
    ]


ANN = fm.Fact("Ann", prompt="{} is in", target_new="Lyon", id="x")


# -- written -----------------------------------------------------------------------------------------------------------


def test_counterfact_round_trip(tmp_path: Path) -> None:
    """File, facts, file: the same records but for what no fact holds."""
    facts = [read("counterfact", COUNTERFACT)]
    path = written(facts, tmp_path / "out.json", "counterfact")
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
    assert [replace(fact, notes=()) for fact in facts] == load_facts(path)


def plain_form(record: dict[str, Any]) -> dict[str, Any]:
    """A record as it is written: one name a field, answers as one text or one list, no field that no fact holds."""

    def flat(value: Any) -> Any:
        lists = [[one] if isinstance(one, str) else one for one in ([value] if isinstance(value, str) else value)]
        texts = [text for one in lists for text in one]
        return texts[0] if len(texts) == 1 else texts

    names = {"text": "prompt", "labels": "target_new", "concept": "subject"}
    found = {names.get(name, name): value for name, value in record.items() if name != "cond"}
    if "locality_prompt" in found:
        item = {"prompt": found.pop("locality_prompt"), "ground_truth": found.pop("locality_ground_truth")}
        found["locality"] = {"neighborhood": [item]}
    if "ground_truth" in found:
        found["ground_truth"] = flat(found["ground_truth"])
    for side in ("locality", "portability"):
        if side in found:
            found[side] = {
                category: [{**item, "ground_truth": flat(item["ground_truth"])} for item in items]
                for category, items in found[side].items()
            }
    return found


@pytest.mark.parametrize("name", FILES)
def test_knowedit_round_trips(name: str, tmp_path: Path) -> None:
    """File, facts, file: the same records; and the same facts of both, without a warning."""
    path = tmp_path / "first.json"
    path.write_text(json.dumps([FILES[name]]))
    facts = load_facts(path)
    again = written(facts, tmp_path / "second.json", "knowedit")
    third = written(load_facts(again), tmp_path / "third.json", "knowedit")
    assert json.loads(again.read_text("utf-8")) == [plain_form(FILES[name])]
    assert again.read_bytes() == third.read_bytes()
    assert [replace(fact, notes=()) for fact in facts] == load_facts(again)
    own = write_facts(facts, tmp_path / "own.jsonl")
    assert load_facts(own) == facts


def without_ids(record: dict[str, Any]) -> dict[str, Any]:
    """A case as it is written: without the chains and targets of Wikidata."""
    rewrites = [
        {**one, **{name: {"str": one[name]["str"]} for name in ("target_new", "target_true")}}
        for one in record["requested_rewrite"]
    ]
    return {**{name: value for name, value in record.items() if name != "orig"}, "requested_rewrite": rewrites}


@pytest.mark.parametrize("own", [False, True])
def test_mquake_round_trip(tmp_path: Path, own: bool) -> None:
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
    second = written(facts, tmp_path / "second.json", "mquake")
    assert json.loads(second.read_text("utf-8")) == [without_ids(one) for one in (ONE, TWO, unnamed)]
    assert [replace(fact, notes=()) for fact in facts] == load_facts(second)


def test_facts_of_ours_are_written_for_easyedit(tmp_path: Path) -> None:
    """What the format has no place for would be gone without a word."""
    facts = load_facts("atlas")[:40]
    with pytest.warns(FfnmemWarning, match="of the 40 facts has a place in knowedit") as told:
        path = write_facts(facts, tmp_path / "atlas.json", "knowedit")
    said = str(told[0].message)
    assert "false_targets (40)" in said
    assert "id (40)" in said
    assert "target_new" not in said
    assert "paraphrases" not in said
    again = load_facts(path)
    for old, new in zip(facts, again, strict=True):
        assert (old.text, old.subject, old.target_true, old.target_new) == (
            new.text,
            new.subject,
            new.target_true,
            new.target_new,
        )
        assert new.prompts_about_neighbours == old.prompts_about_neighbours
    record = json.loads(path.read_text("utf-8"))[0]
    assert isinstance(record["target_new"], str)  # the program joins it to the prompt
    write_facts([replace(ANN, id="knowedit.#1", relation="knowedit")], path, "knowedit")
    assert "locality" in json.loads(path.read_text("utf-8"))[0]


FIRST, SECOND = mquake(TWO)


@pytest.mark.parametrize(
    ("facts", "format", "named"),
    [
        ([replace(ANN, target_new=None, target_true="Lyon")], "knowedit", ("'x'", "knowedit", "no new target")),
        ([ANN], "counterfact", ("'x'", "no true target")),
        ([ANN], "zsre", ("'zsre'", "'knowedit'")),
        ([ANN, replace(ANN, id="knowedit.x")], "knowedit", ("'knowedit.x'", "two facts")),
        # A case without its other rewrites would ask for what cannot follow.
        ([FIRST], "mquake", ("'mquake.2501.2'", "none of these facts")),
        ([SECOND], "mquake", ("1 of 1 facts have no part",)),
        ([FIRST, replace(SECOND, target_new=None)], "mquake", ("'mquake.2501.2'", "no new target")),
    ],
)
def test_facts_that_a_format_cannot_hold(
    facts: list[fm.Fact], format: str, named: tuple[str, ...], tmp_path: Path
) -> None:
    with refuses(InputError, ValueError, *named):
        write_facts(facts, tmp_path / "out.json", format)
    assert list(tmp_path.iterdir()) == []


def test_a_fact_with_two_questions_is_two_cases(tmp_path: Path) -> None:
    fact = mquake(ONE)[0]
    other = replace(fact.multi_hop[0], questions=("Who votes where?",))
    with pytest.warns(FfnmemWarning, match=r"id \(2\), multi_hop \(2\)"):
        path = write_facts([replace(fact, multi_hop=(*fact.multi_hop, other))], tmp_path / "out.json", "mquake")
    assert [found.multi_hop for found in load_facts(path)] == [fact.multi_hop, (other,)]


def test_mquake_as_other_formats(tmp_path: Path) -> None:
    """Its rewrites are read by the programs of CounterFact and EasyEdit; its questions are said to be lost."""
    facts = mquake(ONE)
    for format in ("counterfact", "knowedit"):
        with pytest.warns(FfnmemWarning, match=r"multi_hop \(1\)"):
            path = write_facts(facts, tmp_path / "out.json", format)
        found = load_facts(path)[0]
        assert (found.text, found.target_new, found.target_true) == (facts[0].text, "Libya", "France")
        assert found.relation == "P27"
