"""Reading and writing files of facts: the project's own JSON lines, and the public formats."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..arguments import public
from ..core.choices import FACT_FORMATS
from ..errors import FileError, InputError, check_choice, listed, quoted
from ..files import check_destination, user_path, write_whole
from ..resources import EMBEDDED, embedded_folder
from .fact import Fact
from .formats import READERS, detect
from .pararel import read_document, read_folder
from .records import Record, read_records

OPTIONAL = ("neighbour_prompts", "probes", "notes")  # written only where a fact has them


@public
def load_facts(source: str | Path = "atlas", format: str | None = None, *, seed: int = 0) -> list[Fact]:
    """Read facts of any of the known formats.

    Args:
        source: ``"atlas"`` for those of the embedded model; else a file of JSON lines, a JSON array or a Parquet file
            of records, or a folder of ParaRel. What a record lacks stays empty (see ``Fact.lacks``), and what had to
            be changed or left out stands in ``Fact.notes``.
        format: ``"ffnmem"`` (the fields of :class:`Fact`), ``"counterfact"`` (``counterfact.json``, and copies with
            one column a field such as counterfact-tracing), ``"known_1000"``, ``"zsre"`` (``zsre_mend_eval.json``) or
            ``"pararel"`` (triples with templates); None to tell by the first record's fields.
        seed: of the neighbours that are drawn for triples, which come without.

    Raises:
        FileError: no such file, an unknown format, or a record that is no fact, named by its number.
        InputError: no such ``format``.
    """
    if format is not None:
        check_choice("format", format, FACT_FORMATS)
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
        facts = facts_of(records, name, format or known_format(records[0], name), seed)
    twice = [one for one, count in Counter(fact.id for fact in facts if fact.id).items() if count > 1]
    if twice:
        raise FileError(f"{name}: the id {quoted(twice[0])} stands twice")
    return facts


def known_format(first: Record, source: str) -> str:
    """The format of a first record; raises FileError naming its fields for one that is none of ours."""
    found = detect(first[1])
    if found is None:
        raise FileError(
            f"{source}, {first[0]}: fields {listed(list(map(repr, first[1])), 12)} are of no format that is known "
            f"({', '.join(FACT_FORMATS)}); facts of ours have subject, relation, prompt, target_true …"
        )
    return found


def facts_of(records: list[Record], source: str, format: str, seed: int) -> list[Fact]:
    """Records of one format as facts; raises FileError naming the broken one."""
    facts: list[Fact] = []
    for number, (place, record) in enumerate(records, start=1):
        try:
            if format == "pararel":
                facts += read_document(record, seed)
            else:
                facts.append(READERS[format](record, number))
        except InputError as error:
            raise FileError(f"{source}, {place}: {error}") from None
    if not facts:
        raise FileError(f"{source} holds no facts")
    return facts


def write_facts(facts: Iterable[Fact], path: str | Path) -> Path:
    """Write facts as JSON lines, whole or not at all. Raises FileError where that cannot be."""
    target = check_destination(path)
    write_whole(target, "".join(json.dumps(written(fact), ensure_ascii=False) + "\n" for fact in facts))
    return target


def written(fact: Fact) -> dict[str, Any]:
    return {name: value for name, value in fact.to_dict().items() if value or name not in OPTIONAL}
