"""Neurons by text: what their values write, or what fires them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ..checked_files import reading
from ..core.choices import SEARCHED
from ..core.sheets import Block, Column, Origin, Sheet, Table, Words, rows
from ..errors import InputError, check_choice
from ..show.result import Result
from ..vocabulary import search_projection
from .writing import EXAMPLES, VALUES

if TYPE_CHECKING:
    from .store import Store


def search_store(store: Store, text: str, where: str, limit: int) -> pd.DataFrame:
    """Rows of projections (values) or of examples whose token contains ``text``; see :meth:`Store.search`."""
    check_choice("where", where, SEARCHED)
    if not text.strip():
        raise InputError("the text to search for is empty: give a part of a token, such as 'Paris'")
    if where == "values":
        return search_projection(store.checked(VALUES), text, side="value", limit=limit)
    wanted = matching_ids(store, text)
    table = store.opened(EXAMPLES)
    found = []
    for group in range(table.file.num_row_groups):
        with reading(table.path):
            rows = table.file.read_row_group(group).to_pandas()
        found.append(rows[np.isin(rows["token_id"], wanted)].rename(columns={"activation": "coefficient"}))
    # One row a neuron and kind: how many of its examples are at such a token, and the best of them.
    hits = pd.concat(found, ignore_index=True)
    grouped = hits.groupby(["layer", "neuron", "kind"], observed=True, sort=False)
    best = grouped.first().reset_index()
    best.insert(3, "hits", grouped.size().to_numpy())
    best["token"] = store.contexts.strings(best["token_id"])
    order = best.assign(strength=best["coefficient"].abs()).sort_values(
        ["hits", "rank", "strength"], ascending=[False, True, False], kind="stable", ignore_index=True
    )
    return order.drop(columns="strength").head(limit)


def matching_ids(store: Store, text: str) -> np.ndarray:
    """Ids of tokens that contain the text, whatever its case."""
    strings = store.contexts.strings(range(store.corpus.vocab))
    return np.array([i for i, token in enumerate(strings) if text.casefold() in token.casefold()], np.int64)


@dataclass(frozen=True, eq=False, repr=False)
class Found(Result):
    """What :meth:`Store.search` found, with what was asked."""

    store: Store
    text: str
    where: str
    rows: pd.DataFrame

    def summary(self) -> str:
        return f"{len(self.rows)} rows for {self.text!r} in {self.where}"

    def sheet(self) -> Sheet:
        """Neurons and the token that matched; or that there is none, and where else to look."""
        found: Block = none_found(self.text, self.where)
        if len(self.rows):
            found = value_table(self.rows) if self.where == "values" else example_table(self.rows)
        return Sheet.of(found, Origin(self.store.provenance))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {"neurons": self.rows.to_dict("records"), "provenance": self.store.provenance}

    def to_frame(self) -> pd.DataFrame:
        """``rows``."""
        return self.rows


def value_table(found: pd.DataFrame) -> Table:
    """Neurons whose values write a token."""
    shown = rows(
        Column("neuron", "neuron"), "sign", Column("rank", "count"), Column("token", "token"),
        Column("score", "number", sign=True),
    )  # fmt: skip
    for row in found.itertuples():
        shown.add((row.layer, row.neuron), row.sign, row.rank, row.token, row.score)
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
    looked, other = ("values", "examples") if where == "values" else ("examples", "values")
    said = "is promoted or suppressed by" if where == "values" else "fires"
    return Words.of(f"no token with {text!r} {said} any neuron of the store (looked in {looked}; try --where {other})")
