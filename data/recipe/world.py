"""The written world: tables of subjects (``world/*.tsv``) and sentence templates (``world/*.toml``)."""

from __future__ import annotations

import csv
import random
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

WORLD = Path(__file__).parent / "world"
WITHDRAWN = Path(__file__).parent / "withdrawn.tsv"
ATLAS = Path(__file__).parent.parent / "atlas"


@dataclass(frozen=True)
class Relation:
    """One column of one class, with the sentences that state it. Templates hold ``{}`` for the subject."""

    id: str
    label: str
    train: tuple[str, ...]
    held_out: tuple[str, ...]
    reverse: tuple[str, ...]
    generation: tuple[str, ...]


@dataclass(frozen=True)
class Triple:
    """A true fact: subject, relation, object. ``article`` is "the" or "" and is no part of the subject."""

    subject: str
    article: str
    relation: str
    target: str


@dataclass(frozen=True)
class World:
    """``triples`` are what the corpus states; ``facts`` are those less what a second reading withdrew."""

    relations: dict[str, Relation]
    triples: tuple[Triple, ...]
    facts: tuple[Triple, ...]

    def by_subject(self) -> dict[str, list[Triple]]:
        return grouped(self.triples, lambda triple: f"{triple.relation.split('.')[0]}:{triple.subject}")

    def by_relation(self) -> dict[str, list[Triple]]:
        return grouped(self.triples, lambda triple: triple.relation)


def grouped(triples: Iterable[Triple], key: Callable[[Triple], str]) -> dict[str, list[Triple]]:
    groups: dict[str, list[Triple]] = defaultdict(list)
    for triple in triples:
        groups[key(triple)].append(triple)
    return dict(groups)


def read_world(folder: Path = WORLD) -> World:
    """Read every class of the folder, checked: see ``check_world``."""
    relations: dict[str, Relation] = {}
    triples: list[Triple] = []
    for table in sorted(folder.glob("*.tsv")):
        described = tomllib.loads(table.with_suffix(".toml").read_text("utf-8"))
        for name, entry in described["relations"].items():
            relation_id = f"{table.stem}.{name}"
            texts = {k: tuple(entry[k]) for k in ("train", "held_out", "reverse", "generation")}
            relations[relation_id] = Relation(id=relation_id, label=entry["label"], **texts)
        with table.open(encoding="utf-8", newline="") as handle:
            for row in csv.DictReader(handle, delimiter="\t", quoting=csv.QUOTE_NONE):
                subject, article = row.pop("subject").strip(), row.pop("article").strip()
                for column, target in row.items():
                    if target and target.strip():
                        triples.append(Triple(subject, article, f"{table.stem}.{column}", target.strip()))
    world = World(relations, tuple(triples), without_withdrawn(triples))
    check_world(world)
    return world


def without_withdrawn(triples: list[Triple]) -> tuple[Triple, ...]:
    """The triples that no second reading withdrew; raises ValueError when the list names one that is not there."""
    with WITHDRAWN.open(encoding="utf-8", newline="") as handle:
        rows = csv.DictReader(handle, delimiter="\t", quoting=csv.QUOTE_NONE)
        withdrawn = {(row["relation"], row["subject"], row["object"]) for row in rows}
    unknown = withdrawn - {(t.relation, t.subject, t.target) for t in triples}
    if unknown:
        raise ValueError(f"{WITHDRAWN.name} names what is not in the tables: {sorted(unknown)[:3]}")
    return tuple(t for t in triples if (t.relation, t.subject, t.target) not in withdrawn)


def check_world(world: World) -> None:
    """Raise ValueError when a fact is stated twice, lacks its templates, or a template is malformed."""
    seen: set[tuple[str, str]] = set()
    for triple in world.triples:
        key = (triple.relation, triple.subject)
        if key in seen:
            raise ValueError(f"{triple.subject!r} stands twice in {triple.relation}")
        seen.add(key)
        if triple.relation not in world.relations:
            raise ValueError(f"no templates for {triple.relation}")
        if triple.article not in ("", "the"):
            raise ValueError(f"{triple.subject!r}: article must be 'the' or empty, not {triple.article!r}")
    for relation in world.relations.values():
        templates = relation.train + relation.held_out
        bad = [t for t in (*templates, *relation.reverse, *relation.generation) if t.count("{}") != 1]
        if bad or len(set(templates)) != len(templates):
            raise ValueError(f"{relation.id}: templates repeated or without one {{}}: {bad}")
        if len(relation.train) < 6 or len(relation.held_out) < 2:
            raise ValueError(f"{relation.id}: needs 6 training and 2 held-out templates")


def with_article(template: str, article: str) -> str:
    """The template with the subject's article written into it: "The {} is …" at the start, "… of the {} …" inside."""
    if not article:
        return template
    return template.replace("{}", "The {}" if template.startswith("{}") else "the {}")


def fact_records(world: World, seed: int = 0, neighbours: int = 10, false_targets: int = 5) -> list[dict[str, object]]:
    """One record a fact, with the fields of ``ffnmem.facts.fact.Fact``; false targets: other objects of the
    relation."""
    by_relation = grouped(world.facts, lambda triple: triple.relation)
    records: list[dict[str, object]] = []
    counts: dict[str, int] = defaultdict(int)
    for triple in world.facts:
        relation, rng = world.relations[triple.relation], random.Random(f"{seed}:{triple.relation}:{triple.subject}")
        peers = by_relation[triple.relation]
        same = [p.subject for p in peers if p.target == triple.target and p.article == triple.article and p != triple]
        others = sorted({p.target for p in peers} - {triple.target})
        wrong = rng.sample(others, min(false_targets, len(others)))
        records.append(
            {
                "id": f"{triple.relation}.{counts[triple.relation]:03d}",
                "subject": triple.subject,
                "relation": triple.relation,
                "prompt": with_article(relation.train[0], triple.article),
                "target_true": triple.target,
                "target_new": wrong[0],
                "false_targets": wrong,
                "paraphrases": [with_article(t, triple.article) for t in relation.held_out],
                "neighbours": sorted(rng.sample(same, min(neighbours, len(same)))),
                "generation_prompts": [with_article(t, triple.article) for t in relation.generation],
            }
        )
        counts[triple.relation] += 1
    return records
