"""``ffnmem facts``: what a model may know; and the facts of a source that other commands choose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter

import ffnmem as fm

from ..core.errors import InputError, counted
from ..core.types import FactFormat, KnownBy
from ..show.records import emit, write
from .guard import note
from .options import Count, FactSource, ModelChoice, NewFile, Output, ReaderChoice, option_group
from .progress import show_progress

if TYPE_CHECKING:
    from ..facts.fact import Fact
    from ..models.model import Model

SHOWN = 20

facts = App(name="facts")


@option_group
class Chosen:
    """Which facts of a source.

    Attributes:
        relation: Facts of this relation (landmark.city), or of all that begin so (landmark).
        subject: Facts whose subject contains this text, in any case.
        format: Of the file. [default: told by the first record]
        targets: Give facts that lack them new targets, paraphrases and neighbours, from others of their relation.
    """

    relation: str | None = None
    subject: str | None = None
    format: FactFormat | None = None
    targets: bool = False

    def choose(self, source: str) -> list[Fact]:
        """The facts of a source that are asked for."""
        from ..facts.listing import choose_facts

        every = fm.load_facts(source, self.format)
        chosen = choose_facts(every, source, relation=self.relation, subject=self.subject)
        if not self.targets:
            return chosen
        ready = dict(zip(every, fm.facts.with_targets(every), strict=True))  # from all facts of the source
        return [ready[fact] for fact in chosen]


@facts.default
def list_chosen(
    source: FactSource = "atlas",
    /,
    *,
    chosen: Chosen = Chosen(),
    count: Literal["relations", "lacks"] | None = None,
    limit: Count | None = None,
    output: Output = Output(),
) -> None:
    """List facts: subject, relation, prompt and true target.

    Files are JSON lines, JSON or Parquet: counterfact.json, known_1000.json, zsre_mend_eval.json, KnowEdit and other
    files of EasyEdit, or the project's own fields.

    Examples
      ffnmem facts --count relations
      ffnmem facts --subject "Eiffel Tower"
      ffnmem facts --relation landmark.city --json > cities.json

    With --targets the table has the new targets and counts paraphrases and neighbours, and says what facts still lack.
    --json and --csv have every field of a fact, with its paraphrases, neighbours and false targets; in CSV, lists are
    JSON arrays.

    Args:
        count: Instead of listing them, count the facts of each relation, or what the records lack: which metrics of
            an edit cannot be computed.
        limit: At most N rows. [default: 20 facts in a table, and all with --json, --csv or --count]
    """
    from ..facts.listing import list_facts, list_lacks, list_relations

    found = chosen.choose(source)
    if count is None:
        rows = SHOWN if limit is None and output.form == "table" else limit
        listing = list_facts(found, rows, targets=chosen.targets)
    else:
        listing = (list_relations if count == "relations" else list_lacks)(found, limit)
    emit(listing, output.form, data=lambda: listing.records)


@facts.command
def known(
    source: FactSource = "atlas",
    /,
    *,
    chosen: Chosen = Chosen(),
    limit: Count | None = None,
    model: ReaderChoice = ReaderChoice(),
    output: Output = Output(),
) -> None:
    """Ask a model for facts, and list those that it knows.

    Examples
      ffnmem facts known --relation landmark --limit 10

    --json and --csv have every field of a fact, and what the model says: its answer, the true target's probability and
    rank.

    Args:
        limit: Ask for the first N facts only. [default: all, of which a table shows 20]
    """
    rows = SHOWN if limit is None and output.form == "table" else limit
    listed = chosen.choose(source)[:limit]
    with show_progress() as report:
        found = fm.facts.filter_known(model.load(), listed, progress=report)
    emit(
        found,
        output.form,
        sheet=lambda: found.sheet(rows, f", --limit {len(found.frame)} shows all"),
        data=lambda: {**found.to_dict(), "facts": found.to_dict()["facts"][:rows]},
        frame=lambda: found.frame[:rows],
    )


@facts.command(name="write")
def write_chosen(
    source: FactSource = "atlas",
    /,
    *,
    out: Annotated[NewFile, Parameter(alias="-o")],
    chosen: Chosen = Chosen(),
    limit: Count | None = None,
) -> None:
    """Write facts into a new file of JSON lines in the project's own format, and print its path.

    Examples
      ffnmem facts write --relation landmark -o landmarks.jsonl
      ffnmem facts write --relation landmark --targets -o edits.jsonl

    Args:
        out: The new file.
        limit: At most N facts. [default: all]
    """
    written = chosen.choose(source)[:limit]
    write(f"{fm.facts.write_facts(written, out)}\n")
    note(f"{counted(len(written), 'fact')} written")


@option_group
class FactChoice:
    """Which facts of a source.

    Attributes:
        relation: Facts of this relation, or of all that begin so.
        limit: At most N facts, drawn with the seed. [default: all]
        known: Only facts that the model says by itself.
    """

    relation: Annotated[str | None, Parameter(metavar="NAME")] = None
    limit: Count | None = None
    known: bool = False

    def choose(
        self, every: Sequence[Fact], source: str, model: ModelChoice, seed: int, *, known_by: KnownBy = "target"
    ) -> tuple[Model, list[Fact]]:
        """The model, and those of all facts of a source that are asked for.

        What the model knows is asked as :func:`ffnmem.facts.filter_known` does by ``known_by``. Raises InputError where
        there are none.
        """
        from ..facts.listing import choose_facts, draw_facts

        limit = None if self.known else self.limit
        facts = choose_facts(every, source, relation=self.relation, limit=limit, seed=seed)
        loaded = model.load()
        if not self.known:
            return loaded, facts
        with show_progress() as report:
            known = fm.facts.filter_known(loaded, facts, known_by=known_by, progress=report)
        if not known.facts:
            raise InputError(
                f"{loaded.name} knows none of the {counted(len(facts), 'fact')}: leave out --known, or choose others"
            )
        chosen = draw_facts(known.facts, self.limit, seed)
        some = "" if len(chosen) == len(known) else f"; {len(chosen):,} of these are drawn"
        note(f"{loaded.name} knows {len(known):,} of {counted(len(facts), 'fact')}{some}")
        return loaded, chosen
