"""Neurons by text: what their values write, or what fires them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from ..checked_files import reading
from ..errors import InputError, check_choice
from ..vocabulary import search_projection
from .writing import EXAMPLES, VALUES

if TYPE_CHECKING:
    from .store import Store

WHERE = ("values", "examples")


def search_store(store: Store, text: str, where: str, limit: int) -> pd.DataFrame:
    """Rows of projections (values) or of examples whose token contains ``text``; see :meth:`Store.search`."""
    check_choice("where", where, WHERE)
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
        found.append(rows[np.isin(rows["token_id"], wanted)])
    # One row a neuron and kind: how many of its examples are at such a token, and the best of them.
    hits = pd.concat(found, ignore_index=True)
    grouped = hits.groupby(["layer", "neuron", "kind"], observed=True, sort=False)
    best = grouped.first().reset_index()
    best.insert(3, "hits", grouped.size().to_numpy())
    best["token"] = store.contexts.strings(best["token_id"])
    order = best.assign(strength=best["activation"].abs()).sort_values(
        ["hits", "rank", "strength"], ascending=[False, True, False], kind="stable", ignore_index=True
    )
    return order.drop(columns="strength").head(limit)


def matching_ids(store: Store, text: str) -> np.ndarray:
    """Ids of tokens that contain the text, whatever its case."""
    strings = store.contexts.strings(range(store.corpus.vocab))
    return np.array([i for i, token in enumerate(strings) if text.casefold() in token.casefold()], np.int64)
