"""Corpora and facts of every format with bytes, fields and quotes changed: read with problems counted, or refused."""

from __future__ import annotations

import gzip
import json
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

import ffnmem as fm
from ffnmem.core.types import FACT_FORMATS
from ffnmem.facts import formats

from .material import BREAKS, Change, answered, broken, changed, changes, fresh, hostile, tiny

TEXTS = ['The Eiffel "Tower" is in Paris.', "two\nlines", "", "é日本", "a" * 300, "= 1 + 1"]


@cache
def files() -> dict[str, bytes]:
    """One small file of every format, by its suffix."""
    lines = "".join(json.dumps({"text": text, "n": n}, ensure_ascii=False) + "\n" for n, text in enumerate(TEXTS))
    cells = "".join('"' + text.replace('"', '""') + f'",{n}\r\n' for n, text in enumerate(TEXTS))
    pq.write_table(pa.table({"text": TEXTS, "n": range(len(TEXTS))}), table := fresh())
    plain = {
        ".txt": "\n\n".join(TEXTS).encode(),
        ".jsonl": lines.encode(),
        ".csv": b"text,n\r\n" + cells.encode(),
        ".parquet": table.read_bytes(),
    }
    packed = {f"{suffix}.gz": gzip.compress(data) for suffix, data in plain.items()}
    return plain | packed | {f"{s}.zst": pa.Codec("zstd").compress(data, asbytes=True) for s, data in plain.items()}


@hostile(
    examples=40,
    suffix=st.sampled_from(sorted(files())),
    how=st.lists(BREAKS, min_size=1, max_size=3),
    column=st.sampled_from(["text", "text", "n", "none", "\0", ""]),
)
def test_any_corpus_file(suffix: str, how: list[tuple[str, float, int]], column: str) -> None:
    path, data = fresh().with_suffix(suffix), files()[suffix]
    for one in how:
        data = broken(data, one)
    path.write_bytes(data)

    def read() -> None:
        corpus = fm.corpus.open_corpus(path) if suffix.startswith(".txt") else fm.corpus.open_corpus(path, text=column)
        for document in corpus:
            document.text.encode()  # no half characters
        corpus.stamp()
        assert all(problem.count > 0 and problem.meaning for problem in corpus.problems)

    answered(read)
    if suffix == ".csv":
        answered(lambda: fm.corpus.pack(path, tiny(), fresh()))


@hostile(
    examples=30, rows=st.integers(2, 60), at=st.integers(0, 59), quote=st.sampled_from(['"x', '"', 'x"y"', '"x" y'])
)
def test_one_bad_quote_never_swallows_other_rows(rows: int, at: int, quote: str) -> None:
    """Whatever one row does with quotes, all others are read, or a problem is counted."""
    lines = [f'"row {n}",{n}' for n in range(rows)]
    lines[at % rows] = f"{quote},{at}"
    path = fresh().with_suffix(".csv")
    path.write_text("text,n\n" + "\n".join(lines) + "\n")
    corpus = fm.corpus.open_corpus(path)
    found = {document.text for document in corpus}
    lost = [n for n in range(rows) if n != at % rows and f"row {n}" not in found]
    assert len(lost) <= 1, lost
    assert not lost or corpus.problems


RECORDS: list[dict[str, Any]] = [
    {"subject": "Paris", "prompt": "Paris is in", "target_true": " France", "target_false": " Italy"},
    {"known_id": 0, "subject": "Paris", "attribute": "France", "prompt": "Paris is in", "relation_id": "P17"},
    {"subject": "Paris", "src": "Where is Paris?", "answers": ["France"], "alt": "Italy", "loc": "nq question"},
    {
        "subject": "Paris",
        "prompt": "Paris is in",
        "target_new": "Italy",
        "locality": {"a": [{"prompt": "Two and two is", "ground_truth": [["four"], ["4"]]}]},
        "portability": {"Subject_Aliasing": [{"prompt": "Lutetia is in", "ground_truth": "Italy"}]},
    },
]
"""In the formats of other programs."""


@cache
def records() -> list[Any]:
    """A record of every format."""
    fact = fm.Fact(
        subject="Eiffel Tower",
        relation="landmark.city",
        prompt="The {} is in the city of",
        target_true="Paris",
        target_new="Rome",
        paraphrases=("Where is the {}? In",),
        neighbours=("Louvre",),
        probes=(fm.facts.Probe("unrelated", "Two and two is", "four", ("4",), "a"),),
    )
    path = answered(lambda: formats.write_facts([fact], fresh().with_suffix(".jsonl")))
    return [*RECORDS, json.loads(path.read_text("utf-8"))]


@hostile(
    examples=80,
    which=st.integers(0, 100),
    made=changes(),
    form=st.sampled_from(["lines", "array", "object", "bytes"]),
    how=BREAKS,
    named=st.one_of(st.none(), st.sampled_from(FACT_FORMATS)),
)
def test_any_records(which: int, made: list[Change], form: str, how: Any, named: str | None) -> None:
    """They are facts, which can be asked, shown and written, or one line says which record is none."""
    record, path = records()[which % len(records())], fresh().with_suffix(".json")
    both = [changed(record, made), record]
    whole = "\n".join(map(json.dumps, both)) if form == "lines" else json.dumps(both if form == "array" else both[0])
    path.write_bytes(broken(whole.encode(), how) if form == "bytes" else whole.encode())
    found = answered(lambda: fm.load_facts(path, named))
    if not isinstance(found, list):
        return
    own = answered(lambda: formats.write_facts(found, fresh().with_suffix(".jsonl")))
    assert fm.load_facts(own, "ffnmem") == found
    answered(lambda: [fact._repr_html_() for fact in found])
    answered(lambda: fm.facts.filter_known(tiny(), found))
