"""Contrasts: where the firings are that decide between two answers, and how many of them it takes."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes

from ..core.errors import counted
from ..interventions.contrasts import Contrast
from . import shapes
from .attribution import answer
from .figures import draws


@draws(Contrast)
def contrast(contrast: Contrast, ax: Axes | None = None) -> Axes:
    """Where the firings of a contrast are: their scores summed by layer and position, the tokens that differ in both.

    Args:
        contrast: from :func:`ffnmem.contrast`.
    """
    layers, positions = contrast.scores.shape[:2]
    summed = np.zeros((layers, positions))
    np.add.at(summed, (contrast.firings["layer"], contrast.firings["position"]), contrast.firings["score"])
    ax = shapes.axes_for(ax, (min(3.0 + 0.45 * positions, 16), min(2.4 + 0.16 * layers, 10)))
    shapes.heat(ax, summed, "logits, to first order", origin="lower")
    others = [contrast.counterfactual_tokens[other] if other >= 0 else "" for other in contrast.alignment]
    pairs = zip(contrast.tokens, others, strict=True)
    shapes.token_ticks(ax, [one if one == other else f"{one} /{other or ' –'}" for one, other in pairs])
    title = (
        f"{counted(len(contrast.firings), 'firing')} {'that decide' if contrast.goal else 'given'}: {answer(contrast)}"
    )
    return shapes.finish(ax, title, "fired at", "layer", whole="y")


@draws(Contrast)
def contrast_curve(contrast: Contrast, ax: Axes | None = None) -> Axes:
    """What the set of a contrast keeps, and what is lost without it, as it grew; marked, what is left after pruning.

    Args:
        contrast: from :func:`ffnmem.contrast`.
    """
    ax = shapes.axes_for(ax)
    grown = contrast.curve[(contrast.curve["step"] == "added") & (contrast.curve["size"] > 0)]
    for name, words in (("sufficiency", "kept by them alone"), ("necessity", "lost without them")):
        shapes.curve(ax, grown["size"], grown[name], words)
        (line,) = ax.get_lines()[-1:]
        ax.plot([len(contrast.firings)], [contrast.share(name)], "o", color=line.get_color())
    if contrast.goal is not None:
        shapes.line_at(ax, contrast.goal, "goal")
    return shapes.finish(
        ax, "As the set grew; dots: after pruning", "firings", "of the difference", percent="y", legend="beside"
    )
