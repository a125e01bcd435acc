"""Triples with templates, as ParaRel has them: a fact gets all templates of its relation that end in the object."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ..errors import FileError, InputError, quoted
from .fact import Fact
from .records import read_records, text_field

PATTERNS = ("patterns", "pattern_data/graphs_json", "graphs_json")
TRIPLES = "trex_lms_vocab"
NEIGHBOURS = 10
SUBJECT, OBJECT = "[X]", "[Y]"

Read = TypeVar("Read")
Triple = tuple[str, str]
"""Subject and object."""


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
            facts += facts_of(path.stem, each(path, pattern_of), each(triples, triple_of), seed)
    if not facts:
        raise FileError(f"{source} has no relation with both triples and a template that ends in {OBJECT}")
    return facts


def each(path: Path, read: Callable[[Any], Read]) -> list[Read]:
    """What is read of each record of a file; raises FileError naming the broken one."""
    found = []
    for place, record in read_records(path, str(path)):
        try:
            found.append(read(record))
        except InputError as error:
            raise FileError(f"{path}, {place}: {error}") from None
    return found


def read_document(document: Mapping[str, Any], seed: int) -> list[Fact]:
    """One JSON object: ``templates`` has a list of patterns for each relation, ``triples`` a list of objects with
    subject (or sub_label), relation (or predicate_id) and object (or obj_label), or of arrays of the three.

    Raises: InputError: a triple or pattern that is none, or a relation without a template that ends in its object.
    """
    templates, triples = document.get("templates"), document.get("triples")
    if not isinstance(templates, dict) or not isinstance(triples, list):
        raise InputError("'templates' must be an object of lists, and 'triples' a list")
    pairs: dict[str, list[Triple]] = defaultdict(list)
    for number, triple in enumerate(triples, start=1):
        try:
            relation = relation_of(triple)
            if relation not in templates:
                raise InputError(f"there are no templates of its relation {quoted(relation)}")
            pairs[relation].append(triple_of(triple))
        except InputError as error:
            raise InputError(f"triple {number}: {error}") from None
    facts = []
    for relation, found in pairs.items():
        if not isinstance(templates[relation], list):
            raise InputError(f"the templates of {quoted(relation)} must be a list")
        made = facts_of(relation, [pattern_of(pattern) for pattern in templates[relation]], found, seed)
        if not made:
            raise InputError(f"no template of {quoted(relation)} ends in {OBJECT}")
        facts += made
    return facts


def facts_of(relation: str, patterns: Sequence[str], pairs: Sequence[Triple], seed: int) -> list[Fact]:
    """The facts of a relation: the first template asks, the others are paraphrases, neighbours are drawn."""
    templates, notes = templates_of(patterns)
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
    import numpy as np

    drawn = {}
    for target, subjects in holders.items():
        generator = np.random.default_rng([seed, *f"{relation}\0{target}".encode()])
        ordered = sorted(subjects)
        for i, subject in enumerate(ordered):
            others = [*ordered[:i], *ordered[i + 1 :]]
            chosen = generator.choice(len(others), min(NEIGHBOURS, len(others)), replace=False) if others else ()
            drawn[target, subject] = tuple(others[j] for j in sorted(chosen))
    return drawn


def templates_of(patterns: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
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
    notes = list(noted(left, cut, spaced))
    return tuple(dict.fromkeys(templates)), tuple(notes)


def noted(left: Sequence[str], cut: int, spaced: int) -> Iterator[str]:
    if cut:
        yield f"punctuation after {OBJECT} dropped from {cut} templates"
    if spaced:
        yield f"double spaces made one in {spaced} templates"
    if left:
        yield f"{len(left)} templates left out that do not end in {OBJECT}: {', '.join(map(repr, left))}"


def pattern_of(pattern: Any) -> str:
    return text_field(pattern if isinstance(pattern, dict) else {"pattern": pattern}, "pattern")


def relation_of(triple: Any) -> str:
    if isinstance(triple, list):
        triple = dict(zip(("subject", "relation", "object"), triple, strict=False))
    if not isinstance(triple, dict):
        raise InputError(f"it must be an object or an array of three texts, not {quoted(triple)}")
    return text_field(triple, "relation" if "relation" in triple else "predicate_id")


def triple_of(triple: Any) -> Triple:
    """Subject and object of a triple; raises InputError."""
    if isinstance(triple, list):
        if len(triple) != 3:
            raise InputError(f"it must hold subject, relation and object, not {quoted(triple)}")
        triple = dict(zip(("subject", "relation", "object"), triple, strict=True))
    names = ("subject", "object") if "subject" in triple else ("sub_label", "obj_label")
    return text_field(triple, names[0]), text_field(triple, names[1])
