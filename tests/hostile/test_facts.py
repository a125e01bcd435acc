"""Files of facts in every format with fields changed and bytes changed: facts, or one line that names the place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

import ffnmem as fm
from ffnmem.core.types import FACT_FORMATS, FACT_FORMATS_WRITTEN
from ffnmem.facts import formats

from .judging import answered, hostile
from .material import fresh, tiny

OWN = {
    "subject": "Eiffel Tower",
    "relation": "landmark.city",
    "prompt": "The {} is in the city of",
    "target_true": "Paris",
    "target_new": "Rome",
    "paraphrases": ["Where is the {}? In"],
    "neighbours": ["Louvre"],
    "id": "1",
    "probes": [{"kind": "unrelated", "prompt": "Two and two is", "target": "four", "aliases": ["4"], "category": "a"}],
    "true_aliases": ["Lutetia"],
    "new_aliases": ["Roma"],
    "multi_hop": [
        {
            "questions": ["Of what country is its city the capital?"],
            "before": ["France"],
            "after": ["Italy"],
            "hops_before": [],
            "hops_after": [{"question": "", "cloze": "Rome is in", "answer": "Italy", "aliases": ["Italia"]}],
            "needs": [],
        }
    ],
}
RECORDS: dict[str, dict[str, Any]] = {
    "ffnmem": OWN,
    "counterfact": {
        "case_id": 0,
        "requested_rewrite": {
            "prompt": "{} is in",
            "relation_id": "P17",
            "subject": "Paris",
            "target_true": {"str": "France", "id": "Q142"},
            "target_new": {"str": "Italy", "id": "Q38"},
        },
        "paraphrase_prompts": ["Yes. Paris is in"],
        "neighborhood_prompts": ["Lyon is in"],
        "generation_prompts": ["Paris is known for"],
    },
    "flat": {"subject": "Paris", "prompt": "Paris is in", "target_true": " France", "target_false": " Italy"},
    "known_1000": {
        "known_id": 0,
        "subject": "Paris",
        "attribute": "France",
        "prompt": "Paris is in",
        "relation_id": "P",
    },
    "zsre": {"subject": "Paris", "src": "Where is Paris?", "answers": ["France"], "alt": "Italy", "loc": "nq question"},
    "knowedit": {
        "case_id": 3,
        "subject": "Paris",
        "prompt": "Paris is in",
        "target_new": "Italy",
        "ground_truth": [["France", "Gaul"]],
        "rephrase_prompt": "Where is Paris? In",
        "locality": {"Relation_Specificity": [{"prompt": "Paris has", "ground_truth": ["parks"]}]},
        "portability": {
            "Subject_Aliasing": [{"prompt": "Lutetia is in", "ground_truth": "Italy"}],
            "x": {"prompt": ["a", "b"], "ground_truth": ["c", ["d", "e"]]},
        },
        "locality_prompt": "Lyon is in",
        "locality_ground_truth": "France",
    },
    "mquake": {
        "case_id": 2,
        "requested_rewrite": [
            {
                "prompt": "{} is in",
                "relation_id": "P17",
                "subject": subject,
                "target_true": {"str": "France", "id": "Q142"},
                "target_new": {"str": "Italy", "id": "Q38"},
                "question": f"Where is {subject}?",
            }
            for subject in ("Paris", "Lyon")
        ],
        "questions": ["What is spoken there?"],
        "answer": "French",
        "answer_alias": ["français"],
        "new_answer": "Italian",
        "new_answer_alias": [],
        "single_hops": [{"question": "Where is Paris?", "cloze": "", "answer": "France", "answer_alias": []}],
        "new_single_hops": [{"question": "Where is Paris?", "cloze": "", "answer": "Italy", "answer_alias": ["IT"]}],
    },
    "pararel": {
        "templates": {"P17": ["[X] is in [Y] ."]},
        "triples": [{"subject": "Paris", "relation": "P17", "object": "France"}, ["Lyon", "P17", "France"]],
    },
}
JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(st.characters(codec=None), max_size=6),
    st.sampled_from(["", " ", "{}", "{} {}", "{0}", "\ud800", "\0", "a\nb", "\x1b[31m", "x" * 5000, "[X] [Y]"]),
    st.lists(st.one_of(st.none(), st.text(max_size=3), st.integers()), max_size=3),
    st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2),
    st.builds(lambda: [[[[[[[[]]]]]]]]),  # a new one each time: what is drawn may be changed below
)


@st.composite
def records(draw: st.DrawFn) -> list[Any]:
    """Some records of one format, with fields at any depth replaced, taken away or added."""
    record = json.loads(json.dumps(RECORDS[draw(st.sampled_from(sorted(RECORDS)))]))
    for _ in range(draw(st.integers(1, 3))):
        inner: Any = record
        while isinstance(inner, dict | list) and inner:
            keys: list[Any] = list(inner) if isinstance(inner, dict) else list(range(len(inner)))
            key = draw(st.sampled_from(keys))
            if isinstance(inner[key], dict | list) and inner[key] and draw(st.booleans()):
                inner = inner[key]
                continue
            change = draw(st.integers(0, 5))
            if change == 0:
                del inner[key]
            elif change == 1 and isinstance(inner, dict):
                inner[draw(st.text(max_size=4))] = draw(JUNK)
            else:
                inner[key] = draw(JUNK)
            break
    return draw(st.sampled_from([[record], [record, record], [record, RECORDS["ffnmem"]], [RECORDS["flat"], record]]))


@hostile(
    examples=120,
    made=records(),
    form=st.sampled_from(["lines", "array", "object", "parquet"]),
    named=st.one_of(st.none(), st.sampled_from(FACT_FORMATS)),
    to=st.sampled_from(FACT_FORMATS_WRITTEN),
)
def test_any_records_are_facts_or_refused(made: list[Any], form: str, named: str | None, to: str) -> None:
    path = fresh().with_suffix(".json")
    if form == "parquet":
        try:
            pq.write_table(pa.Table.from_pylist(made), path)
        except (pa.ArrowException, UnicodeError, TypeError, AttributeError, OverflowError):
            return  # which Parquet cannot hold
    else:
        whole = json.dumps(made[0] if form == "object" else made, indent=1)
        path.write_text("\n".join(map(json.dumps, made)) if form == "lines" else whole)
    found = answered(f"facts {form}", lambda: fm.load_facts(path, named))
    if isinstance(found, list):
        own = fresh().with_suffix(".jsonl")
        answered("write", lambda: formats.write_facts(found, own))
        assert fm.load_facts(own, "ffnmem") == found
        other = fresh().with_suffix(".json")
        if isinstance(answered(f"write {to}", lambda: formats.write_facts(found, other, to)), Path):
            again = fm.load_facts(other, to)
            assert [(fact.subject, fact.target_new) for fact in again] == [(f.subject, f.target_new) for f in found]
        answered("html", lambda: [fact._repr_html_() for fact in found])
        answered("known", lambda: fm.facts.filter_known(tiny(), found))


@hostile(examples=40, start=st.integers(0, 400), length=st.integers(0, 20), new=st.binary(max_size=8))
def test_any_bytes_of_a_file_of_facts(start: int, length: int, new: bytes) -> None:
    data = json.dumps(OWN).encode() + b"\n" + json.dumps(RECORDS["ffnmem"]).encode()
    path = fresh().with_suffix(".jsonl")
    path.write_bytes(data[:start] + new + data[start + length :])
    answered("facts", lambda: fm.load_facts(path))


FIELDS = st.one_of(
    st.text(st.characters(codec=None), max_size=6), st.sampled_from(["{}", "a {} b", "\ud800", "x" * 500])
)


@hostile(examples=30, subject=FIELDS, prompt=FIELDS, target=FIELDS, new=FIELDS)
def test_any_fact_made_by_hand(subject: str, prompt: str, target: str, new: str) -> None:
    found = answered(
        "Fact", lambda: fm.Fact(subject=subject, relation="r", prompt=prompt, target_true=target, target_new=new)
    )
    if isinstance(found, fm.Fact):
        answered("known", lambda: fm.facts.filter_known(tiny(), [found]))
