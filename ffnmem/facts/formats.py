"""Files of facts: the project's own JSON lines and the public formats, a reader each; nothing is invented."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from ..core.errors import FileError, InputError, listed, quoted, warn
from ..core.files import check_destination, user_path, write_whole
from ..core.resources import EMBEDDED, embedded_folder
from ..core.types import FACT_FORMATS, FactFormat, Seed, WrittenFactFormat, checked
from .counterfact import CounterFactRecord, Known1000Record, ZsreRecord, counterfact_record
from .easyedit import KnowEditRecord, knowedit_record
from .fact import Fact, Hop, MultiHop, Probe
from .foreign import ForeignRecord, LeftOut
from .mquake import MQuakeRecord, mquake_records
from .pararel import Document, facts_of_document, read_folder
from .records import Record, read_as, read_records

OWN = frozenset({"subject", "relation", "prompt", "target_true"})
FLAT = frozenset({"subject", "prompt", "target_true"})
FLAT_ONLY = frozenset({"relation_id", "relation_prefix", "target_false", "case_id", "paraphrase_prompts"})
"""Fields of flattened CounterFact copies that the project's own facts do not have."""


FOREIGN: Mapping[str, type[ForeignRecord]] = {
    "counterfact": CounterFactRecord,
    "known_1000": Known1000Record,
    "zsre": ZsreRecord,
    "knowedit": KnowEditRecord,
    "mquake": MQuakeRecord,
}


def detect(record: dict[str, Any]) -> str | None:
    """The format of a record by its fields; None for what is unknown. ``"pararel"`` is a whole data set in one."""
    names = set(record)
    if {"triples", "templates"} <= names:
        return "pararel"
    if isinstance(record.get("requested_rewrite"), list) or {"questions", "new_answer"} <= names:
        return "mquake"
    if "requested_rewrite" in names:
        return "counterfact"
    if {"src", "subject", "answers"} <= names:
        return "zsre"
    if {"subject", "attribute", "prompt"} <= names:
        return "known_1000"
    if names >= OWN and not names & FLAT_ONLY and "{}" in str(record["prompt"]):
        return "ffnmem"
    if names >= FLAT:
        return "counterfact"
    if {"subject", "prompt"} <= names <= {f.name for f in fields(Fact)} and "{}" in str(record["prompt"]):
        return "ffnmem"  # without a true target
    return "knowedit" if names & {"prompt", "text"} and names & {"target_new", "labels"} else None


# Reading and writing files of facts: the project's own JSON lines, and the public formats.

OPTIONAL = ("neighbour_prompts", "probes", "notes", "true_aliases", "new_aliases", "multi_hop")
"""Fields that are written only where a fact has them."""
PART_OPTIONAL = {f.name for kind in (Probe, Hop, MultiHop) for f in fields(kind) if f.default is not MISSING}
"""The same of what is inside of a fact."""
SHOWN = 3  # records of a kind that are named


@checked
def load_facts(source: str | Path = "atlas", format: FactFormat | None = None, *, seed: Seed = 0) -> list[Fact]:
    """Read facts of any of the known formats.

    Args:
        source: ``"atlas"`` for those of the embedded model; else a file of JSON lines, a JSON array or a Parquet file
            of records, or a folder of ParaRel. What a record lacks stays empty (see ``Fact.lacks``), and what had to
            be changed or left out stands in ``Fact.notes``. Records that are whole but no facts, such as those whose
            subject is not in their prompt, are left out with a warning that counts them.
        format: ``"ffnmem"`` (the fields of :class:`Fact`), ``"counterfact"`` (``counterfact.json``, and copies with
            one column a field such as counterfact-tracing), ``"known_1000"``, ``"zsre"`` (``zsre_mend_eval.json``),
            ``"knowedit"`` (KnowEdit and other files of EasyEdit), ``"mquake"`` (MQuAKE; a fact a rewrite) or
            ``"pararel"`` (triples with templates); None to tell by the first record's fields.
        seed: of the neighbours that are drawn for triples, which come without.

    Raises:
        FileError: no such file, an unknown format, or a broken record, named by its number.
        InputError: no such ``format``.
    """
    name = str(source)
    path = embedded_folder(name) / "facts.jsonl" if name in EMBEDDED else user_path(source)
    if not path.exists():
        raise FileError(
            f"no facts at {name!r}: give {' or '.join(map(repr, EMBEDDED))} or a .jsonl, .json or .parquet file"
        )
    if path.is_dir():
        if format not in (None, "pararel"):
            raise FileError(f"{name} is a folder: facts of the format {quoted(format)} are in a file")
        facts = read_folder(path, name, seed)
    else:
        records = read_records(path, name)
        if not records:
            raise FileError(f"{name} holds no facts")
        place, first = records[0]
        own = format or detect(first)
        if own is None:
            raise FileError(
                f"{name}, {place}: fields {listed(list(map(repr, first)), 12)} are of no format that is known "
                f"({', '.join(FACT_FORMATS)}); facts of ours have subject, relation, prompt, target_true …"
            )
        facts = facts_of_records(records, name, own, seed)
    twice = [one for one, count in Counter(fact.id for fact in facts if fact.id).items() if count > 1]
    if twice:
        raise FileError(f"{name}: the id {quoted(twice[0])} stands twice")
    return facts


def facts_of_records(records: list[Record], source: str, format: str, seed: int) -> list[Fact]:
    """Records of one format as facts; raises FileError naming the broken one, and warns of those left out."""
    facts: list[Fact] = []
    left: dict[str, list[str]] = defaultdict(list)
    for number, (place, record) in enumerate(records, start=1):
        try:
            facts += facts_of_record(record, number, format, seed)
        except LeftOut as error:
            left[str(error)].append(place)
        except InputError as error:
            raise FileError(f"{source}, {place}: {error}") from None
    why = "; ".join(f"{len(places):,}: {reason} ({listed(places, SHOWN)})" for reason, places in left.items())
    if not facts:
        raise FileError(f"{source} holds no facts" + f": its records are left out; {why}" * bool(left))
    if left:
        count = sum(map(len, left.values()))
        warn(f"{source}: {count:,} of {len(records):,} records are left out; {why}")
    return facts


def facts_of_record(record: dict[str, Any], number: int, format: str, seed: int) -> list[Fact]:
    """The facts of one record, or of a data set in one; raises InputError."""
    if format == "ffnmem":  # what is null is not there: a Parquet file has every field in every row
        return [Fact.from_dict(without(record, lambda _, value: value is None))]
    if format == "pararel":
        return facts_of_document(read_as(Document, record), seed)
    read: ForeignRecord = read_as(FOREIGN[format], record)
    return read.facts(number)


@checked
def write_facts(facts: Iterable[Fact], path: str | Path, format: WrittenFactFormat = "ffnmem") -> Path:
    """Write facts, whole or not at all: as JSON lines of our own, or as a JSON array of another format's records.

    What another format has no place for is counted in a warning; it is found by reading the records again, so that
    nothing is lost without a word.

    Args:
        facts: to write.
        path: of the file.
        format: ``"ffnmem"``, ``"counterfact"``, ``"knowedit"`` or ``"mquake"``.

    Raises:
        FileError: the file cannot be written.
        InputError: no such format, or a fact that a record of it cannot hold.
    """
    target = check_destination(path)
    if format == "ffnmem":
        lines = (json.dumps(own_record(fact), ensure_ascii=False) + "\n" for fact in facts)
        write_whole(target, "".join(lines))
        return target
    made = records_of(list(facts), format)
    changed = changes(made, format)
    write_whole(target, json.dumps([record for record, _ in made], ensure_ascii=False, indent=4) + "\n")
    if changed:
        count = sum(len(held) for _, held in made)
        what = ", ".join(f"{name} ({n:,})" for name, n in changed.items())
        warn(f"{target.name}: not all of the {count:,} facts has a place in {format}; read again, these differ: {what}")
    return target


def own_record(fact: Fact) -> dict[str, Any]:
    """A fact as the project's own files have it, without what is empty and need not be there."""
    record = {name: value for name, value in fact.to_dict().items() if value or name not in OPTIONAL}
    return without(record, lambda name, value: not value and name in PART_OPTIONAL)


def without(value: Any, is_left_out: Callable[[str, Any], bool]) -> Any:
    """A record without some of its fields, and the objects in it likewise."""
    if isinstance(value, list):
        return [without(one, is_left_out) for one in value]
    if isinstance(value, dict):
        return {name: without(one, is_left_out) for name, one in value.items() if not is_left_out(name, one)}
    return value


def records_of(facts: list[Fact], format: str) -> list[tuple[dict[str, Any], list[Fact]]]:
    """The records that facts become, each with the facts in it; raises InputError naming one that cannot be held."""
    if format == "mquake":
        return mquake_records(facts)
    write = counterfact_record if format == "counterfact" else knowedit_record
    made = []
    for fact in facts:
        try:
            made.append((write(fact), [fact]))
        except InputError as error:
            raise InputError(f"fact {quoted(fact.name)} cannot be written as {format}: {error}") from None
    return made


def changes(made: list[tuple[dict[str, Any], list[Fact]]], format: str) -> dict[str, int]:
    """In how many facts each field differs once their records are read again; notes are the reader's own.

    Raises: InputError: records that would not be read again.
    """
    counts: Counter[str] = Counter()
    ids: Counter[str] = Counter()
    for number, (record, facts) in enumerate(made, start=1):
        try:
            again = facts_of_record(json.loads(json.dumps(record)), number, format, 0)
        except InputError as error:
            raise InputError(f"fact {quoted(facts[0].name)} cannot be written as {format}: {error}") from None
        ids.update(fact.id for fact in again)
        for old, new in zip(facts, again, strict=True):
            counts.update(f.name for f in fields(Fact) if getattr(old, f.name) != getattr(new, f.name))
    twice = [name for name, count in ids.items() if count > 1]
    if twice:
        raise InputError(
            f"two facts would both be {quoted(twice[0])} in a file of {format}: give them ids of their own"
        )
    return {name: count for name, count in counts.items() if name != "notes"}
