"""What a neuron writes and reads, in tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pandas as pd

from ..core.errors import InputError, check_choice
from ..core.token_text import visible
from ..core.types import checked
from .attribution import axes_for, ink, sign_colours, titled

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@checked
def tokens(projection: pd.DataFrame, ax: Axes | None = None, *, top: int = 8, title: str = "") -> Axes:
    """The tokens that one neuron's value promotes and suppresses, as bars of their scores.

    Args:
        projection: of one neuron, from :func:`ffnmem.project`; the logit lens' where it has several.
        ax: where to draw; default a new figure.
        top: tokens of each sign. title: above it.

    Raises: InputError: none of a value there, or of several neurons.
    """
    found = projection[(projection["side"] == "value") & (projection["rank"] <= top)]
    neurons = len(found[["layer", "neuron"]].drop_duplicates())
    if neurons != 1:
        raise InputError(f"the tokens of one neuron's value are drawn, not of {neurons or 'none'}")
    found = found[found["lens"] == found["lens"].iloc[0]].sort_values("score", ascending=False)
    title = title or "What its value promotes and suppresses"
    return bars([visible(text, 24) for text in found["token"]], found["score"], "score", title, ax)


@checked
def memories(found: pd.DataFrame, column: str, ax: Axes | None = None, *, label: str = "", title: str = "") -> Axes:
    """Some memories, each with a bar of one of its numbers.

    Args:
        found: with the columns layer and neuron, such as :func:`ffnmem.vocabulary.promoters` gives.
        column: the number. label: of its axis; default the column's name. title: above it.
        ax: where to draw; default a new figure.

    Raises: InputError: no such column.
    """
    for name in ("layer", "neuron", column):
        check_choice("column", name, list(found.columns))
    names = [f"{layer}.{neuron}" for layer, neuron in zip(found["layer"], found["neuron"], strict=True)]
    return bars(names, found[column], label or column, title or f"{len(found):,} memories by {label or column}", ax)


def bars(names: Sequence[str], values: pd.Series, label: str, title: str, ax: Axes | None) -> Axes:
    """A bar a name, the first one above."""
    ax = axes_for(ax, (6, 0.8 + 0.26 * len(names)))
    places = range(len(names))
    ax.barh(places, values, color=sign_colours(values))
    ax.set_yticks(places, names, parse_math=False)
    ax.invert_yaxis()
    ax.axvline(0, color=ink(), linewidth=0.8)
    ax.set_xlabel(label)
    return titled(ax, title)
