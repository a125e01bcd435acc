"""``ffnmem facts``: what a model may know."""

from __future__ import annotations

import click

import ffnmem as fm

from ..core.errors import InputError, counted
from ..core.types import FACT_FORMATS, FACT_FORMATS_WRITTEN
from ..facts.listing import choose_among, choose_facts, list_facts, list_lacks, list_relations
from ..show.records import emit
from . import click_options as options
from .click_guard import Command, note
from .click_options import COUNT, ModelChoice, argument, file_to_write, option
from .progress import late_bar

SHOWN = 20


@click.command(cls=Command, short_help="List facts: subject, relation, prompt and true target.")
@argument("source", default="atlas")
@option(
    "--relation", metavar="NAME", help="Facts of this relation (landmark.city), or of all that begin so (landmark)."
)
@option("--subject", metavar="TEXT", help="Facts whose subject contains this text, in any case.")
@option(
    "--limit",
    type=COUNT,
    metavar="N",
    help=f"At most N rows; by default {SHOWN} facts in a table, and all with --json, --csv or --relations.",
)
@option("--relations", is_flag=True, help="Count the facts of each relation instead of listing them.")
@option("--lacks", is_flag=True, help="Count what the records lack: which metrics of an edit cannot be computed.")
@option(
    "--known", metavar="MODEL", help="Ask MODEL for them, and list what it says: atlas, a folder, or a Hugging Face id."
)
@option(
    "--format",
    "layout",
    type=click.Choice(FACT_FORMATS),
    metavar="FORMAT",
    help=f"Of the file: {', '.join(FACT_FORMATS)}.  [default: told by the first record]",
)
@option(
    "--targets",
    is_flag=True,
    help="Give facts that lack them new targets, paraphrases and neighbours, from others of their relation.",
)
@option(
    "-o",
    "--out",
    callback=file_to_write(None),  # an older one is a data set, for all that can be told of JSON
    metavar="FILE",
    help="Write the facts into this new file, and print its path.",
)
@option(
    "--to",
    type=click.Choice(FACT_FORMATS_WRITTEN),
    metavar="FORMAT",
    help=f"Of --out: {', '.join(FACT_FORMATS_WRITTEN)}.  [default: ffnmem]",
)
@options.output
def facts(
    source: str,
    relation: str | None,
    subject: str | None,
    limit: int | None,
    relations: bool,
    lacks: bool,
    known: str | None,
    layout: str | None,
    targets: bool,
    out: str | None,
    to: str | None,
    form: str,
) -> None:
    """List the facts of SOURCE: atlas (those of the embedded model, the default), a file of facts, or ParaRel's folder.

    Files are JSON lines, JSON or Parquet: counterfact.json, known_1000.json, zsre_mend_eval.json, KnowEdit and other
    files of EasyEdit, MQuAKE, triples with templates, or the project's own fields. --out writes them in another format,
    and tells what that has no place for.

    \b
    Examples
      ffnmem facts --relations
      ffnmem facts --subject "Eiffel Tower"
      ffnmem facts --relation landmark.city --json > cities.json
      ffnmem facts --relation landmark --known atlas --limit 10
      ffnmem facts --lacks
      ffnmem facts --relation landmark --to knowedit -o landmarks.json
      ffnmem facts --relation landmark --targets -o edits.jsonl

    With --targets the table has the new targets and counts paraphrases and neighbours, and says what facts still lack.
    --json and --csv have every field of a fact, with its paraphrases, neighbours and false targets; in CSV, lists are
    JSON arrays. With --known they have what the model says: its answer, the true target's probability and rank.
    """
    if relations + lacks + (known is not None) + (out is not None) > 1:
        raise InputError("--relations, --lacks, --known and --out exclude each other: give one of them")
    check_out(out, to, form)
    every = choose_facts(source, layout)
    found = choose_among(every, source, relation=relation, subject=subject)
    if targets:  # from all facts of the source
        ready = dict(zip(every, fm.facts.with_targets(every), strict=True))
        found = [ready[fact] for fact in found]
    if out is not None:
        click.echo(fm.facts.write_facts(found[:limit], out, to or "ffnmem"))
        note(f"{counted(len(found[:limit]), 'fact')} written")
        return
    rows = SHOWN if limit is None and form == "table" else limit
    if known is not None:
        model = ModelChoice(known).load()
        with late_bar() as report:
            said = fm.facts.filter_known(model, found, progress=report)
        emit(
            said,
            form,
            sheet=lambda: said.sheet(rows, f", --limit {len(said.frame)} shows all"),
            data=lambda: {**said.to_dict(), "facts": said.to_dict()["facts"][:rows]},
            frame=lambda: said.frame[:rows],
        )
        return
    listing = list_lacks(found, limit) if lacks else list_relations(found, limit) if relations else None
    listing = listing or list_facts(found, rows, targets=targets)
    emit(listing, form, data=lambda: listing.records)


def check_out(out: str | None, to: str | None, form: str) -> None:
    """Raise InputError unless the file to write is all that is asked for."""
    if out is None:
        if to is not None:
            raise InputError(f"--to {to} needs a file to write: name it with --out FILE")
        return
    if form != "table":
        raise InputError(f"--out lists nothing: leave out --{form}")
