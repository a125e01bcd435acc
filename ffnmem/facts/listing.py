"""Facts chosen by relation and subject, and listings of them: what they say, their relations, what they lack."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import groupby
from typing import TYPE_CHECKING, Any

from ..core.errors import InputError, counted, listed, quoted
from ..core.sheets import Column, Sheet, Span, Table, Words
from ..show.result import Result
from .fact import Fact

if TYPE_CHECKING:
    import pandas as pd

QUOTED = re.compile(r"(['\"]).*\1", re.DOTALL)
"""A text in a note, by which two notes of one kind differ."""


def choose_facts(
    every: Sequence[Fact],
    source: str,
    *,
    relation: str | None = None,
    subject: str | None = None,
    limit: int | None = None,
    seed: int = 0,
) -> list[Fact]:
    """Those of some facts that are asked for, in their order.

    Args:
        every: all facts of a source. source: its name in messages.
        relation: of this relation, or of a family of them: ``"landmark"`` for all that begin so.
        subject: whose subject contains this, in any case.
        limit: at most so many, drawn with the ``seed``.

    Raises: InputError where there are none.
    """
    chosen = list(every)
    if relation is not None:
        known = sorted({fact.relation for fact in every})
        chosen = [f for f in chosen if f.relation == relation or f.relation.startswith(relation.rstrip(".") + ".")]
        if not chosen:
            close = get_close_matches(relation, known, n=3, cutoff=0.5)
            hint = f"did you mean {' or '.join(close)}?" if close else f"it has {listed(known)}"
            raise InputError(f"{source} has no relation {quoted(relation)}: {hint} (--count relations lists them)")
    if subject is not None:
        within = chosen
        chosen = [f for f in within if subject.casefold() in f.subject.casefold()]
        if not chosen:
            close = get_close_matches(subject, sorted({f.subject for f in within}), n=3)
            hint = f": did you mean {' or '.join(close)}?" if close else "; give a part of its name"
            where = "" if relation is None else f" under {relation}"
            raise InputError(f"no subject of {source}{where} contains {quoted(subject)}{hint}")
    return draw_facts(chosen, limit, seed)


def draw_facts(facts: Sequence[Fact], limit: int | None, seed: int) -> list[Fact]:
    """At most so many of some facts, drawn with the seed, in their order."""
    if limit is None or limit >= len(facts):
        return list(facts)
    return [facts[i] for i in sorted(random.Random(seed).sample(range(len(facts)), limit))]


def shuffle_facts(facts: Sequence[Fact], seed: int) -> list[Fact]:
    """Facts in an order drawn with the seed."""
    return random.Random(seed).sample(list(facts), len(facts))


@dataclass(frozen=True, repr=False)
class Listing(Result):
    """Rows about facts.

    Attributes:
        records: as plain values. table: what is shown of them. counts: how many of how many they are, in words.
    """

    records: list[dict[str, Any]]
    table: Table
    counts: str

    def summary(self) -> str:
        return self.counts

    def sheet(self) -> Sheet:
        return Sheet.of(self.table, Words.of(self.counts, "soft"))

    def to_dict(self, top: int | None = None) -> dict[str, Any]:
        return {"rows": self.records[:top]}

    def to_frame(self) -> pd.DataFrame:
        import pandas as pd

        return pd.DataFrame(self.records)


def list_facts(found: Sequence[Fact], limit: int | None = None, *, targets: bool = False) -> Listing:
    """The first facts: relation, prompt, true target; all of their fields as records.

    With ``targets`` also what an edit of each needs: the new target, and how many paraphrases and neighbours there are;
    and how many of all facts lack one of these.
    """
    chosen = found[:limit]
    rows = [
        {
            "relation": fact.relation,
            "prompt": fact.text,
            "true target": Span(fact.target_true, "strong"),
            "new target": fact.target_new or "–",
            "paraphrases": len(fact.paraphrases),
            "neighbours": len(fact.prompts_about_neighbours),
        }
        for fact in chosen
    ]
    own = (Column("new target", wraps=True), Column("paraphrases", "count"), Column("neighbours", "count"))
    columns = ("relation", Column("prompt", wraps=True), Column("true target", wraps=True), *(own if targets else ()))
    more = "" if len(chosen) == len(found) else f"; --limit {len(found)} shows all, --relation and --subject choose"
    if targets:
        without = {
            "no new target": sum(not fact.target_new for fact in found),
            "no paraphrases": sum(not fact.paraphrases for fact in found),
            "no neighbours": sum(not fact.prompts_about_neighbours for fact in found),
        }
        lacking = [f"{count:,} with {what}" for what, count in without.items() if count]
        more = f"; {', '.join(lacking) or 'each has new target, paraphrases and neighbours'}{more}"
    counts = f"{len(chosen):,} of {counted(len(found), 'fact')}{more}"
    return Listing([fact.to_dict() for fact in chosen], Table.of(rows, *columns), counts)


def list_relations(found: Sequence[Fact], limit: int | None = None) -> Listing:
    """One row a relation: relation, facts, targets (how many different ones), prompt (the first fact's template)."""
    records: list[dict[str, Any]] = []
    for name, group in groupby(sorted(found, key=lambda fact: fact.relation), key=lambda fact: fact.relation):
        facts = list(group)
        targets = len({fact.target_true for fact in facts})
        records.append({"relation": name, "facts": len(facts), "targets": targets, "prompt": facts[0].prompt})
    records = records[:limit]
    counts = f"{counted(len(records), 'relation')}, {sum(record['facts'] for record in records):,}"
    columns = (Column("facts", "count"), Column("targets", "count"), Column("prompt", wraps=True))
    return Listing(records, Table.of(records, "relation", *columns), f"{counts} of {counted(len(found), 'fact')}")


def list_lacks(found: Sequence[Fact], limit: int | None = None) -> Listing:
    """One row a metric and reason: metric, facts (that lack it), of (all facts), reason; then readers' notes."""
    lacking = Counter((metric, reason) for fact in found for metric, reason in fact.lacks.items())
    noted = Counter(("notes", kind) for fact in found for kind in {QUOTED.sub("…", note) for note in fact.notes})
    records = [
        {"metric": metric, "facts": count, "of": len(found), "reason": reason}
        for (metric, reason), count in [*lacking.items(), *sorted(noted.items())][:limit]
    ]
    whole = sum("S" not in fact.lacks for fact in found)
    columns = (Column("cannot be computed", of="metric"), "facts", Column("because", of="reason", wraps=True))
    counts = f"{whole:,} of {len(found):,} facts have all that S, the mean of ES, PS and NS, needs"
    return Listing(records, Table.of(records, *columns), counts)
