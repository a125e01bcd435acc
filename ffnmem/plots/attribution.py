"""Pictures of attributions and ablations. Each takes ``ax=None`` and returns the Axes that it drew on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap

from ..core.errors import InputError, counted
from ..core.token_text import printable, visible
from ..core.types import checked
from ..interventions.ablating import Ablation
from ..prompts.answer_text import name_quantity
from ..prompts.attribution import Attribution
from ..prompts.causal import CausalScores
from ..prompts.circuits import Circuit
from ..prompts.firings import Firings
from ..prompts.paths import PathAttribution
from ..prompts.sufficiency import Faithfulness, FaithfulnessOver

# matplotlib pictures of results. Each takes `ax=None`, draws on it or on a new figure, and returns the Axes.
#
# Blue adds to the logit and orange takes from it, in every picture where colour means sign. Nothing here calls `show`
# or changes rcParams.

# From Okabe and Ito's palette, which stays apart in every common colour blindness and in grey.
ADDS, TAKES = "#0072B2", "#E07B00"
FFN, ATTENTION = "#0072B2", "#B8BEC6"
SIGNS = LinearSegmentedColormap.from_list("orange-white-blue", [TAKES, "#FFFFFF", ADDS])
MOST_TICKS = 26


@checked
def layers(attribution: Attribution, ax: Axes | None = None) -> Axes:
    """What attention and the FFN of each layer write towards the target, and the sum so far.

    Args:
        attribution: of one position, from :func:`ffnmem.attribute`.
        ax: where to draw; default a new figure.

    Returns:
        The Axes: per layer a bar of attention and one of the FFN with its output bias, in logits; and a line from the
        embedding (with the position's) through the sum after each layer to the logit, with the final bias.

    Raises:
        InputError: an attribution of several positions.
    """
    attribution = attribution.total
    ax = axes_for(ax, (8, 4.2))
    parts = attribution.components
    by_layer = parts.dropna(subset="layer").pivot_table("logit", "layer", "component", aggfunc="sum", sort=False)
    layers = [int(layer) for layer in by_layer.index]
    attention = by_layer["attention"].to_numpy()
    ffn = by_layer.drop(columns="attention").sum(axis=1).to_numpy()
    start = float(parts.loc[parts["component"].isin(["embedding", "position"]), "logit"].sum())
    end = float(parts.loc[parts["component"] == "final bias", "logit"].sum())
    totals = [start]
    for step in [*(attention + ffn), end]:
        totals.append(totals[-1] + float(step))
    ax.axhline(0, color=ink(), linewidth=0.8)
    ax.bar([layer - 0.2 for layer in layers], attention, 0.4, color=ATTENTION, label="attention")
    ax.bar([layer + 0.2 for layer in layers], ffn, 0.4, color=FFN, label="FFN")
    ax.plot(
        [-1, *layers, len(layers)], totals, color=ink(), marker="o", markersize=4, linewidth=1.4, label="sum so far"
    )
    names = ["embedding", *(str(layer) for layer in layers), "logit"]
    every = 1 + len(layers) // MOST_TICKS
    ticks = [-1, *layers[::every], len(layers)]
    ax.set_xticks(ticks, [names[tick + 1] for tick in ticks])
    ax.set_xlabel("layer")
    ax.set_ylabel(f"logit{attribution.provenance.before_cap}")
    ax.legend(frameon=False)
    return titled(ax, f"The logit of {answer(attribution)}, layer by layer")


@checked
def neurons(attribution: Attribution | PathAttribution | CausalScores, ax: Axes | None = None, top: int = 20) -> Axes:
    """The neurons that write most towards (blue) or against (orange) the target, largest first.

    Args:
        attribution: of one position, from :func:`ffnmem.attribute`, or of all paths, from
            :func:`ffnmem.attribute_paths`, or scores from :func:`ffnmem.causal_scores`; then a bar is one neuron firing
            at one position, and its label tells which.
        ax: where to draw; default a new figure.
        top: how many neurons.

    Returns:
        The Axes: one horizontal bar a neuron, in logits, labelled ``layer.neuron``.

    Raises:
        InputError: an attribution of several positions, or ``top`` below 1.
    """
    rows = attribution.top(top)
    names = [f"{layer}.{neuron}" for layer, neuron in zip(rows["layer"], rows["neuron"], strict=True)]
    column, how = "logit", attribution.provenance.before_cap
    if isinstance(attribution, Firings):
        column, (_, how) = attribution.column, name_quantity(attribution, isinstance(attribution, PathAttribution))
        names = [f"{name} at {visible(token, 14)}" for name, token in zip(names, rows["token"], strict=True)]
    else:
        attribution = attribution.total
    ax = axes_for(ax, (6, 0.9 + 0.26 * len(rows)))
    ax.barh(range(len(rows)), rows[column], color=sign_colours(rows[column]), height=0.72)
    ax.set_yticks(range(len(rows)), names, parse_math=False)
    ax.set_ylim(len(rows) - 0.4, -0.6)
    ax.axvline(0, color=ink(), linewidth=0.8)
    ax.set_xlabel(f"{column}{how}")
    ax.set_ylabel("memory (layer.neuron)")
    return titled(ax, f"The memories behind {answer(attribution)}")


@checked
def components(attribution: Attribution, ax: Axes | None = None) -> Axes:
    """The ledger as a waterfall: each component, in the order of the residual stream, starts where the last one ends.

    Args:
        attribution: of one position, from :func:`ffnmem.attribute`.
        ax: where to draw; default a new figure.

    Returns:
        The Axes: one horizontal bar a component, in logits, and last the sum, which is the model's logit but for
        ``attribution.error``.

    Raises:
        InputError: an attribution of several positions.
    """
    attribution = attribution.total
    parts = attribution.components
    ax = axes_for(ax, (7, 1.0 + 0.25 * (len(parts) + 1)))
    logits = parts["logit"].to_numpy()
    after = logits.cumsum()
    starts = after - logits
    layers = parts["layer"].astype("string").fillna("")
    names = [f"{name} {layer}".strip() for name, layer in zip(parts["component"], layers, strict=True)]
    colours = sign_colours(logits)  # as edges too, so that the smallest component still shows
    ax.barh(range(len(parts)), logits, left=starts, color=colours, edgecolor=colours, linewidth=0.9, height=0.72)
    ax.barh(len(parts), after[-1], color=ATTENTION, height=0.72)
    for row, total in enumerate(after):
        ax.plot([total, total], [row + 0.36, row + 0.64], color=ink(), linewidth=0.8)
    ax.use_sticky_edges = False  # else bars that start where another ended would touch the frame
    ax.set_yticks(range(len(parts) + 1), [*names, "sum"])
    ax.set_ylim(len(parts) + 0.6, -0.6)
    ax.axvline(0, color=ink(), linewidth=0.8)
    ax.set_xlabel(f"logit{attribution.provenance.before_cap} (the sum misses the model's by {attribution.error:.0e})")
    return titled(ax, f"All that adds up to the logit of {answer(attribution)}")


@checked
def map(paths: PathAttribution | CausalScores, ax: Axes | None = None) -> Axes:
    """What the memories of each layer, firing at each position, add to the answer: a heat map centred at zero.

    Args:
        paths: from :func:`ffnmem.attribute_paths`, or scores from :func:`ffnmem.causal_scores`.
        ax: where to draw; default a new figure. The colour bar takes its room from it.
    """
    values = paths.map.cpu().numpy()
    _, how = name_quantity(paths, isinstance(paths, PathAttribution))
    layers, positions = values.shape
    ax = axes_for(ax, (min(2.4 + 0.52 * positions, 24), min(1.6 + 0.38 * layers, 14)))
    limit = float(abs(values).max()) or 1.0
    image = ax.imshow(
        values, cmap=SIGNS, vmin=-limit, vmax=limit, aspect="auto", origin="lower", interpolation="nearest"
    )
    labels = [visible(token, 14) for token in paths.tokens]
    ax.set_xticks(range(positions), labels, rotation=45, ha="right", rotation_mode="anchor", parse_math=False)
    ax.set_yticks(range(0, layers, 1 + layers // MOST_TICKS))
    ax.set_xlabel("position")
    ax.set_ylabel("layer")
    assert ax.figure is not None
    ax.figure.colorbar(image, ax=ax, label=f"{paths.column}{how}", pad=0.02)
    what = "Where memories wrote" if isinstance(paths, PathAttribution) else "What the firings are worth for"
    return titled(ax, f"{what} {answer(paths)}")


@checked
def faithfulness(found: Faithfulness | FaithfulnessOver, ax: Axes | None = None) -> Axes:
    """How much of an answer the first firings of a ranking keep, against how many they are.

    Args:
        found: from :func:`ffnmem.faithfulness`, or of several answers.
        ax: where to draw; default a new figure.

    Returns:
        The Axes: a line of what the kept firings keep, with its interval over answers; one of what all others keep
        (0 is best); and one of as many at random, with their range or interval. The number of firings is logarithmic.
    """
    curve = found.curve
    ax = axes_for(ax, (7, 4.2))
    size = curve["size"].to_numpy()
    for share in (0.0, 1.0):
        ax.axhline(share, color=ink(), linewidth=0.8, linestyle=":")
    ax.plot(size, curve["faithfulness"], color=ADDS, marker=".", label="these kept")
    if "low" in curve:
        ax.fill_between(size, curve["low"], curve["high"], color=ADDS, alpha=0.2, linewidth=0)
    ax.plot(size, curve["completeness"], color=TAKES, marker=".", label="all others kept")
    if "random" in curve:
        ax.plot(size, curve["random"], color=ATTENTION, marker=".", label="as many at random")
        ax.fill_between(size, curve["random_low"], curve["random_high"], color=ATTENTION, alpha=0.3, linewidth=0)
    ax.set_xscale("log")
    ax.set_xlabel("firings kept")
    ax.set_ylabel("share of the answer")
    ax.legend(frameon=False)
    what = answer(found) if isinstance(found, Faithfulness) else counted(found.n, "answer")
    return titled(ax, f"Is it enough for {what}?")


def axes_for(ax: Axes | None, size: tuple[float, float]) -> Axes:
    """The given Axes, or those of a new figure of this size in inches."""
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt  # only here: whoever brings Axes may run without pyplot's global figures

    return plt.subplots(figsize=size, layout="constrained")[1]


def pair_for(axes: Iterable[Axes] | None, what: str, rows: int, columns: int, **figure: Any) -> tuple[Axes, Axes]:
    """The two Axes given, of ``what``, or those of a new figure."""
    if axes is None:
        import matplotlib.pyplot as plt  # only here, as above

        axes = plt.subplots(rows, columns, layout="constrained", **figure)[1]
    two = tuple(axes)
    if len(two) != 2:
        raise InputError(f"axes must be two, {what}, not {len(two)}")
    return two


def layer_axis(ax: Axes, layers: Sequence[int]) -> None:
    """A place a layer, from 0, and ticks at most at MOST_TICKS of them."""
    every = 1 + len(layers) // MOST_TICKS
    ax.set_xticks(range(0, len(layers), every), [str(layer) for layer in layers[::every]])
    ax.set_xlim(-0.6, len(layers) - 0.4)
    ax.set_xlabel("layer")


def stacked(ax: Axes, places: Any, shares: Mapping[str, np.ndarray], width: float, colours: Mapping[str, str]) -> None:
    """Bars on top of each other, one a name."""
    below = np.zeros(len(places))
    for name, share in shares.items():
        ax.bar(places, share, width, bottom=below, color=colours[name], label=name)
        below += share


def titled(ax: Axes, title: str) -> Axes:
    # A token may hold a dollar sign, which would begin mathematics.
    ax.set_title(printable(title, keep="\n"), loc="left", parse_math=False)
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def answer(found: Attribution | PathAttribution | CausalScores | Faithfulness | Ablation | Circuit) -> str:
    """The target, minus the foil, in quotes."""
    return repr(found.target) + ("" if found.foil is None else f" minus {found.foil!r}")


def sign_colours(logits: Any) -> list[str]:
    return [ADDS if logit >= 0 else TAKES for logit in logits]


def ink() -> str:
    """The colour of text in the style in use, so that lines show on dark figures too."""
    return mpl.rcParams["text.color"]


# matplotlib pictures of interventions: what neurons say directly against what their absence does.
#
# As in :mod:`ffnmem.plots.attribution`: each takes `ax=None`, draws on it or on a new figure, and returns the Axes.

NAMED = 8  # neurons with the largest total effect, and as many that are furthest from the line, carry their names
ROOM = (0.1, 0.045)  # width and height of a name, as shares of the axes


@checked
def ablation(ablation: Ablation, ax: Axes | None = None) -> Axes:
    """The total effect of each neuron on the logit against its direct one.

    Args:
        ablation: from :func:`ffnmem.ablate`.
        ax: where to draw; default a new figure.

    Returns:
        The Axes: a point a neuron, in logits; blue where both effects have the same sign, orange where direct
        attribution points the wrong way; a line where both are equal. The eight furthest from the line, those of
        opposite signs first, and the eight with the largest total effect are named where there is room.
    """
    ax = axes_for(ax, (6, 5.2))
    direct, total = (ablation.neurons[name].to_numpy(dtype=float) for name in ("direct", "logit"))
    both = np.concatenate([direct, total, [0.0]])
    low, high = float(both.min()), float(both.max())
    room = 0.08 * ((high - low) or 1.0)
    ends = (low - room, high + room)
    ax.plot(ends, ends, color=ATTENTION, linewidth=1.2, zorder=1)
    ax.axhline(0, color=ink(), linewidth=0.6, zorder=1)
    ax.axvline(0, color=ink(), linewidth=0.6, zorder=1)
    against = direct * total < 0
    for chosen, colour, label in ((~against, ADDS, "same sign"), (against, TAKES, "opposite signs")):
        if chosen.any():
            ax.scatter(direct[chosen], total[chosen], s=26, color=colour, label=label, zorder=2)
    ax.set_xlim(ends)
    ax.set_ylim(ends)
    name_points(ax, ablation, ends)
    ax.set_xlabel(f"direct effect on the logit{ablation.provenance.before_cap}, all else frozen")
    ax.set_ylabel("total effect: clean minus ablated")
    ax.legend(frameon=False, loc="upper left")
    rank = "" if np.isnan(ablation.spearman) else f", Spearman {ablation.spearman:.2f}"
    return titled(ax, f"{counted(len(ablation.neurons), 'neuron')} behind {answer(ablation)}{rank}")


def name_points(ax: Axes, ablation: Ablation, ends: tuple[float, float]) -> None:
    """``layer.neuron`` beside the points that are furthest from the line of equal effects, then those with the largest
    total effect: right of them, else left, else below or above, else not at all."""
    table, width = ablation.neurons, ends[1] - ends[0]
    off = (table["logit"] - table["direct"]).abs()
    strange = off.add(width * (table["logit"] * table["direct"] < 0)).nlargest(NAMED).index
    taken = list(zip(table["direct"], table["logit"], strict=True))
    for row in table.loc[[*strange, *table.index[:NAMED].difference(strange, sort=False)]].itertuples():
        for across, up, align in ((1, 0, "left"), (-1, 0, "right"), (0, -1, "center"), (0, 1, "center")):
            x, y = row.direct + across * 0.75 * ROOM[0] * width, row.logit + up * 1.1 * ROOM[1] * width
            free = all(abs(x - a) > ROOM[0] * width or abs(y - b) > ROOM[1] * width for a, b in taken[len(table) :])
            clear = all(abs(x - a) > 0.6 * ROOM[0] * width or abs(y - b) > 0.5 * ROOM[1] * width for a, b in taken)
            if free and clear and ends[0] < x - 0.5 * ROOM[0] * width and x + 0.5 * ROOM[0] * width < ends[1]:
                taken.append((x, y))
                ax.annotate(
                    f"{row.layer}.{row.neuron}",
                    (row.direct, row.logit),
                    xytext=(6 * across, 8 * up),
                    textcoords="offset points",
                    ha=align,
                    va="center",
                    fontsize=8,
                )
                break
