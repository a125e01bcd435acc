"""Neurons by text: what their values write and their keys read, or what fires them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ..core.sheets import Block, Column, Origin, Sheet, Table, Words
from ..show.result import Result
from ..vocabulary.projections import WHY
from .contexts import Contexts
from .neuron_sides import NEGATIVE, POSITIVE


def search_examples(layers: Iterable[pd.DataFrame], contexts: Contexts, vocab: int, text: str) -> pd.DataFrame:
    """One row a neuron and kind: how many of its examples are at a token that contains ``text``, and the best of
    them; most hits first. ``layers``: the examples of each layer, in the tokens of ``contexts``."""
    wanted = matching_ids(contexts, vocab, text)
    found = {index: examples[np.isin(examples["token_id"], wanted)] for index, examples in enumerate(layers)}
    hits = pd.concat(found, names=["layer"]).reset_index("layer")
    grouped = hits.groupby(["layer", "neuron", "kind"], observed=True, sort=False)
    best = grouped.first().reset_index()
    best.insert(3, "hits", grouped.size().to_numpy())
    best["token"] = contexts.strings(best["token_id"])
    order = best.assign(strength=best["coefficient"].abs()).sort_values(
        ["hits", "rank", "strength"], ascending=[False, True, False], kind="stable", ignore_index=True
    )
    return order.drop(columns="strength")


def with_stronger_side(found: pd.DataFrame, stats: pd.DataFrame) -> pd.DataFrame:
    """What a search in weights found, with the sign of each neuron's stronger side (``stronger``)."""
    stronger = np.where(-stats["min"] > stats["max"], NEGATIVE, POSITIVE)
    signs = stats[["layer", "neuron"]].assign(stronger=stronger)
    merged = found.merge(signs, "left", ["layer", "neuron"])
    merged.attrs = found.attrs
    return merged


def matching_ids(contexts: Contexts, vocab: int, text: str) -> np.ndarray:
    """Ids of tokens that contain the text, whatever its case."""
    strings = contexts.strings(range(vocab))
    return np.array([i for i, token in enumerate(strings) if text.casefold() in token.casefold()], np.int64)


@dataclass(frozen=True, eq=False, repr=False)
class Found(Result):
    """What :meth:`Store.search` found, with what was asked."""

    main = "neurons"
    in_json = "neurons"
    in_repr = "text where neurons"

    text: str
    where: str
    neurons: pd.DataFrame
    provenance: Mapping[str, Any]

    def sheet(self) -> Sheet:
        """Neurons and the token that matched; or that there is none, and where else to look."""
        found: Block = none_found(self.text, self.where)
        if len(self.neurons):
            found = weight_table(self.neurons) if self.where == "weights" else example_table(self.neurons)
        return Sheet.of(found, Origin(self.provenance))


def weight_table(found: pd.DataFrame) -> Table:
    """Neurons whose values write a token, or whose keys read it."""
    why = Column("why", of=lambda row: WHY[row["side"], row["sign"]])
    stronger = Column("on its stronger side", of=in_effect) if "stronger" in found else None
    return Table.of(found, "neuron", why, stronger, "rank token score")


def in_effect(row: Mapping[str, Any]) -> str:
    """What a gated neuron does with a token that its value writes where it fires most strongly; else the sign there."""
    if row["side"] != "value":
        return str(row["stronger"])
    promotes = (row["sign"] == "promoted") == (row["stronger"] == POSITIVE)
    return f"{'promotes' if promotes else 'suppresses'}, {row['stronger']}"


def example_table(found: pd.DataFrame) -> Table:
    """Neurons that fire at a token."""
    counts = (Column("examples", "count", of="hits"), Column("best rank", "count", of="rank"))
    side = Column("side", of=lambda row: NEGATIVE if row["coefficient"] < 0 else POSITIVE)
    return Table.of(found, "neuron kind", side, *counts, "token", Column("coefficient", "number", sign=True))


def none_found(text: str, where: str) -> Words:
    """That a search found nothing, and where else to look."""
    looked, other = ("weights", "examples") if where == "weights" else ("examples", "weights")
    said = "is among the first that are written or read by" if where == "weights" else "fires"
    return Words.of(f"no token with {text!r} {said} any neuron of the store (looked in {looked}; try --where {other})")
