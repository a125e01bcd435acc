"""Which memories an answer depends on: attributions, paths, causal scores, faithfulness and ablations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from ..core.errors import counted
from ..core.token_text import visible
from ..core.types import Count, checked
from ..interventions.ablating import Ablation
from ..prompts.answer_text import words_behind
from ..prompts.attribution import Attribution
from ..prompts.causal import CausalScores
from ..prompts.firings import Firings
from ..prompts.paths import PathAttribution
from ..prompts.sufficiency import Faithfulness
from . import shapes
from .figures import draws


@draws(Attribution)
def layers(attribution: Attribution, ax: Axes | None = None) -> Axes:
    """What attention and the FFN of each layer write towards the target, and the sum so far, in logits.

    The bars of the FFN include its output bias; the line runs from the embedding (with the position's) through the sum
    after each layer to the logit, with the final bias.

    Args:
        attribution: of one position, from :func:`ffnmem.attribute`.
    """
    attribution = attribution.total
    parts = attribution.components
    by_layer = parts.dropna(subset="layer").pivot_table("logit", "layer", "component", aggfunc="sum", sort=False)
    attention, ffn = by_layer["attention"], by_layer.drop(columns="attention").sum(axis=1)
    start = parts.loc[parts["component"].isin(["embedding", "position"]), "logit"].sum()
    end = parts.loc[parts["component"] == "final bias", "logit"].sum()
    ax = shapes.axes_for(ax, (8, 4.2))
    colours = {"attention": shapes.ATTENTION, "FFN": shapes.FFN}
    shapes.groups(ax, [int(layer) for layer in by_layer.index], {"attention": attention, "FFN": ffn}, colours)
    sums = np.cumsum([start, *(attention + ffn), end])
    shapes.curve(ax, range(-1, len(ffn) + 1), sums, "sum so far", color=shapes.ink(), marker="o")
    shapes.line_at(ax, 0)
    names = ["embedding", *(text.get_text() for text in ax.get_xticklabels()), "logit"]
    ax.set_xticks([-1, *ax.get_xticks(), len(ffn)], names)
    ax.set_xlim(-1.5, len(ffn) + 0.5)
    title = f"The logit of {answer(attribution)}, layer by layer"
    return shapes.finish(ax, title, "layer", f"logit{attribution.provenance.before_cap}", legend="inside")


@draws(PathAttribution, CausalScores)
def map(paths: PathAttribution | CausalScores, ax: Axes | None = None) -> Axes:
    """What the memories of each layer, firing at each position, add to the answer, as a heat map.

    Args:
        paths: from :func:`ffnmem.attribute_paths` or :func:`ffnmem.causal_scores`.
    """
    values = paths.map.cpu().numpy()
    rows, positions = values.shape
    ax = shapes.axes_for(ax, (min(2.4 + 0.52 * positions, 24), min(2.4 + 0.38 * rows, 6)))
    along_paths = isinstance(paths, PathAttribution)
    shapes.heat(ax, values, f"{paths.column}{words_behind(paths, along_paths)}", origin="lower")
    shapes.token_ticks(ax, paths.tokens)
    what = "Where memories wrote" if along_paths else "What the firings are worth for"
    return shapes.finish(ax, f"{what} {answer(paths)}", "position", "layer", whole="y")


@draws(Attribution, PathAttribution, CausalScores)
def neurons(
    attribution: Attribution | PathAttribution | CausalScores,
    ax: Axes | None = None,
    top: Count = 20,
) -> Axes:
    """The neurons that write most towards (blue) or against (orange) the target, as bars, largest first.

    Args:
        attribution: of one position, from :func:`ffnmem.attribute`; or from :func:`ffnmem.attribute_paths` or
            :func:`ffnmem.causal_scores`, and then a bar is one neuron firing at one position.
        top: how many neurons.
    """
    rows = attribution.top(top)
    names, column, unit = name_memories(rows), "logit", attribution.provenance.before_cap
    if isinstance(attribution, Firings):
        column, unit = attribution.column, words_behind(attribution, isinstance(attribution, PathAttribution))
        names = [f"{name} at {visible(token, shapes.LABEL)}" for name, token in zip(names, rows["token"], strict=True)]
    title = f"The memories behind {answer(attribution)}"
    ax = shapes.axes_for(ax, (6, 0.9 + shapes.PER_ROW * len(rows)))
    shapes.bars(ax, names, rows[column])
    return shapes.finish(ax, title, f"{column}{unit}", "memory (layer.neuron)")


@checked
def components(attribution: Attribution, ax: Axes | None = None) -> Axes:
    """All that adds up to a logit as a waterfall: each component, in the order of the residual stream, starts where the
    last one ends; the last bar is the sum.

    Args:
        attribution: of one position, from :func:`ffnmem.attribute`.
    """
    attribution = attribution.total
    parts = attribution.components
    logits, places = parts["logit"].to_numpy(), np.arange(len(parts))
    numbers = parts["layer"].astype("string").fillna("")
    names = [f"{name} {layer}".strip() for name, layer in zip(parts["component"], numbers, strict=True)]
    ax = shapes.axes_for(ax, (7, 1.0 + shapes.PER_ROW * (len(parts) + 1)))
    ends = logits.cumsum()
    colours = [*shapes.sign_colours(logits), shapes.GREY]  # as edges too, so that the smallest component still shows
    style = {"left": [*(ends - logits), 0.0], "color": colours, "edgecolor": colours, "linewidth": 0.9}
    shapes.bars(ax, [*names, "sum"], [*logits, ends[-1]], **style)
    ax.vlines(ends, places + 0.36, places + 0.64, color=shapes.ink(), linewidth=0.8)
    ax.use_sticky_edges = False  # else bars that start where another ended would touch the frame
    label = f"logit{attribution.provenance.before_cap} (the sum misses the model's by {attribution.error:.0e})"
    return shapes.finish(ax, f"All that adds up to the logit of {answer(attribution)}", label)


@draws(Faithfulness)
def faithfulness(result: Faithfulness, ax: Axes | None = None) -> Axes:
    """How much of an answer the first firings of a ranking keep, by how many they are (logarithmic).

    Beside it what all others keep (0 is best), and as many at random, with the range of their draws.

    Args:
        result: from :func:`ffnmem.faithfulness`.
    """
    frame = result.curve
    ax = shapes.axes_for(ax, (7, 4.2))
    for column, colour, label, low, high in (
        ("faithfulness", shapes.BLUE, "these kept", "", ""),
        ("completeness", shapes.ORANGE, "all others kept", "", ""),
        ("random", shapes.GREY, "as many at random", "random_low", "random_high"),
    ):
        if column in frame:
            style = {"color": colour, "marker": "."}
            shapes.curve(ax, frame["size"], frame[column], label, frame.get(low), frame.get(high), **style)
    for share in (0, 1):
        shapes.line_at(ax, share, linestyle=":")
    ax.set_xscale("log")
    return shapes.finish(
        ax, f"Is it enough for {answer(result)}?", "firings kept", "share of the answer", legend="inside"
    )


NAMED = 8  # neurons that are furthest from the line, and as many with the largest total effect, carry their names
NAME_SIZE = np.array([0.1, 0.045])  # of a name, as shares of the axes


@draws(Ablation)
def ablation(ablation: Ablation, ax: Axes | None = None) -> Axes:
    """The total effect of each neuron on the logit against its direct one, and a line where both are equal.

    Blue: both effects have the same sign; orange: direct attribution points the wrong way. The eight neurons furthest
    from the line, those of opposite signs first, and the eight with the largest total effect are named where there is
    room.

    Args:
        ablation: from :func:`ffnmem.ablate`.
    """
    table = ablation.neurons.astype({"direct": float, "logit": float})
    points = table[["direct", "logit"]].to_numpy()
    low, high = points.min(initial=0.0), points.max(initial=0.0)
    margin = 0.08 * ((high - low) or 1.0)
    ends = (low - margin, high + margin)
    ax = shapes.axes_for(ax, (6, 5.2))
    ax.plot(ends, ends, color=shapes.GREY, linewidth=1.2, zorder=1)
    shapes.line_at(ax, 0, zorder=1)
    shapes.line_at(ax, 0, across=False, zorder=1)
    against = points.prod(axis=1) < 0
    for chosen, colour, label in ((~against, shapes.ADDS, "same sign"), (against, shapes.TAKES, "opposite signs")):
        if chosen.any():
            ax.scatter(points[chosen, 0], points[chosen, 1], s=26, color=colour, label=label, zorder=2)
    ax.set(xlim=ends, ylim=ends)
    name_points(ax, table, ends[1] - ends[0])
    rank = "" if np.isnan(ablation.spearman) else f", Spearman {ablation.spearman:.2f}"
    title = f"{counted(len(table), 'neuron')} behind {answer(ablation)}{rank}"
    direct = f"direct effect on the logit{ablation.provenance.before_cap}, all else frozen"
    return shapes.finish(ax, title, direct, "total effect: clean minus ablated", legend="inside")


def name_points(ax: Axes, table: pd.DataFrame, width: float) -> None:
    """``layer.neuron`` right of points, else left of them, where it covers neither points nor other names."""
    off = (table["logit"] - table["direct"]).abs() + width * (table["logit"] * table["direct"] < 0)
    order = off.nlargest(NAMED).index.append(table.index[:NAMED]).drop_duplicates()
    taken, size = table[["direct", "logit"]].to_numpy(), width * NAME_SIZE
    for place, name in zip(order, name_memories(table.loc[order]), strict=True):
        point = table.loc[place, ["direct", "logit"]].to_numpy(float)
        for side, align in ((1, "left"), (-1, "right")):
            middle = point + np.array([0.75 * side, 0]) * size
            low, high = ax.get_xlim()
            inside = low < middle[0] - size[0] / 2 and middle[0] + size[0] / 2 < high
            if inside and not (np.abs(taken - middle) < 0.7 * size).all(axis=1).any():
                taken = np.vstack([taken, middle, middle - 0.3 * size, middle + 0.3 * size])
                style: shapes.Style = {"textcoords": "offset points", "ha": align, "va": "center", "fontsize": 8}
                ax.annotate(name, tuple(point), (6 * side, 0), **style)
                break


def name_memories(rows: pd.DataFrame) -> list[str]:
    return [f"{layer}.{neuron}" for layer, neuron in zip(rows["layer"], rows["neuron"], strict=True)]


def answer(result: Any) -> str:
    """The target, minus the foil, in quotes."""
    return repr(result.target) + ("" if result.foil is None else f" minus {result.foil!r}")
