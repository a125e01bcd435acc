"""Files of facts."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ffnmem as fm
from ffnmem.core.errors import FileError, InputError
from ffnmem.facts import MultiHop, Probe, load_facts, write_facts

from ..helpers import REPOSITORY, refuses
from .test_formats import TRACING

ONE = {"subject": "Eiffel Tower", "relation": "city", "prompt": "The {} is in", "target_true": "Paris", "id": "1"}
TWO = {"subject": "Panthéon", "relation": "city", "prompt": "{} is in", "target_true": "Rome\u2028", "id": "2"}


@pytest.fixture(scope="module")
def atlas_facts() -> list[fm.Fact]:
    return load_facts("atlas")


def test_round_trip(tmp_path: Path, atlas_facts: list[fm.Fact]) -> None:
    """Facts would change by being saved: letters outside ASCII, separators that Python takes for line ends."""
    facts = [*atlas_facts[:50], fm.Fact.from_dict(ONE), fm.Fact.from_dict(TWO)]
    path = write_facts(facts, tmp_path / "facts.jsonl")
    assert path == tmp_path / "facts.jsonl"
    assert load_facts(path) == load_facts(str(path)) == facts
    assert "Panthéon" in path.read_text("utf-8")


def test_only_what_a_fact_has_is_written(tmp_path: Path, atlas_facts: list[fm.Fact]) -> None:
    """Files that were written before facts had probes and notes would look changed."""
    path = write_facts(atlas_facts, tmp_path / "facts.jsonl")
    assert path.read_text("utf-8") == (REPOSITORY / "data" / "atlas" / "facts.jsonl").read_text("utf-8")
    full = dataclasses.replace(atlas_facts[0], probes=(Probe("alias", "It is in", "Rome"),), notes=("a note",))
    assert "aliases" not in write_facts([full], path).read_text("utf-8")
    full = dataclasses.replace(full, multi_hop=(MultiHop(("Where?",), (), ("Italy",), needs=("x",)),))
    assert load_facts(write_facts([full, atlas_facts[1]], path)) == [full, atlas_facts[1]]
    assert "probes" in json.loads(path.read_text("utf-8").split("\n")[0])


@pytest.mark.parametrize("form", ["lines", "windows", "array", "pretty", "marked", "parquet"])
def test_the_same_facts_of_every_form(tmp_path: Path, form: str) -> None:
    """Lines ends of Windows, blank lines, a byte order mark, a document over several lines."""
    path, rows = tmp_path / "facts", [ONE, TWO]
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    texts = {
        "lines": "\n".join([lines[0], "", "  ", lines[1], ""]),
        "windows": "\r\n".join(lines),
        "array": json.dumps(rows),
        "pretty": json.dumps(rows, indent=1),
        "marked": "\ufeff" + json.dumps(rows),
    }
    if form == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_bytes(texts[form].encode())
    assert load_facts(path) == [fm.Fact.from_dict(row) for row in rows]


LINE = json.dumps(ONE).encode()


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (LINE + b"\n\n{", ["line 3", "Expecting property name enclosed in double quotes (column 2)"]),
        (LINE + b"\n[1, 2]", ["line 2", "object"]),
        (LINE + b'\n{"subject": "", "prompt": "{} is", "target_true": "x"}', ["line 2", "subject is empty"]),
        (LINE + b'\n{"prompt": "{} is", "target_true": "x"}', ["line 2", "'subject' is missing"]),
        (LINE + b'\n{"subject": "a", "prompt": "in", "target_true": "x"}', ["line 2", "{}"]),
        (LINE[:-1] + b', "colour": "red"}', ["line 1", "colour"]),
        (LINE[:-1] + b', "neighbours": 3}', ["line 1", "neighbours"]),
        (b'[{"a": 1},\n {"b" 1}]', ["line 2", "column"]),
        (b"[" + LINE + b", 3]", ["record 2", "object"]),
        (b"nothing", ["line 1"]),
        (b"\xff\xfe", ["UTF-8"]),
        (b"PAR1 and no more", ["Parquet"]),
        (b"[" * 100_000, ["line 1"]),
        (b'{"a": ' + b"9" * 5000 + b"}", ["line 1"]),
    ],
    ids=lambda value: str(value)[-20:],
)
def test_a_broken_record_of_a_file_is_named(tmp_path: Path, content: bytes, named: list[str]) -> None:
    """In a file of thousands, the line would have to be searched for."""
    path = tmp_path / "facts.jsonl"
    path.write_bytes(content)
    with refuses(FileError, OSError, str(path), *named):
        load_facts(path)


@pytest.mark.parametrize(
    ("lines", "format", "named"),
    [
        (["", ""], None, ["no facts"]),
        ([ONE, {**TWO, "id": "1"}], None, ["'1'", "twice"]),  # two facts' results would be merged into one
    ],
)
def test_files_that_are_refused(tmp_path: Path, lines: list[Any], format: Any, named: list[str]) -> None:
    path = tmp_path / "facts.jsonl"
    path.write_text("\n".join(json.dumps(line) if line else "" for line in lines))
    with refuses(FileError, OSError, str(path), *named):
        load_facts(path, format)


def test_paths_that_are_refused(tmp_path: Path) -> None:
    with refuses(FileError, OSError, "nosuch.jsonl", "'atlas'", ".jsonl"):
        load_facts(tmp_path / "nosuch.jsonl")
    with refuses(FileError, OSError, str(tmp_path), "folder", "'zsre'"):
        load_facts(tmp_path, "zsre")
    with refuses(InputError, ValueError, "'csv'", "'zsre'"):
        load_facts(tmp_path, "csv")  # type: ignore[arg-type]


# -- public formats ----------------------------------------------------------------------------------------------------


def test_null_is_nothing(tmp_path: Path) -> None:
    """A table has every column in every row."""
    path = tmp_path / "facts.parquet"
    full = {**ONE, "neighbours": ["Louvre"], "probes": [{"kind": "alias", "prompt": "It is in", "target": "Rome"}]}
    pq.write_table(pa.Table.from_pylist([full, TWO]), path)
    assert load_facts(path) == [fm.Fact.from_dict(full), fm.Fact.from_dict(TWO)]


def test_a_flattened_copy(tmp_path: Path) -> None:
    path = tmp_path / "tracing.jsonl"
    path.write_text(f"{json.dumps(TRACING)}\n{json.dumps(TRACING)}")
    assert [fact.id for fact in load_facts(path)] == ["counterfact.1", "counterfact.2"]
    path.write_text(f"{json.dumps(TRACING)}\n{json.dumps({**TRACING, 'subject': ' Martin'})}")
    with refuses(FileError, OSError, "line 2"):  # its prefix and suffix no longer make up its prompt
        load_facts(path)


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
        assert (fact.text, fact.subject, fact.target_true) == (record["prompt"], record["subject"], record["attribute"])
    assert sum(fact.prompt != record["template"] for fact, record in zip(facts, records, strict=True)) == 478
    assert not any(fact.notes or fact.target_new for fact in facts)
    assert set(facts[0].lacks) >= {"ES", "PS", "NS", "GE"}


# -- the embedded model's facts ---------------------------------------------------------------------------------------


def test_the_embedded_facts(atlas_facts: list[fm.Fact]) -> None:
    """Enough of them; none contradicts another; neighbours share the answer; templates and targets are clean."""
    assert len(atlas_facts) >= 2400
    assert len({fact.relation for fact in atlas_facts}) >= 20
    subjects = Counter(fact.subject for fact in atlas_facts)
    assert len(subjects) >= 500
    assert sum(count >= 4 for count in subjects.values()) > len(subjects) / 2
    assert max(Counter((fact.relation, fact.subject) for fact in atlas_facts).values()) == 1
    assert len({fact.id for fact in atlas_facts} - {""}) == len(atlas_facts)
    assert sum(bool(fact.neighbours) for fact in atlas_facts) > len(atlas_facts) / 2
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
