"""Files of facts: the project's own JSON lines, and a reader for each public format."""

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
from ..core.types import FACT_FORMATS, FactFormat, checked
from .counterfact import CounterFactRecord, Known1000Record, ZsreRecord
from .easyedit import KnowEditRecord
from .fact import Fact, Probe
from .foreign import ForeignRecord, LeftOut
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
}


def detect(record: dict[str, Any]) -> str | None:
    """The format of a record by its fields; None for what is unknown."""
    names = set(record)
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


OPTIONAL = ("neighbour_prompts", "probes", "notes", "true_aliases", "new_aliases")
"""Fields that are written only where a fact has them."""
PROBE_OPTIONAL = {f.name for f in fields(Probe) if f.default is not MISSING}
"""The same of a fact's probes."""
SHOWN = 3  # records of a kind that are named


@checked
def load_facts(source: str | Path = "atlas", format: FactFormat | None = None) -> list[Fact]:
    """Read facts of any of the known formats.

    Args:
        source: ``"atlas"`` for those of the embedded model; else a file of JSON lines, a JSON array or a Parquet file
            of records. What a record lacks stays empty (see ``Fact.lacks``), and what had to
            be changed or left out stands in ``Fact.notes``. Records that are whole but no facts, such as those whose
            subject is not in their prompt, are left out with a warning that counts them.
        format: ``"ffnmem"`` (the fields of :class:`Fact`), ``"counterfact"`` (``counterfact.json``, and copies with
            one column a field such as counterfact-tracing), ``"known_1000"``, ``"zsre"`` (``zsre_mend_eval.json``),
            or ``"knowedit"`` (KnowEdit and other files of EasyEdit); None to tell by the first record's fields.

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
    facts = facts_of_records(records, name, own)
    twice = [one for one, count in Counter(fact.id for fact in facts if fact.id).items() if count > 1]
    if twice:
        raise FileError(f"{name}: the id {quoted(twice[0])} stands twice")
    return facts


def facts_of_records(records: list[Record], source: str, format: str) -> list[Fact]:
    """Records of one format as facts; raises FileError naming the broken one, and warns of those left out."""
    facts: list[Fact] = []
    left: dict[str, list[str]] = defaultdict(list)
    for number, (place, record) in enumerate(records, start=1):
        try:
            facts += facts_of_record(record, number, format)
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


def facts_of_record(record: dict[str, Any], number: int, format: str) -> list[Fact]:
    """The facts of one record; raises InputError."""
    if format == "ffnmem":  # what is null is not there: a Parquet file has every field in every row
        return [Fact.from_dict(without(record, lambda _, value: value is None))]
    read: ForeignRecord = read_as(FOREIGN[format], record)
    return read.facts(number)


@checked
def write_facts(facts: Iterable[Fact], path: str | Path) -> Path:
    """Write facts as JSON lines of our own, whole or not at all.

    Raises: FileError: the file cannot be written.
    """
    lines = (json.dumps(own_record(fact), ensure_ascii=False) + "\n" for fact in facts)
    target = check_destination(path)
    write_whole(target, "".join(lines))
    return target


def own_record(fact: Fact) -> dict[str, Any]:
    """A fact as the project's own files have it, without what is empty and need not be there."""
    record = {name: value for name, value in fact.to_dict().items() if value or name not in OPTIONAL}
    return without(record, lambda name, value: not value and name in PROBE_OPTIONAL)


def without(value: Any, is_left_out: Callable[[str, Any], bool]) -> Any:
    """A record without some of its fields, and the objects in it likewise."""
    if isinstance(value, list):
        return [without(one, is_left_out) for one in value]
    if isinstance(value, dict):
        return {name: without(one, is_left_out) for name, one in value.items() if not is_left_out(name, one)}
    return value
