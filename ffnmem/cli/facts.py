"""``ffnmem facts``: what a model may know."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from difflib import get_close_matches
from itertools import groupby
from typing import TYPE_CHECKING, Any

import click

import ffnmem as fm

from ..errors import InputError, listed, quoted
from ..show.records import print_csv, print_json
from ..show.terminal import console, plain_table, probability, token, user_text
from .guard import Command
from .late_bar import late_bar
from .options import COUNT, ModelChoice, output_options, text

if TYPE_CHECKING:
    from ..facts import Fact
    from ..facts.known import Known

SHOWN = 20
FORMATS = ("ffnmem", "counterfact", "known_1000", "zsre", "pararel")  # as in ffnmem.facts, which needs torch


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
@click.option("--lacks", is_flag=True, help="Count what the records lack: which metrics of an edit cannot be computed.")
@click.option(
    "--known",
    type=text,
    metavar="MODEL",
    help="Ask MODEL for them, and list what it says: atlas, a folder, or a Hugging Face id.",
)
@click.option(
    "--format",
    "written",
    type=click.Choice(FORMATS),
    metavar="FORMAT",
    help=f"Of the file: {', '.join(FORMATS)}.  [default: told by the first record]",
)
@output_options
def facts(
    source: str,
    relation: str | None,
    subject: str | None,
    limit: int | None,
    relations: bool,
    lacks: bool,
    known: str | None,
    written: str | None,
    form: str,
) -> None:
    """List the facts of SOURCE: atlas (those of the embedded model, the default), a file of facts, or ParaRel's folder.

    Files are JSON lines, JSON or Parquet: counterfact.json, known_1000.json, zsre_mend_eval.json, triples with
    templates, or the project's own fields.

    \b
    Examples
      ffnmem facts --relations
      ffnmem facts --subject "Eiffel Tower"
      ffnmem facts --relation landmark.city --json > cities.json
      ffnmem facts --relation landmark --known atlas --limit 10
      ffnmem facts --lacks

    --json and --csv have every field of a fact, with its paraphrases, neighbours and false targets; in CSV, lists are
    JSON arrays. With --known they have what the model says: its answer, the true target's probability and rank.
    """
    if relations + lacks + (known is not None) > 1:
        raise InputError("--relations, --lacks and --known exclude each other: give one of them")
    found = choose(fm.load_facts(source, written), source, relation, subject)
    if known is not None:
        show_known(found, known, limit, form)
        return
    if lacks:
        rows = count_lacks(found)[:limit]
    elif relations:
        rows = count_relations(found)[:limit]
    else:
        rows = [fact.to_dict() for fact in found[: SHOWN if limit is None and form == "table" else limit]]
    if form == "json":
        print_json(rows)
    elif form == "csv":
        print_csv(list(rows[0]) if rows else ["metric", "facts", "of", "reason"], rows)
    elif lacks:
        print_lacks(rows, found)
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
            raise InputError(f"{source} has no relation {quoted(relation)}: {hint} (--relations lists them)")
    if subject is not None:
        within = chosen
        chosen = [f for f in within if subject.casefold() in f.subject.casefold()]
        if not chosen:
            close = get_close_matches(subject, sorted({f.subject for f in within}), n=3)
            hint = f": did you mean {' or '.join(close)}?" if close else "; give a part of its name"
            where = "" if relation is None else f" under {relation}"
            raise InputError(f"no subject of {source}{where} contains {quoted(subject)}{hint}")
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


def chosen_facts(source: str, relation: str | None, limit: int | None, seed: int) -> list[Fact]:
    """The facts of a source and a relation, or ``limit`` of them drawn with a seed, in their order."""
    found = choose(fm.load_facts(source), source, relation, None)
    if limit is None or limit >= len(found):
        return found
    return [found[i] for i in sorted(random.Random(seed).sample(range(len(found)), limit))]


def count_lacks(found: Sequence[Fact]) -> list[dict[str, Any]]:
    """One row a metric and reason: metric, facts (that lack it), of (all facts), reason; then the notes of readers."""
    counts = Counter((metric, reason) for fact in found for metric, reason in fact.lacks.items())
    rows = [
        {"metric": metric, "facts": count, "of": len(found), "reason": reason}
        for (metric, reason), count in counts.items()
    ]
    noted = sum(bool(fact.notes) for fact in found)
    if noted:
        rows.append({"metric": "notes", "facts": noted, "of": len(found), "reason": "changed when read: see --json"})
    return rows


def print_lacks(rows: Sequence[dict[str, Any]], found: Sequence[Fact]) -> None:
    table = plain_table("cannot be computed", "facts", "because", left=["cannot be computed"], wraps=["because"])
    for row in rows:
        table.add_row(row["metric"], f"{row['facts']:,}", user_text(row["reason"]))
    out = console()
    out.print(table)
    out.print()
    whole = sum("S" not in fact.lacks for fact in found)
    out.print(f"{whole:,} of {len(found):,} facts have all that S, the mean of ES, PS and NS, needs", style="dim")


def show_known(found: Sequence[Fact], name: str, limit: int | None, form: str) -> None:
    """What a model says to facts, and how many of them it knows."""
    model = ModelChoice(name, None, "float32", None).load()
    with late_bar("known") as report:
        known = fm.filter_known(model, found, progress=report)
    rows = known.to_dict()["facts"]
    shown = rows[: SHOWN if limit is None and form == "table" else limit]
    if form == "json":
        print_json({**known.to_dict(), "facts": shown})
    elif form == "csv":
        print_csv(list(known.frame.columns), shown)
    else:
        print_known(known, shown)


def print_known(known: Known, rows: Sequence[dict[str, Any]]) -> None:
    names = ("relation", "subject", "true target", "probability", "rank", "says")
    table = plain_table(*names, left=["relation", "says"], wraps=["subject", "true target"])
    for row in rows:
        asked = row["answer"] is not None
        table.add_row(
            user_text(row["relation"]),
            user_text(row["subject"]),
            user_text(row["target"], "bold" if row["known"] else ""),
            probability(row["probability"]) if asked else "–",
            str(row["rank"]) if asked else "–",
            token(row["answer"], limit=16) if asked else user_text(row["reason"]),
        )
    out = console()
    out.print(table)
    out.print()
    count = len(known.frame)
    more = "" if len(rows) == count else f"; {len(rows):,} are shown, --limit {count} shows all"
    out.print(f"{known.provenance.model} knows {len(known):,} of {count:,} facts{more}", style="dim")
