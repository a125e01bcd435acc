"""What a neuron writes and reads, in tokens; and some memories by one of their numbers."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes

from ..core.errors import InputError, check_choice
from ..core.token_text import visible
from ..core.types import checked
from . import shapes
from .attribution import name_memories


@checked
def tokens(projection: pd.DataFrame, ax: Axes | None = None, *, top: int = 8, title: str = "") -> Axes:
    """The tokens that one neuron's value promotes and suppresses, as bars of their scores.

    Args:
        projection: of one neuron, from :func:`ffnmem.project`; the logit lens' where it has several.
        top: tokens of each sign. title: above it.
    """
    rows = projection[(projection["side"] == "value") & (projection["rank"] <= top)]
    neurons = len(rows[["layer", "neuron"]].drop_duplicates())
    if neurons != 1:
        raise InputError(f"the tokens of one neuron's value are drawn, not of {neurons or 'none'}")
    rows = rows[rows["lens"] == rows["lens"].iloc[0]].sort_values("score", ascending=False)
    ax = shapes.axes_for(ax, (6, 0.8 + shapes.PER_ROW * len(rows)))
    shapes.bars(ax, [visible(text, 24) for text in rows["token"]], rows["score"])
    return shapes.finish(ax, title or "What its value promotes and suppresses", "score")


@checked
def memories(table: pd.DataFrame, column: str, ax: Axes | None = None, *, label: str = "", title: str = "") -> Axes:
    """Some memories, each with a bar of one of its numbers.

    Args:
        table: with the columns layer and neuron, such as :func:`ffnmem.vocabulary.promoters` gives.
        column: the number. label: of its axis; default the column's name. title: above it.
    """
    for name in ("layer", "neuron", column):
        check_choice("column", name, list(table.columns))
    ax = shapes.axes_for(ax, (6, 0.8 + shapes.PER_ROW * len(table)))
    shapes.bars(ax, name_memories(table), table[column])
    return shapes.finish(ax, title or f"{len(table):,} memories by {label or column}", label or column)
