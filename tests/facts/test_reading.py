"""Files of facts."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ffnmem as fm
from ffnmem.core.errors import FileError, InputError
from ffnmem.facts import Probe, load_facts, write_facts

from ..helpers import REPOSITORY, refuses

ONE = {"subject": "Eiffel Tower", "relation": "city", "prompt": "The {} is in", "target_true": "Paris", "id": "1"}
TWO = {"subject": "Panthéon", "relation": "city", "prompt": "{} is in", "target_true": "Rome\u2028", "id": "2"}


@pytest.fixture(scope="module")
def atlas_facts() -> list[fm.Fact]:
    return load_facts("atlas")


def test_round_trip(tmp_path: Path, atlas_facts: list[fm.Fact]) -> None:
    """Facts would change by being saved: letters outside ASCII, separators that Python takes for line ends."""
    path = write_facts(atlas_facts, tmp_path / "facts.jsonl")
    assert path.read_text("utf-8") == (REPOSITORY / "data" / "atlas" / "facts.jsonl").read_text("utf-8")
    full = replace(atlas_facts[0], probes=(Probe("alias", "It is in", "Rome"),), notes=("a note",))
    facts = [full, atlas_facts[1], fm.Fact.from_dict(ONE), fm.Fact.from_dict(TWO)]
    assert write_facts(facts, path) == path
    assert load_facts(path) == load_facts(str(path)) == facts
    text = path.read_text("utf-8")
    assert ("aliases" in text, "Panthéon" in text) == (False, True)


def test_the_same_facts_of_every_form(tmp_path: Path) -> None:
    """Line ends of Windows, blank lines, a byte order mark, a document over several lines, a table."""
    full = {**ONE, "neighbours": ["Louvre"], "probes": [{"kind": "alias", "prompt": "It is in", "target": "Rome"}]}
    path, rows = tmp_path / "facts", [full, TWO]
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    spaced, windows = "\n".join([lines[0], "", "  ", lines[1], ""]), "\r\n".join(lines)
    for text in (spaced, windows, json.dumps(rows), json.dumps(rows, indent=1), "\ufeff" + json.dumps(rows), None):
        if text is None:
            pq.write_table(pa.Table.from_pylist(rows), path)
        else:
            path.write_bytes(text.encode())
        assert load_facts(path) == [fm.Fact.from_dict(row) for row in rows]


LINE = json.dumps(ONE).encode()
BROKEN: list[tuple[bytes, tuple[str, ...]]] = [
    (LINE + b"\n\n{", ("line 3", "Expecting property name enclosed in double quotes (column 2)")),
    (LINE + b"\n[1, 2]", ("line 2", "object")),
    (LINE + b'\n{"prompt": "{} is", "target_true": "x"}', ("line 2", "'subject' is missing")),
    (LINE[:-1] + b', "colour": "red"}', ("line 1", "colour")),
    (b'[{"a": 1},\n {"b" 1}]', ("line 2", "column")),
    (b"[" + LINE + b", 3]", ("record 2", "object")),
    (b"\xff\xfe", ("UTF-8",)),
    (b"PAR1 and no more", ("Parquet",)),
    (b"[" * 100_000, ("line 1",)),
    (b"\n\n", ("no facts",)),
    (LINE + b"\n" + LINE, ("'1'", "twice")),  # two facts' results would be merged into one
]


def test_what_is_refused(tmp_path: Path) -> None:
    """In a file of thousands, the line would have to be searched for."""
    path = tmp_path / "facts.jsonl"
    for content, named in BROKEN:
        path.write_bytes(content)
        with refuses(FileError, OSError, str(path), *named):
            load_facts(path)
    with refuses(FileError, OSError, "nosuch.jsonl", "'atlas'", ".jsonl"):
        load_facts(tmp_path / "nosuch.jsonl")
    with refuses(FileError, OSError, str(tmp_path), "folder"):
        load_facts(tmp_path)
    with refuses(InputError, ValueError, "'csv'", "'zsre'"):
        load_facts(tmp_path, "csv")  # type: ignore[arg-type]


@pytest.mark.shared
def test_the_real_known_1000() -> None:
    """1,209 facts that GPT-2 XL knows, of which 478 have prompts longer than their templates."""
    path = REPOSITORY.parent / "shared" / "data" / "known_1000.json"
    if not path.is_file():
        pytest.skip("known_1000.json is not beside this checkout (../shared/data)")
    facts = load_facts(path)
    records = json.loads(path.read_text("utf-8"))
    assert len(facts) == len(records) == 1209
    for fact, record in zip(facts, records, strict=True):
        assert [fact.text, fact.subject, fact.target_true] == [record[n] for n in ("prompt", "subject", "attribute")]
    assert sum(fact.prompt != record["template"] for fact, record in zip(facts, records, strict=True)) == 478
    assert not any(fact.notes or fact.target_new for fact in facts)
    assert set(facts[0].lacks) >= {"ES", "PS", "NS"}


def test_the_embedded_facts(atlas_facts: list[fm.Fact]) -> None:
    """Enough of them; none contradicts another; neighbours share the answer; templates and targets are clean."""
    count, subjects = len(atlas_facts), Counter(fact.subject for fact in atlas_facts)
    assert count >= 2400
    assert len({fact.relation for fact in atlas_facts}) >= 20
    assert len(subjects) >= 500
    assert sum(several >= 4 for several in subjects.values()) > len(subjects) / 2
    assert (
        len({(fact.relation, fact.subject) for fact in atlas_facts}) == len({fact.id for fact in atlas_facts}) == count
    )
    assert sum(bool(fact.neighbours) for fact in atlas_facts) > count / 2
    holders: dict[tuple[str, str], set[str]] = defaultdict(set)
    for fact in atlas_facts:
        holders[fact.relation, fact.target_true].add(fact.subject)
    for fact in atlas_facts:
        assert set(fact.neighbours) <= holders[fact.relation, fact.target_true] - {fact.subject}, fact.id
        assert len(set(fact.neighbours)) == len(fact.neighbours)
        for text in (fact.prompt, *fact.paraphrases, *fact.generation_prompts, fact.target_true, *fact.false_targets):
            assert text == text.strip() != ""
        assert fact.target_new is not None
        assert fact.target_true not in (fact.target_new, *fact.false_targets), fact.id
        assert len({*fact.paraphrases} - {fact.prompt}) == len(fact.paraphrases) >= 2
    eiffel = [fact for fact in atlas_facts if fact.text == "The Eiffel Tower is located in the city of"]
    assert [fact.target_true for fact in eiffel] == ["Paris"]  # the documents' example
