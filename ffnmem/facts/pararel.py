"""Triples with templates, as ParaRel has them: a fact gets all templates of its relation that end in the object."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import AliasChoices, BeforeValidator, Field, model_validator

from ..core.errors import FileError, InputError, quoted
from .fact import Fact
from .foreign import ForeignRecord, Text
from .records import read_as, read_records

PATTERNS = ("patterns", "pattern_data/graphs_json", "graphs_json")
TRIPLES = "trex_lms_vocab"
NEIGHBOURS = 10
SUBJECT, OBJECT = "[X]", "[Y]"


class Triple(ForeignRecord):
    """An object with these fields, or an array of subject, relation and object."""

    subject: Text = Field(validation_alias=AliasChoices("subject", "sub_label"))
    relation: Text = Field("", validation_alias=AliasChoices("relation", "predicate_id"))
    object: Text = Field(validation_alias=AliasChoices("object", "obj_label"))

    @model_validator(mode="before")
    @classmethod
    def from_array(cls, value: Any) -> Any:
        is_array = isinstance(value, list | tuple) and len(value) == 3
        return dict(zip(("subject", "relation", "object"), value, strict=True)) if is_array else value

    @property
    def pair(self) -> tuple[str, str]:
        return self.subject, self.object


Pattern = Annotated[Text, BeforeValidator(lambda value: value.get("pattern") if isinstance(value, dict) else value)]


class Document(ForeignRecord):
    """A whole data set: a list of patterns for each relation, and a list of triples."""

    templates: dict[str, list[Pattern]]
    triples: list[Triple]


def read_folder(folder: Path, source: str, seed: int) -> list[Fact]:
    """ParaRel as its authors have it: ``patterns/P36.jsonl`` with lines ``{"pattern": "[X] is … [Y] ."}``, and
    ``trex_lms_vocab/P36.jsonl`` with lines ``{"sub_label": …, "obj_label": …}``.

    Relations that have only one of the two files are none, and neither are those without a template that ends in [Y].

    Raises: FileError: not such a folder, or a broken line.

    Source: Elazar et al. 2021 (2102.01017).
    """
    patterns = next((folder / name for name in PATTERNS if (folder / name).is_dir()), None)
    if patterns is None or not (folder / TRIPLES).is_dir():
        raise FileError(
            f"{source} is a folder without facts: one of ParaRel has patterns/*.jsonl and {TRIPLES}/*.jsonl in it"
        )
    facts: list[Fact] = []
    for path in sorted(patterns.glob("*.jsonl")):
        triples = folder / TRIPLES / path.name
        if triples.is_file():
            pairs = [triple.pair for triple in read_each(triples, Triple)]
            facts += facts_of_relation(path.stem, read_each(path, Pattern), pairs, seed)
    if not facts:
        raise FileError(f"{source} has no relation with both triples and a template that ends in {OBJECT}")
    return facts


def read_each(path: Path, kind: Any) -> list[Any]:
    """Each record of a file; raises FileError naming the broken one."""
    found = []
    for place, record in read_records(path, str(path)):
        try:
            found.append(read_as(kind, record))
        except InputError as error:
            raise FileError(f"{path}, {place}: {error}") from None
    return found


def facts_of_document(document: Document, seed: int) -> list[Fact]:
    """Raises InputError: a relation without a template that ends in its object."""
    pairs: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for triple in document.triples:
        pairs[triple.relation].append(triple.pair)
    facts = []
    for relation, own in pairs.items():
        made = facts_of_relation(relation, document.templates.get(relation, []), own, seed)
        if not made:
            raise InputError(f"relation {quoted(relation)} has no template that ends in {OBJECT}")
        facts += made
    return facts


def facts_of_relation(
    relation: str, patterns: Sequence[str], pairs: Sequence[tuple[str, str]], seed: int
) -> list[Fact]:
    """The facts of a relation: the first template asks, the others are paraphrases, neighbours are drawn."""
    templates, notes = templates_of_patterns(patterns)
    if not templates:
        return []
    holders: dict[str, list[str]] = defaultdict(list)
    for subject, target in dict.fromkeys(pairs):
        holders[target].append(subject)
    draws = neighbours_of(relation, holders, seed)
    return [
        Fact(
            subject=subject,
            relation=relation,
            prompt=templates[0],
            target_true=target,
            paraphrases=templates[1:],
            neighbours=draws[target, subject],
            id=f"{relation}.{number}",
            notes=notes,
        )
        for number, (subject, target) in enumerate(pairs)
    ]


def neighbours_of(
    relation: str, holders: Mapping[str, Sequence[str]], seed: int
) -> dict[tuple[str, str], tuple[str, ...]]:
    """For each object and subject, at most ten other subjects of it; the same whatever else is in the data set."""
    import numpy as np  # not needed to list facts

    drawn = {}
    for target, subjects in holders.items():
        generator = np.random.default_rng([seed, *f"{relation}\0{target}".encode()])
        ordered = sorted(subjects)
        for i, subject in enumerate(ordered):
            others = [*ordered[:i], *ordered[i + 1 :]]
            chosen = generator.choice(len(others), min(NEIGHBOURS, len(others)), replace=False) if others else ()
            drawn[target, subject] = tuple(others[j] for j in sorted(chosen))
    return drawn


def templates_of_patterns(patterns: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Patterns with [X] and [Y] as templates that end where the target begins, and notes on what was changed."""
    templates, left, cut, spaced = [], [], 0, 0
    for pattern in patterns:
        before, _, after = pattern.partition(OBJECT)
        ends = re.fullmatch(r"[\s.,;!?]*", after) is not None and OBJECT in pattern
        if not ends or before.count(SUBJECT) != 1 or not before[-1:].isspace() or "{}" in pattern:
            left.append(pattern)
            continue
        template = " ".join(before.replace(SUBJECT, "{}").split())
        cut += bool(after.strip())
        spaced += template != before.replace(SUBJECT, "{}").strip()
        templates.append(template)
    notes = {
        f"punctuation after {OBJECT} dropped from {cut} templates": cut,
        f"double spaces made one in {spaced} templates": spaced,
        f"{len(left)} templates left out that do not end in {OBJECT}: {', '.join(map(repr, left))}": len(left),
    }
    return tuple(dict.fromkeys(templates)), tuple(note for note, count in notes.items() if count)
