"""Files of facts in every format with fields changed and bytes changed: facts, or one line that names the place."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

import ffnmem as fm
from ffnmem.facts import formats
from ffnmem.facts.formats import READERS

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
    "probes": [{"kind": "unrelated", "prompt": "Two and two is", "target": "four"}],
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
    st.just([[[[[[[[]]]]]]]]),
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
    named=st.one_of(st.none(), st.sampled_from([*READERS, "pararel"])),
)
def test_any_records_are_facts_or_refused(made: list[Any], form: str, named: str | None) -> None:
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
        answered("write", lambda: formats.write_facts(found, fresh().with_suffix(".jsonl")))
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
