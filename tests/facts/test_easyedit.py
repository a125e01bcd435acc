"""Records of KnowEdit and EasyEdit: every way in which their files name fields and hold answers."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest

import ffnmem as fm
from ffnmem.core.errors import FfnmemWarning, FileError, InputError
from ffnmem.facts import Probe, load_facts, write_facts
from ffnmem.facts.easyedit import knowedit_record
from ffnmem.facts.foreign import LeftOut
from ffnmem.facts.formats import detect, facts_of_record

from ..helpers import refuses

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


def knowedit(record: dict[str, Any], number: int) -> fm.Fact:
    return facts_of_record(record, number, "knowedit", 0)[0]


FILES = {"recent": RECENT, "counterfact": COUNTER, "wikibio": BIO, "zsre": ZSRE, "edit": EDIT}


def test_answers_in_lists_of_lists() -> None:
    """The first letter of an answer would be taken for it, or all names for separate questions."""
    fact = knowedit(RECENT, 3)
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
    fact = knowedit(COUNTER, 1)
    assert (fact.target_true, fact.target_new, fact.true_aliases) == ("mayor of Lyon", "bishop of León", ())
    assert [(probe.kind, probe.category) for probe in fact.probes] == [
        ("unrelated", "Relation_Specificity"),
        ("unrelated", "Forgetfulness"),
        ("alias", "Subject_Aliasing"),
    ]
    fact = knowedit(BIO, 1)
    assert (fact.subject, fact.text, fact.target_new) == ("ann dupont", BIO["text"], BIO["labels"])
    fact = knowedit(ZSRE, 1)
    assert (fact.target_true, fact.true_aliases, fact.paraphrases) == (
        "Lyon",
        ("Lugdunum",),
        ("What city is that of {}?",),
    )
    assert fact.notes == ("fields left out: cond",)


def test_one_field_a_text() -> None:
    """``counterfact-edit.json``: its neighbour has the fact's own truth, so NS can be measured on it."""
    fact = knowedit(EDIT, 1)
    assert (fact.id, fact.neighbour_prompts, fact.probes) == ("knowedit.7", ("Guy Martin performs on the",), ())
    other = knowedit({**EDIT, "locality_ground_truth": "drums"}, 1)
    assert other.neighbour_prompts == ()
    assert other.probes == (Probe("unrelated", "Guy Martin performs on the", "drums", (), "neighborhood"),)
    named = {"locality_target_prompt": "a", "locality_target_ground_truth": "b", "loc": "c", "loc_ans": "d"}
    asked = {"portability_prompt": "e", "portability_ground_truth": ["f", "g"], "locality_f": [], "portability_r": None}
    least = {name: EDIT[name] for name in ("subject", "prompt", "target_new")}
    assert knowedit({**least, **named, **asked}, 1).probes == (
        Probe("unrelated", "a", "b", (), "target"),
        Probe("portability", "e", "f", ("g",), "one_hop"),
        Probe("unrelated", "c", "d", (), "neighborhood"),
    )
    read = {"portability_s": [{"prompt": "a", "ground_truth": "b"}], "locality_inputs": {"x": {"prompt": ["c", "d"]}}}
    read["locality_inputs"]["x"]["ground_truth"] = ["e", ["f", "g"]]  # type: ignore[index]
    assert knowedit({**least, **read}, 1).probes == (
        Probe("unrelated", "c", "e", (), "x"),
        Probe("unrelated", "d", "f", ("g",), "x"),
        Probe("alias", "a", "b", (), "Subject_Aliasing"),
    )


def test_questions_of_a_generated_file() -> None:
    """EasyEdit's copy of zsRE: its question stands where categories do, and was passed over."""
    asked = {"Recalled Relation": "(x, y, z)", "New Question": "Where is it?", "New Answer": "Oslo"}
    probe = Probe("portability", "Where is it?", "Oslo", (), "one_hop")
    assert knowedit({**EDIT, "portability": asked}, 1).probes == (probe,)
    old = {"subject": "Ann", "src": "Where is Ann?", "answers": ["Lyon", "Lugdunum"], "alt": "Oslo"}
    fact = facts_of_record({**old, "portability": asked}, 1, "zsre", 0)[0]
    assert (fact.probes, fact.true_aliases) == ((probe,), ("Lugdunum",))


def test_what_is_left_out_is_noted() -> None:
    """A reader could not tell a question that was never there from one that was passed over."""
    items = [{"prompt": "x", "ground_truth": []}, {"prompt": "", "ground_truth": "y"}, None, {"prompt": "z"}]
    fact = knowedit(
        {**EDIT, "rephrase_prompt": ["She plays", "Ann Dupont plays"], "locality": {"a": items}, "tag": 3}, 1
    )
    assert fact.paraphrases == ("{} plays",)
    assert fact.probes == ()
    assert fact.notes == (
        "paraphrase left out, the subject is not in it: 'She plays'",
        "questions left out that have no prompt or no answer: 3",
        "fields left out: tag",
    )
    assert knowedit({**EDIT, "ground_truth": "<|endoftext|>", "locality_prompt": None}, 1).target_true == ""


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"subject": ["Ann", "Bob"]}, "subject"),
        ({"prompt": 3}, "prompt"),
        ({"target_new": {"str": "x"}}, "target_new"),
        ({"ground_truth": [[[["deep"]]]]}, "ground_truth"),
        ({"ground_truth": 3}, "ground_truth"),
        ({"locality": [3]}, "locality"),
        ({"locality": {"a": "text"}}, "'a'"),
        ({"locality": {"a": [{"ground_truth": "b"}]}}, "prompt and ground_truth"),
        ({"portability": {"a": [{"prompt": ["x", "y"], "ground_truth": ["z"]}]}}, "2 prompts and 1"),
        ({"portability": {"a": {"prompt": [["x"]], "ground_truth": "z"}}}, "prompt"),
        ({"case_id": [1]}, "case_id"),
        ({"rephrase_prompt": {"x": 1}}, "rephrase_prompt"),
    ],
    ids=str,
)
def test_broken_records(change: dict[str, Any], named: str) -> None:
    with refuses(InputError, ValueError, named):
        knowedit({**EDIT, **change}, 1)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"subject": None}, "no subject"),
        ({"prompt": "She plays the"}, "subject does not stand"),
        ({"target_new": "", "ground_truth": []}, "neither"),
    ],
    ids=str,
)
def test_whole_records_that_are_no_facts(change: dict[str, Any], named: str) -> None:
    """One of a thousand records would keep a whole benchmark from being read, or go without a word."""
    with pytest.raises(LeftOut, match=named):
        knowedit({**EDIT, **change}, 1)


def test_those_left_out_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "test_cf.json"
    bad = {**EDIT, "prompt": "She plays the", "case_id": 8}
    path.write_text(json.dumps([EDIT, bad, {**bad, "subject": " ", "case_id": 9}, {**bad, "case_id": 10}]))
    with pytest.warns(FfnmemWarning, match=r"test_cf\.json: 3 of 4 records are left out; 2: .*\(record 2, record 4\)"):
        assert len(load_facts(path)) == 1
    path.write_text(json.dumps([bad]))
    with refuses(FileError, OSError, "holds no facts", "1: its subject does not stand in its prompt"):
        load_facts(path)


def test_it_is_told_from_other_formats() -> None:
    assert {name: detect(record) for name, record in FILES.items()} == dict.fromkeys(FILES, "knowedit")
    assert detect({"subject": "Ann", "prompt": "{} is in", "target_new": "Lyon", "neighbours": []}) == "ffnmem"
    assert detect({**EDIT, "target_true": "guitar"}) == "counterfact"
    assert detect({"success": [], "locality": []}) is None


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
def test_round_trips(name: str, tmp_path: Path) -> None:
    """File, facts, file: the same records; and the same facts of both, without a warning."""
    path = tmp_path / "first.json"
    path.write_text(json.dumps([FILES[name]]))
    facts = load_facts(path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = write_facts(facts, tmp_path / "second.json", "knowedit")
        third = write_facts(load_facts(again), tmp_path / "third.json", "knowedit")
    assert json.loads(again.read_text("utf-8")) == [plain_form(FILES[name])]
    assert again.read_bytes() == third.read_bytes()
    notes = {"notes": ()}
    assert [fm.Fact(**{**vars(fact), **notes}) for fact in facts] == load_facts(again)
    own = write_facts(facts, tmp_path / "own.jsonl")
    assert load_facts(own) == facts


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
    record = knowedit_record(facts[0])
    assert isinstance(record["target_new"], str)  # the program joins it to the prompt
    assert "locality" in record
    assert "locality" in knowedit_record(fm.Fact("Ann", prompt="{} is in", target_new="Lyon"))


def test_facts_that_it_cannot_hold(tmp_path: Path) -> None:
    fact = fm.Fact("Ann", prompt="{} is in", target_true="Lyon", id="ann")
    with refuses(InputError, ValueError, "'ann'", "knowedit", "no new target"):
        write_facts([fact], tmp_path / "out.json", "knowedit")
    with refuses(InputError, ValueError, "'zsre'", "'knowedit'"):
        write_facts([fact], tmp_path / "out.json", "zsre")
    twice = [fm.Fact("Ann", prompt="{} is in", target_new="Lyon", id=name) for name in ("x", "knowedit.x")]
    with refuses(InputError, ValueError, "'knowedit.x'", "two facts"):
        write_facts(twice, tmp_path / "out.json", "knowedit")
    assert list(tmp_path.iterdir()) == []
