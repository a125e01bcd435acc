"""Records of every public data set as facts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ffnmem as fm
from ffnmem.core.errors import FfnmemWarning, FileError
from ffnmem.core.types import FACT_FORMATS
from ffnmem.facts import Probe, load_facts

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


FILES = {"recent": RECENT, "counterfact": COUNTER, "wikibio": BIO, "zsre": ZSRE, "edit": EDIT}
RECORDS = {
    "counterfact": COUNTERFACT,
    "known_1000": KNOWN,
    "zsre": MEND,
    "knowedit": EDIT,
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
BARE = {"subject": "Ann", "prompt": "Ann speaks", "target_true": "French"}
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
        probes=(),
        notes=("paraphrase left out, the subject is not in it: 'Which was hers?'", "fields left out: portability"),
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
            probe("alias", "Subject_Aliasing", "The place of death of Anna Dupont is", "Lyon", "Lyons"),
        ),
        notes=("fields left out: portability",),
    ),
    case("knowedit", COUNTER, target_true="mayor of Lyon", target_new="bishop of León", true_aliases=()),
    case("knowedit", BIO, subject="ann dupont", text=BIO["text"], target_new=BIO["labels"]),
    case(
        "knowedit",
        ZSRE,
        target_true="Lyon",
        true_aliases=("Lugdunum",),
        notes=("fields left out: cond, portability",),
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
        probes=(),
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
]


# -- read --------------------------------------------------------------------------------------------------------------


def test_records_as_facts(tmp_path: Path) -> None:
    """Answers, paraphrases or questions would be lost, or taken for something else."""
    for format, record, expected in READ:
        fact = read(tmp_path / "facts", format, record)[0]
        assert {name: getattr(fact, name) for name in expected} == expected
        if {"subject", "target_new", "prompt", "relation"} <= {*expected}:  # all of it
            assert fact == fm.Fact(**expected)


REWRITE = {**COUNTERFACT["requested_rewrite"], "subject": "Ann"}
BROKEN: list[tuple[str, dict[str, Any], str]] = [
    ("counterfact", {"requested_rewrite": 3}, "requested_rewrite"),
    ("counterfact", {"neighborhood_prompts": [{"prompt": "x"}]}, "neighborhood_prompts"),
    ("known_1000", {"subject": "Erebus, Mount"}, "Erebus, Mount"),
    ("zsre", {"answers": []}, "answers"),
    ("ffnmem", {"known_id": 0}, "no field"),
    ("knowedit", {"target_new": {"str": "x"}}, "target_new"),
    ("knowedit", {"ground_truth": [[[["deep"]]]]}, "ground_truth"),
    ("knowedit", {"locality": {"a": [{"ground_truth": "b"}]}}, "prompt and ground_truth"),
    ("knowedit", {"portability": {"alias": [{"prompt": ["x", "y"], "ground_truth": ["z"]}]}}, "2 prompts and 1"),
]
LEFT_OUT: list[tuple[str, dict[str, Any], str]] = [
    ("knowedit", {"subject": None}, "no subject"),
    ("knowedit", {"prompt": "She plays the"}, "subject does not stand"),
    ("knowedit", {"target_new": "", "ground_truth": []}, "neither"),
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
}


def test_formats_are_told_by_what_is_in_them(tmp_path: Path) -> None:
    """A format would be read as another one with fields of the same name, or not in a copy of another kind of file."""
    for format, record in ((format, record) for format, records in DETECTED.items() for record in records):
        expected = read(tmp_path / "other", format, record)
        for suffix, text in ((".json", json.dumps([record])), (".jsonl", json.dumps(record)), (".parquet", "")):
            path = tmp_path / f"facts{suffix}"
            path.write_text(text) if text else pq.write_table(pa.Table.from_pylist([record]), path)
            assert load_facts(path) == load_facts(path, format) == expected  # type: ignore[arg-type]
