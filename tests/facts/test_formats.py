"""Records of every public data set as facts, and facts as records."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ffnmem as fm
from ffnmem.core.errors import FfnmemWarning, FileError, InputError
from ffnmem.core.types import FACT_FORMATS
from ffnmem.facts import Hop, MultiHop, Probe, load_facts, write_facts

from ..helpers import refuses

# In the shape of the files, about people who are not.
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
    "paraphrase_prompts": ["He paid. Ann Dupont, a native", "By Ann Dupont, Ann Dupont's language is", "She, a native"],
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
    "target_true": " French",
    "target_false": " English",
    "subject": " Ann Dupont",
}
KNOWN: dict[str, Any] = {
    "known_id": 0,
    "subject": "Mount Erebus",
    "attribute": "Antarctica",
    "template": "{} is located in the continent",
    "prompt": "Mount Erebus is located in the continent of",
    "relation_id": "P30",
}
MEND: dict[str, Any] = {
    "subject": "Ann Dupont",
    "src": "What university did Ann Dupont attend?",
    "rephrase": "What university did Ann Dupont take part in?",
    "alt": "University of Michigan",
    "answers": ["Illinois Institute of Technology", "IIT"],
    "loc": "nq question: who played desmond doss father in hacksaw ridge",
    "loc_ans": "Hugo Weaving",
}
ANN = {"subject": "Ann Dupont"}
RECENT: dict[str, Any] = {
    **ANN,
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
    **ANN,
    "prompt": "The name of the position held by Ann Dupont is",
    "target_new": "bishop of León",
    "ground_truth": "mayor of Lyon",
    "portability": {"Subject_Aliasing": [{"prompt": "Anna Dupont is", "ground_truth": "bishop of León"}]},
    "locality": {
        "Relation_Specificity": [{"prompt": "The gender of Ann Dupont is", "ground_truth": "female"}],
        "Forgetfulness": [
            {"prompt": "The post of Ann Dupont, not bishop of León, is", "ground_truth": "mayor of Lyon"}
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
    **ANN,
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
LEAST = {name: EDIT[name] for name in ("subject", "prompt", "target_new")}


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


def read(path: Path, format: Any, *records: dict[str, Any]) -> list[fm.Fact]:
    path.write_text(json.dumps(records))
    return load_facts(path, format)


def case(format: str, record: dict[str, Any], **expected: Any) -> tuple[str, dict[str, Any], dict[str, Any]]:
    return format, record, expected


def probe(kind: Any, category: str, prompt: str, target: str, *aliases: str) -> Probe:
    return Probe(kind, prompt, target, aliases, category)


GENERATED = {"Recalled Relation": "(x, y, z)", "New Question": "Where is it?", "New Answer": "Oslo"}
ASKED: dict[str, Any] = {"loc": "c", "loc_ans": "d", "locality_f": [], "portability_r": None}
ASKED |= {"locality_target_prompt": "a", "locality_target_ground_truth": "b"}
ASKED |= {"portability_prompt": "e", "portability_ground_truth": ["f", "g"]}
LISTS = {
    "portability_s": [{"prompt": "a", "ground_truth": "b"}],
    "locality_inputs": {"x": {"prompt": ["c", "d"], "ground_truth": ["e", ["f", "g"]]}},
}
ITEMS = [{"prompt": "x", "ground_truth": []}, {"prompt": "", "ground_truth": "y"}, None, {"prompt": "z"}]
PASSED_OVER = {**EDIT, "rephrase_prompt": ["She plays", "Ann Dupont plays"], "locality": {"a": ITEMS}, "tag": 3}
FLAT = {**rewrite("Ann Dupont", "", ""), "target_new_str": "Libya", "target_true_str": "France"}
FLAT = {name: value for name, value in FLAT.items() if name not in ("target_new", "target_true", "relation_id")}
TEXT = {**rewrite("Ann", "", ""), "target_new": "Libya", "target_true": None, "question": "Of which country?"}
MQUAKE_T = {"requested_rewrite": FLAT, "questions": "Where?", "new_answer": "Libya", "answer_extended": ["Gaul", "x"]}
BARE = {"subject": "Ann", "prompt": "Ann speaks", "target_true": "French"}
WAYS = ("What is the country of citizenship of Ann Dupont?", "Ann Dupont is a citizen of")
FIRST_HOP = Hop("Who leads Acme?", "The head of Acme is", "Ann Dupont")
CASE = MultiHop(
    tuple(ONE["questions"]),
    ("France", "French Republic"),
    ("Libya", "State of Libya"),
    (FIRST_HOP, Hop(*WAYS, "France", ("French Republic",))),
    (FIRST_HOP, Hop(*WAYS, "Libya", ("State of Libya",))),
)
TWICE = "the subject stands 2 times in the prompt: its last place is asked about"
FIRST_LEFT = 'paraphrase left out, the subject is 2 times in it: "By Ann Dupont, Ann Dupont\'s language is"'
SECOND_LEFT = "paraphrase left out, the subject is not in it: 'She, a native'"
READ = [
    case(
        "counterfact",
        COUNTERFACT,
        subject="Ann Dupont",
        relation="P103",
        prompt="The mother tongue of {} is",
        target_true="French",
        target_new="English",
        paraphrases=("He paid. {}, a native",),
        generation_prompts=("{}'s mother tongue is", "{} lives in"),
        id="counterfact.7",
        neighbour_prompts=("The mother tongue of Guy Martin is", "Guy Martin spoke"),
        notes=(FIRST_LEFT, SECOND_LEFT),
    ),
    # The hub's copy for tracing: spaces before subject and targets belong to the text around them.
    case("counterfact", TRACING, subject="Ann Dupont", text=TRACING["prompt"], relation="P103", target_new="English"),
    case(
        "counterfact",
        {**TRACING, "relation_prefix": "", "relation_suffix": ", a native", "prompt": "Ann Dupont, a native"},
        prompt="{}, a native",
    ),
    case("counterfact", BARE, prompt="{} speaks", target_new=None, relation="counterfact"),
    # Its template leaves out words that the prompt has, after which the attribute follows.
    case(
        "known_1000",
        KNOWN,
        subject="Mount Erebus",
        relation="P30",
        prompt="{} is located in the continent of",
        target_true="Antarctica",
        target_new=None,
        id="known_1000.0",
    ),
    # Another word that begins like the subject would be taken for it; of several places, the last one is asked about.
    *(
        case("known_1000", {**KNOWN, "subject": subject, "prompt": text}, prompt=prompt, notes=notes)
        for subject, text, prompt, notes in (
            ("Iran", "The Iranian capital of Iran is", "The Iranian capital of {} is", ()),
            ("Iran", "Iranian, he is", "{}ian, he is", ()),
            ("a.b", "axb a.b is", "axb {} is", ()),
            ("Iran", "Iran, yes, Iran is", "Iran, yes, {} is", (TWICE,)),
        )
    ),
    case(
        "zsre",
        MEND,
        subject="Ann Dupont",
        relation="zsre",
        prompt="What university did {} attend?",
        paraphrases=("What university did {} take part in?",),
        target_true="Illinois Institute of Technology",
        true_aliases=("IIT",),
        target_new="University of Michigan",
        id="zsre.0",
        probes=(probe("unrelated", "", f"{MEND['loc']}?", "Hugo Weaving"),),
    ),
    case(
        "zsre",
        {**MEND, "rephrase": "Which was hers?", "alt": None, "loc": None, "portability": GENERATED},
        target_new=None,
        paraphrases=(),
        probes=(probe("portability", "one_hop", "Where is it?", "Oslo"),),
        notes=("paraphrase left out, the subject is not in it: 'Which was hers?'",),
    ),
    # Answers in lists of lists: the first letter would be taken for one, or all names for separate questions.
    case(
        "knowedit",
        RECENT,
        subject="Ann Dupont",
        relation="knowedit",
        prompt="The place of death of {} is",
        target_new="Lyon",
        id="knowedit.#1",
        probes=(
            probe("unrelated", "Relation_Specificity", "The father of Ann Dupont is", "Al Dupont"),
            probe("portability", "Logical_Generalization", "Is Ann Dupont still alive?", "no", "is dead"),
            probe("portability", "Reasoning", "The mayor of the place where Ann Dupont died is", "Guy", "G."),
            probe("alias", "Subject_Aliasing", "The place of death of Anna Dupont is", "Lyon", "Lyons"),
        ),
    ),
    case("knowedit", COUNTER, target_true="mayor of Lyon", target_new="bishop of León", true_aliases=()),
    case("knowedit", BIO, subject="ann dupont", text=BIO["text"], target_new=BIO["labels"]),
    case(
        "knowedit",
        ZSRE,
        target_true="Lyon",
        true_aliases=("Lugdunum",),
        notes=("fields left out: cond",),
        paraphrases=("What city is that of {}?",),
    ),
    # One field a text: a neighbour that has the fact's own truth, so that NS can be measured on it.
    case("knowedit", EDIT, id="knowedit.7", neighbour_prompts=("Guy Martin performs on the",), probes=()),
    case(
        "knowedit",
        {**EDIT, "locality_ground_truth": "drums"},
        neighbour_prompts=(),
        probes=(probe("unrelated", "neighborhood", "Guy Martin performs on the", "drums"),),
    ),
    case(
        "knowedit",
        {**LEAST, **ASKED},
        probes=(
            probe("unrelated", "target", "a", "b"),
            probe("portability", "one_hop", "e", "f", "g"),
            probe("unrelated", "neighborhood", "c", "d"),
        ),
    ),
    case(
        "knowedit",
        {**LEAST, **LISTS},
        probes=(
            probe("unrelated", "x", "c", "e"),
            probe("unrelated", "x", "d", "f", "g"),
            probe("alias", "Subject_Aliasing", "a", "b"),
        ),
    ),
    # EasyEdit's copy of zsRE, whose question stands where categories do.
    case(
        "knowedit",
        {**EDIT, "portability": GENERATED},
        probes=(probe("portability", "one_hop", "Where is it?", "Oslo"),),
    ),
    # What is passed over is told from what was never there.
    case(
        "knowedit",
        PASSED_OVER,
        paraphrases=("{} plays",),
        probes=(),
        notes=(
            "paraphrase left out, the subject is not in it: 'She plays'",
            "questions left out that have no prompt or no answer: 3",
            "fields left out: tag",
        ),
    ),
    case("knowedit", {**EDIT, "ground_truth": "<|endoftext|>", "locality_prompt": None}, target_true=""),
    case(
        "mquake",
        ONE,
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
        multi_hop=(CASE,),
    ),
    # An edit of one fact would be blamed for a question that follows from two.
    case("mquake", TWO, id="mquake.2501.1", multi_hop=(replace(CASE, needs=("mquake.2501.2",)),)),
    # Copies with one field a text, answers of MQuAKE-T, and cases that say less.
    case(
        "mquake",
        MQUAKE_T,
        id="mquake.#1.1",
        target_true="France",
        multi_hop=(MultiHop(("Where?",), ("Gaul", "x"), ("Libya",)),),
        notes=("answer_extended joined with answer_alias",),
    ),
    case("mquake", {**ONE, "requested_rewrite": [TEXT]}, target_new="Libya", target_true="", paraphrases=()),
]


# -- read --------------------------------------------------------------------------------------------------------------


def test_records_as_facts(tmp_path: Path) -> None:
    """Answers, paraphrases or questions would be lost, or taken for something else."""
    for format, record, expected in READ:
        fact = read(tmp_path / "facts", format, record)[0]
        assert {name: getattr(fact, name) for name in expected} == expected
        if {"subject", "target_new", "prompt", "relation"} <= {*expected}:  # all of it
            assert fact == fm.Fact(**expected)
    first, second = read(tmp_path / "facts", "mquake", TWO)  # rewrites of one case name each other; hops are counted
    assert (second.id, second.multi_hop, first.multi_hop[0].hops) == ("mquake.2501.2", (), 2)


REWRITE = rewrite("Ann", "x", "y")
OWN = COUNTERFACT["requested_rewrite"]
BROKEN: list[tuple[str, dict[str, Any], str]] = [
    ("counterfact", {"requested_rewrite": 3}, "requested_rewrite"),
    ("counterfact", {"neighborhood_prompts": [{"prompt": "x"}]}, "neighborhood_prompts"),
    ("known_1000", {"subject": "Erebus, Mount"}, "Erebus, Mount"),
    ("zsre", {"answers": []}, "answers"),
    ("ffnmem", {"known_id": 0}, "no field"),
    ("knowedit", {"target_new": {"str": "x"}}, "target_new"),
    ("knowedit", {"ground_truth": [[[["deep"]]]]}, "ground_truth"),
    ("knowedit", {"locality": {"a": [{"ground_truth": "b"}]}}, "prompt and ground_truth"),
    ("knowedit", {"portability": {"a": [{"prompt": ["x", "y"], "ground_truth": ["z"]}]}}, "2 prompts and 1"),
    ("mquake", {"requested_rewrite": [{**REWRITE, "target_new": {"id": "Q1"}}]}, "str"),
    ("mquake", {"new_single_hops": [{"question": "x"}]}, "new_single_hops"),
]
LEFT_OUT: list[tuple[str, dict[str, Any], str]] = [
    ("knowedit", {"subject": None}, "no subject"),
    ("knowedit", {"prompt": "She plays the"}, "subject does not stand"),
    ("knowedit", {"target_new": "", "ground_truth": []}, "neither"),
    ("mquake", {"requested_rewrite": [{**REWRITE, "prompt": "She is of"}]}, "does not stand"),
]


def test_records_that_are_no_facts(tmp_path: Path) -> None:
    """A broken record would become another fact; a whole one that is none would go without a word."""
    path = tmp_path / "facts"
    for format, change, named in BROKEN:
        with refuses(FileError, OSError, "record 1", named):
            read(path, format, {**RECORDS[format], **change})
    for format, change, named in LEFT_OUT:
        broken = {**RECORDS[format], **change, "case_id": 8}
        with pytest.warns(FfnmemWarning, match=rf"2 of 3 records are left out; 2: .*{named}.*\(record 2, record 3\)"):
            assert len(read(path, format, RECORDS[format], broken, {**broken, "case_id": 9})) == 1
        with refuses(FileError, OSError, "holds no facts", named):
            read(path, format, broken)
    for record in ({"question": "Who?", "answer": "Ann"}, {"success": [], "locality": []}):
        with refuses(FileError, OSError, "record 1", repr(next(iter(record))), *FACT_FORMATS):
            read(path, None, record)


DETECTED = {
    "ffnmem": [RECORDS["ffnmem"], {"subject": "Ann", "prompt": "{} is in", "target_new": "Lyon"}],
    "counterfact": [
        COUNTERFACT,
        TRACING,
        {**BARE, "target_new": "English", "relation": "r"},
        {"requested_rewrite": REWRITE},
        {**EDIT, "target_true": "guitar"},
    ],
    "known_1000": [KNOWN],
    "zsre": [MEND],
    "knowedit": list(FILES.values()),
    "mquake": [ONE, {**ONE, "requested_rewrite": REWRITE}],
}


def test_formats_are_told_by_what_is_in_them(tmp_path: Path) -> None:
    """A format would be read as another one with fields of the same name, or not in a copy of another kind of file."""
    for format, record in ((format, record) for format, records in DETECTED.items() for record in records):
        expected = read(tmp_path / "other", format, record)
        for suffix, text in ((".json", json.dumps([record])), (".jsonl", json.dumps(record)), (".parquet", "")):
            path = tmp_path / f"facts{suffix}"
            path.write_text(text) if text else pq.write_table(pa.Table.from_pylist([record]), path)
            assert load_facts(path) == load_facts(path, format) == expected  # type: ignore[arg-type]


# -- written -----------------------------------------------------------------------------------------------------------

WRITTEN: dict[str, list[tuple[dict[str, Any], dict[str, Any]]]] = {
    "counterfact": [
        (
            COUNTERFACT,
            {
                "requested_rewrite": {**OWN, "target_new": {"str": "English"}, "target_true": {"str": "French"}},
                "paraphrase_prompts": COUNTERFACT["paraphrase_prompts"][:1],
                "neighborhood_prompts": ["The mother tongue of Guy Martin is", "Guy Martin spoke"],
                "attribute_prompts": [],
                "pararel_idx": None,
            },
        )
    ],
    "knowedit": [
        (BIO, {"prompt": BIO["text"], "target_new": BIO["labels"], "subject": BIO["concept"]}
            | dict.fromkeys(("text", "labels", "concept"))),
        (EDIT, {"locality": {"neighborhood": [
            {"prompt": EDIT["locality_prompt"], "ground_truth": EDIT["locality_ground_truth"]}]},
            "locality_prompt": None, "locality_ground_truth": None}),
        (COUNTER, {}),
    ],
    "mquake": [(record, {"orig": None}) for record in (ONE, TWO)],
}  # fmt: skip
"""Records, and what is written otherwise than it was read; None: not at all."""


def plain_forms(value: Any) -> Any:
    """Answers in lists of one as text, and targets of Wikidata without their ids, as they are written."""
    if isinstance(value, list):
        return plain_forms(value[0]) if len(value) == 1 and isinstance(value[0], str) else [*map(plain_forms, value)]
    if isinstance(value, dict):
        return {"str": value["str"]} if set(value) == {"str", "id"} else {k: plain_forms(v) for k, v in value.items()}
    return value


@pytest.mark.parametrize("format", WRITTEN)
def test_round_trips(format: Any, tmp_path: Path) -> None:
    """File, facts, file: the same records but for what no fact holds, by way of a file of our own too; no warning."""
    records, changes = zip(*WRITTEN[format], strict=True)
    facts = read(tmp_path / "first.json", format, *records)
    assert load_facts(write_facts(facts, tmp_path / "own.jsonl")) == facts
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = write_facts(facts, tmp_path / "second.json", format)
        third = write_facts(load_facts(again), tmp_path / "third.json", format)
    merged = [{**record, **change} for record, change in zip(records, changes, strict=True)]
    expected = [{name: value for name, value in record.items() if value is not None} for record in merged]
    assert plain_forms(json.loads(again.read_text("utf-8"))) == plain_forms(expected)
    assert again.read_bytes() == third.read_bytes()
    assert [replace(fact, notes=()) for fact in facts] == load_facts(again)


def test_facts_of_ours_are_written_for_easyedit(tmp_path: Path) -> None:
    """What the format has no place for would be gone without a word."""
    facts = load_facts("atlas")[:40]
    with pytest.warns(FfnmemWarning, match="of the 40 facts has a place in knowedit") as warned:
        path = write_facts(facts, tmp_path / "atlas.json", "knowedit")
    lost = {name for name in facts[0].to_dict() if f"{name} (40)" in str(warned[0].message)}
    assert {"false_targets", "id"} <= lost
    kept = ("text", "subject", "target_true", "target_new", "prompts_about_neighbours")
    for old, new in zip(facts, load_facts(path), strict=True):
        assert [getattr(old, name) for name in kept] == [getattr(new, name) for name in kept]
        assert lost.isdisjoint((*kept, "paraphrases"))
    assert isinstance(json.loads(path.read_text("utf-8"))[0]["target_new"], str)  # the program joins it to the prompt
    write_facts([replace(SHORT, id="knowedit.#1", relation="knowedit")], path, "knowedit")
    assert "locality" in json.loads(path.read_text("utf-8"))[0]


SHORT = fm.Fact("Ann", prompt="{} is in", target_new="Lyon", id="x")
OTHER = fm.Fact("Guy Martin", prompt="{} is of", target_new="Peru", target_true="Chad", id="mquake.2501.2")
FIRST = replace(OTHER, subject="Ann Dupont", id="mquake.2501.1", multi_hop=(replace(CASE, needs=(OTHER.id,)),))
UNHELD: list[tuple[list[fm.Fact], Any, tuple[str, ...]]] = [
    ([replace(SHORT, target_new=None, target_true="Lyon")], "knowedit", ("'x'", "knowedit", "no new target")),
    ([SHORT], "zsre", ("'zsre'", "'knowedit'")),
    ([SHORT, replace(SHORT, id="knowedit.x")], "knowedit", ("'knowedit.x'", "two facts")),
    # A case without its other rewrites would ask for what cannot follow.
    ([FIRST], "mquake", ("'mquake.2501.2'", "none of these facts")),
    ([OTHER], "mquake", ("1 of 1 facts have no part",)),
]


def test_what_a_format_cannot_hold(tmp_path: Path) -> None:
    """Facts are refused, or what is lost of them is counted. A fact with two questions is two cases of MQuAKE."""
    path = tmp_path / "out.json"
    for facts, format, named in UNHELD:
        with refuses(InputError, ValueError, *named):
            write_facts(facts, path, format)
    assert list(tmp_path.iterdir()) == []
    (fact,) = read(path, "mquake", ONE)
    other = replace(CASE, questions=("Who votes where?",))
    with pytest.warns(FfnmemWarning, match=r"id \(2\), multi_hop \(2\)"):
        write_facts([replace(fact, multi_hop=(CASE, other))], path, "mquake")
    assert [found.multi_hop for found in load_facts(path)] == [(CASE,), (other,)]
    for format in ("counterfact", "knowedit"):
        with pytest.warns(FfnmemWarning, match=r"multi_hop \(1\)"):
            write_facts([fact], path, format)
        (again,) = load_facts(path)
        assert (again.text, again.target_new, again.relation) == (fact.text, "Libya", "P27")
