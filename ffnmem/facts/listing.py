"""Facts chosen by relation and subject, and listings of them: what they say, their relations, what they lack."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import pandas as pd

from ..core.errors import InputError, counted, listed, quoted
from ..core.json_values import plain
from ..core.types import Count, FactFormat, NewFile, Seed, checked
from ..show.result import Result
from .fact import Fact
from .formats import load_facts, write_facts
from .targets import with_targets

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
            raise InputError(f"{source} has no relation {quoted(relation)}: {hint} (ffnmem facts lists them)")
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


@checked
@dataclass(frozen=True, eq=False, repr=False)
class FactList(Result):
    """Facts of a source. Made by :func:`ffnmem.facts.list_facts`.

    Attributes:
        source: where they are from.
        chosen: the facts.
    """

    heading = "source"
    tables: ClassVar = {
        "facts": "subject relation prompt target_true target_new|paraphrases neighbours id",
        "relations": "relation facts targets prompt",
        "lacks": "metric facts reason",
    }

    source: str
    chosen: tuple[Fact, ...]

    @property
    def verdict(self) -> str:
        """How many there are, and how many of them an edit can be judged by."""
        whole = sum("S" not in fact.lacks for fact in self.chosen)
        said = f"{counted(len(self.chosen), 'fact')} of {counted(len(self.relations), 'relation')}."
        return f"{said} {whole:,} of them have all that the score S of an edit (of ES, PS and NS) needs."

    @cached_property
    def facts(self) -> pd.DataFrame:
        """A row a fact, with its fields."""
        return pd.DataFrame([plain(fact.to_dict()) for fact in self.chosen])

    @cached_property
    def relations(self) -> pd.DataFrame:
        """A row a relation: how many facts and different true targets it has, and the first fact's prompt."""
        rows = self.facts[["relation", "target_true", "prompt"]].groupby("relation")
        named = rows.agg(facts=("prompt", "size"), targets=("target_true", "nunique"), prompt=("prompt", "first"))
        return named.reset_index()

    @cached_property
    def lacks(self) -> pd.DataFrame:
        """What cannot be measured of an edit of so many facts, and why; then what readers noted."""
        lacking = Counter((metric, reason) for fact in self.chosen for metric, reason in fact.lacks.items())
        noted = Counter(
            ("notes", kind) for fact in self.chosen for kind in {QUOTED.sub("…", note) for note in fact.notes}
        )
        rows = [
            (metric, count, len(self.chosen), reason)
            for (metric, reason), count in [*lacking.items(), *sorted(noted.items())]
        ]
        return pd.DataFrame(rows, columns=["metric", "facts", "of", "reason"])


@checked
def list_facts(
    source: str | Path,
    *,
    relation: str | None = None,
    subject: str | None = None,
    format: FactFormat | None = None,
    targets: bool = False,
    limit: Count | None = None,
    seed: Seed = 0,
    out: NewFile = None,
) -> FactList:
    """Facts of a source: what they say, their relations, what they lack.

    Files are JSON lines, JSON or Parquet: counterfact.json, known_1000.json, zsre_mend_eval.json, KnowEdit and other
    files of EasyEdit, or the project's own fields.

    Args:
        source: ``"atlas"`` (the facts of the embedded model), or a file of facts.
        relation: facts of this relation (landmark.city), or of all that begin so (landmark).
        subject: facts whose subject contains this text, in any case.
        format: of the file; default told by the first record.
        targets: give facts that lack them new targets, paraphrases and neighbours, from others of their relation, as
            :func:`ffnmem.facts.with_targets` does.
        limit: at most so many facts, drawn with the seed; default all.
        seed: of what is drawn.
        out: also write them into this file, as :func:`ffnmem.facts.write_facts` does: JSON lines of our own.

    Returns: The facts, the relations that they are of, and the metrics of an edit that cannot be computed of them.

    Raises:
        InputError: no such relation or subject, or a record that is no fact.
        FileError: a file that cannot be read, or be written.

    Example:
        $ ffnmem facts atlas --subject "Eiffel Tower"
        $ ffnmem facts atlas --relation landmark.city --json --full
        $ ffnmem facts atlas --relation landmark --targets --out edits.jsonl
    """
    every = load_facts(source, format)
    chosen = choose_facts(every, str(source), relation=relation, subject=subject, limit=limit, seed=seed)
    if targets:  # from all facts of the source
        ready = dict(zip(every, with_targets(every), strict=True))
        chosen = [ready[fact] for fact in chosen]
    if out is not None:
        write_facts(chosen, out)
    return FactList(str(source), tuple(chosen))
