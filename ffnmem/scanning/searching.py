"""Neurons by text: what their values write and their keys read, or what fires them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ..core.checked_files import reading
from ..core.errors import counted
from ..core.sheets import Block, Column, Origin, Sheet, Table, Words, rows
from ..show.result import Result
from ..vocabulary.projections import WHY
from .contexts import Contexts
from .tables import NeuronTable


def search_examples(table: NeuronTable, contexts: Contexts, vocab: int, text: str) -> pd.DataFrame:
    """One row a neuron and kind: how many of its examples are at a token that contains ``text``, and the best of
    them; most hits first. ``table``: the store's examples, in the tokens of ``contexts``."""
    wanted = matching_ids(contexts, vocab, text)
    found = []
    for group in range(table.file.num_row_groups):
        with reading(table.path):
            examples = table.file.read_row_group(group).to_pandas()
        found.append(examples[np.isin(examples["token_id"], wanted)].rename(columns={"activation": "coefficient"}))
    hits = pd.concat(found, ignore_index=True)
    grouped = hits.groupby(["layer", "neuron", "kind"], observed=True, sort=False)
    best = grouped.first().reset_index()
    best.insert(3, "hits", grouped.size().to_numpy())
    best["token"] = contexts.strings(best["token_id"])
    order = best.assign(strength=best["coefficient"].abs()).sort_values(
        ["hits", "rank", "strength"], ascending=[False, True, False], kind="stable", ignore_index=True
    )
    return order.drop(columns="strength")


def matching_ids(contexts: Contexts, vocab: int, text: str) -> np.ndarray:
    """Ids of tokens that contain the text, whatever its case."""
    strings = contexts.strings(range(vocab))
    return np.array([i for i, token in enumerate(strings) if text.casefold() in token.casefold()], np.int64)


@dataclass(frozen=True, eq=False, repr=False)
class Found(Result):
    """What :meth:`Store.search` found, with what was asked."""

    text: str
    where: str
    rows: pd.DataFrame
    provenance: Mapping[str, Any]

    def summary(self) -> str:
        return f"{counted(len(self.rows), 'row')} for {self.text!r} in {self.where}"

    def sheet(self) -> Sheet:
        """Neurons and the token that matched; or that there is none, and where else to look."""
        found: Block = none_found(self.text, self.where)
        if len(self.rows):
            found = weight_table(self.rows) if self.where == "weights" else example_table(self.rows)
        return Sheet.of(found, Origin(self.provenance))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {"neurons": self.rows.to_dict("records"), "provenance": dict(self.provenance)}

    def to_frame(self) -> pd.DataFrame:
        """``rows``."""
        return self.rows


def weight_table(found: pd.DataFrame) -> Table:
    """Neurons whose values write a token, or whose keys read it."""
    shown = rows(
        Column("neuron", "neuron"), "why", Column("rank", "count"), Column("token", "token"),
        Column("score", "number", sign=True),
    )  # fmt: skip
    for row in found.itertuples():
        shown.add((row.layer, row.neuron), WHY[row.side, row.sign], row.rank, row.token, row.score)
    return shown.table()


def example_table(found: pd.DataFrame) -> Table:
    """Neurons that fire at a token."""
    shown = rows(
        Column("neuron", "neuron"), "kind", Column("examples", "count"), Column("best rank", "count"),
        Column("token", "token"), Column("coefficient", "number", sign=True),
    )  # fmt: skip
    for row in found.itertuples():
        place = (row.layer, row.neuron)
        shown.add(place, str(row.kind), row.hits, row.rank, row.token, row.coefficient)
    return shown.table()


def none_found(text: str, where: str) -> Words:
    """That a search found nothing, and where else to look."""
    looked, other = ("weights", "examples") if where == "weights" else ("examples", "weights")
    said = "is among the first that are written or read by" if where == "weights" else "fires"
    return Words.of(f"no token with {text!r} {said} any neuron of the store (looked in {looked}; try --where {other})")
