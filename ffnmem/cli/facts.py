"""``ffnmem facts``: what a model may know."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from itertools import groupby
from typing import TYPE_CHECKING, Any

import click

import ffnmem as fm

from ..errors import InputError, listed
from .guard import Command
from .options import COUNT, output_options, text
from .output import print_csv, print_json
from .tables import console, plain_table, user_text

if TYPE_CHECKING:
    from ..facts import Fact

SHOWN = 20


@click.command(cls=Command, short_help="List facts: subject, relation, prompt and true target.")
@click.argument("source", type=text, default="atlas")
@click.option(
    "--relation",
    type=text,
    metavar="NAME",
    help="Facts of this relation (landmark.city), or of all that begin so (landmark).",
)
@click.option("--subject", type=text, metavar="TEXT", help="Facts whose subject contains this text, in any case.")
@click.option(
    "--limit",
    type=COUNT,
    metavar="N",
    help=f"At most N rows; by default {SHOWN} facts in a table, and all with --json, --csv or --relations.",
)
@click.option("--relations", is_flag=True, help="Count the facts of each relation instead of listing them.")
@output_options
def facts(
    source: str, relation: str | None, subject: str | None, limit: int | None, relations: bool, form: str
) -> None:
    """List the facts of SOURCE: atlas (those of the embedded model, the default) or a JSON-lines file of facts.

    \b
    Examples
      ffnmem facts --relations
      ffnmem facts --subject "Eiffel Tower"
      ffnmem facts --relation landmark.city --json > cities.json

    --json and --csv have every field of a fact, with its paraphrases, neighbours and false targets; in CSV, lists are
    JSON arrays.
    """
    found = choose(fm.load_facts(source), source, relation, subject)
    if relations:
        rows = count_relations(found)[:limit]
    else:
        rows = [fact.to_dict() for fact in found[: SHOWN if limit is None and form == "table" else limit]]
    if form == "json":
        print_json(rows)
    elif form == "csv":
        print_csv(list(rows[0]), rows)
    elif relations:
        print_relations(rows, len(found))
    else:
        print_facts(found[: len(rows)], len(found))


def choose(found: Sequence[Fact], source: str, relation: str | None, subject: str | None) -> list[Fact]:
    """The facts of a relation (or of a family of relations) and a subject; raises InputError where there are none."""
    chosen = list(found)
    if relation is not None:
        known = sorted({fact.relation for fact in found})
        chosen = [f for f in chosen if f.relation == relation or f.relation.startswith(relation.rstrip(".") + ".")]
        if not chosen:
            close = get_close_matches(relation, known, n=3, cutoff=0.5)
            hint = f"did you mean {' or '.join(close)}?" if close else f"it has {listed(known)}"
            raise InputError(f"{source} has no relation {relation!r}: {hint} (--relations lists them)")
    if subject is not None:
        within = chosen
        chosen = [f for f in within if subject.casefold() in f.subject.casefold()]
        if not chosen:
            close = get_close_matches(subject, sorted({f.subject for f in within}), n=3)
            hint = f": did you mean {' or '.join(close)}?" if close else "; give a part of its name"
            where = "" if relation is None else f" under {relation}"
            raise InputError(f"no subject of {source}{where} contains {subject!r}{hint}")
    return chosen


def count_relations(found: Sequence[Fact]) -> list[dict[str, Any]]:
    """One row a relation: relation, facts, targets (how many different ones), prompt (the first fact's template)."""
    rows = []
    for name, group in groupby(sorted(found, key=lambda fact: fact.relation), key=lambda fact: fact.relation):
        facts = list(group)
        targets = len({fact.target_true for fact in facts})
        rows.append({"relation": name, "facts": len(facts), "targets": targets, "prompt": facts[0].prompt})
    return rows


def print_relations(rows: Sequence[dict[str, Any]], count: int) -> None:
    table = plain_table("relation", "facts", "targets", "prompt", left=["relation"], wraps=["prompt"])
    for row in rows:
        table.add_row(user_text(row["relation"]), f"{row['facts']:,}", f"{row['targets']:,}", user_text(row["prompt"]))
    out = console()
    out.print(table)
    out.print()
    out.print(f"{len(rows)} relations, {sum(row['facts'] for row in rows):,} of {count:,} facts", style="dim")


def print_facts(shown: Sequence[Fact], count: int) -> None:
    table = plain_table("relation", "prompt", "true target", left=["relation"], wraps=["prompt", "true target"])
    for fact in shown:
        table.add_row(user_text(fact.relation), user_text(fact.text), user_text(fact.target_true, "bold"))
    out = console()
    out.print(table)
    out.print()
    more = "" if len(shown) == count else f"; --limit {count} shows all, --relation and --subject choose"
    out.print(f"{len(shown):,} of {count:,} facts{more}", style="dim")
