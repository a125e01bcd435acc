"""What a neuron writes and reads, in tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from ..core.arguments import public
from ..core.token_text import visible
from .attribution import axes_for, ink, sign_colours, titled

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@public
def tokens(projection: pd.DataFrame, ax: Axes | None = None, *, top: int = 8, title: str = "") -> Axes:
    """The tokens that one neuron's value promotes and suppresses, as bars of their scores.

    Args:
        projection: of one neuron, from :func:`ffnmem.project`; the logit lens' where it has several.
        ax: where to draw; default a new figure.
        top: tokens of each sign. title: above it.
    """
    found = projection[(projection["side"] == "value") & (projection["rank"] <= top)]
    found = found[found["lens"] == found["lens"].iloc[0]].sort_values("score", ascending=False)
    ax = axes_for(ax, (6, 0.8 + 0.26 * len(found)))
    places = range(len(found))
    ax.barh(places, found["score"], color=sign_colours(found["score"]))
    ax.set_yticks(places, [visible(text, 24) for text in found["token"]], parse_math=False)
    ax.invert_yaxis()
    ax.axvline(0, color=ink(), linewidth=0.8)
    ax.set_xlabel("score")
    return titled(ax, title or "What its value promotes and suppresses")
