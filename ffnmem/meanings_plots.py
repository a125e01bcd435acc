"""matplotlib pictures of polysemanticity. As in :mod:`ffnmem.plots`: each takes ``ax=None`` and returns the Axes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.ticker import PercentFormatter

from .arguments import public
from .errors import InputError
from .plots import ADDS, MOST_TICKS, TAKES, axes_for, titled
from .semantics.meanings import Meanings
from .semantics.tallying import verdict_counts
from .semantics.verdicts import VERDICTS
from .token_text import visible

COLOURS = {"monosemantic": "#0072B2", "polysemantic": "#E07B00", "unclear": "#B8BEC6", "dead": "#1A1A1A"}
LINE = "#1A1A1A"  # on the heat map's light colours, whatever the style
LEAST = 0.045  # of the height: labels nearer than that would overlap
TOKENS = 4
LABEL = 34  # characters of trigger tokens


@public
def plot_meanings(meanings: Meanings, ax: Axes | None = None) -> Axes:
    """How alike the examples of one neuron are, meaning by meaning.

    Args:
        meanings: from :func:`ffnmem.meanings`, with the model given.
        ax: where to draw; default a new figure. The colour bar takes its room from it.

    Returns:
        The Axes: a heat map of the cosines of the examples' whitened inputs, a row and a column an example, ordered by
        meaning and then by strength; lines between meanings; at each its share of the activation and its trigger
        tokens, as far as there is room.

    Raises:
        InputError: meanings without similarity, or without examples.
    """
    if not len(meanings.table):
        raise InputError(f"neuron {meanings.name} has no examples to draw: it is {meanings.verdict}")
    if meanings.similarity is None:
        raise InputError(
            f"the meanings of neuron {meanings.name} come from a table without similarity: "
            "give the model, as in meanings(store, layer, neuron, model)"
        )
    ax = axes_for(ax, (8, 4.6))
    cosines = meanings.similarity.copy()
    np.fill_diagonal(cosines, np.nan)  # each is 1, which says nothing
    limit = float(np.nanmax(np.abs(cosines))) if len(cosines) > 1 else 1.0
    colours = LinearSegmentedColormap.from_list("orange-white-blue", [TAKES, "#FFFFFF", ADDS])
    shades = colours.with_extremes(bad="#DADDE1")
    image = ax.imshow(cosines, cmap=shades, vmin=-limit, vmax=limit, aspect="auto", interpolation="nearest")
    sizes = meanings.table["examples"].to_numpy()
    ends = np.cumsum(sizes)
    for edge in ends[:-1] - 0.5:
        ax.axhline(edge, color=LINE, linewidth=0.9)
        ax.axvline(edge, color=LINE, linewidth=0.9)
    label_blocks(ax, meanings, ends - sizes, sizes)
    assert ax.figure is not None
    ax.figure.colorbar(image, ax=ax, label="cosine of whitened inputs", pad=0.02)
    return titled(ax, f"Neuron {meanings.name} of {meanings.store.model}\n{summary(meanings)}")


def label_blocks(ax: Axes, meanings: Meanings, starts: np.ndarray, sizes: np.ndarray) -> None:
    """The share and the trigger tokens of each meaning beside its rows; of those too close together, the first."""
    n, last = int(sizes.sum()), -1.0
    ticks: list[float] = []
    labels: list[str] = []
    for row, start, size in zip(meanings.table.itertuples(), starts, sizes, strict=True):
        middle = float(start) + (float(size) - 1) / 2
        if ticks and middle - last < LEAST * n:
            continue
        ticks.append(middle)
        labels.append(f"{row.share:.0%}  {tokens_line(meanings.triggers[row.meaning])}")
        last = middle
    ax.set_yticks(ticks, labels, parse_math=False, fontsize="small")
    ax.tick_params(axis="y", length=0)
    ax.set_xticks([])
    ax.set_xlabel(f"{n} example{'s' if n > 1 else ''}, by meaning, strongest first")


def tokens_line(tokens: tuple[str, ...]) -> str:
    """The first trigger tokens, as many as a label has room for."""
    line = visible(tokens[0], LABEL)
    for token in tokens[1:TOKENS]:
        longer = f"{line} {visible(token, LABEL)}"
        if len(longer) > LABEL:
            break
        line = longer
    return line


def summary(meanings: Meanings) -> str:
    value, low, high = meanings.number
    number = f", {value:.1f} meanings ({low:.1f} to {high:.1f})" if np.isfinite(value) else ""
    return f"{meanings.verdict}{number}"


@public
def plot_verdicts(table: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """How many neurons of each layer are monosemantic, polysemantic, unclear and dead, as stacked shares.

    Args:
        table: of :func:`ffnmem.polysemanticity`; with both signs, a layer has a bar for each.
        ax: where to draw; default a new figure.

    Returns:
        The Axes.

    Raises:
        InputError: another table.
    """
    counts = verdict_counts(table)
    ax = axes_for(ax, (8, 4))
    layers = list(dict.fromkeys(counts["layer"]))
    signs = list(dict.fromkeys(counts["sign"]))
    width = 0.75 / len(signs)
    places = np.array([layers.index(row.layer) for row in counts.itertuples()], float)
    places += np.array([(signs.index(row.sign) - (len(signs) - 1) / 2) * (width + 0.03) for row in counts.itertuples()])
    below = np.zeros(len(counts))
    for verdict in VERDICTS:
        share = (counts[verdict] / counts["neurons"]).to_numpy()
        ax.bar(places, share, width, bottom=below, color=COLOURS[verdict], label=verdict)
        below += share
    every = 1 + len(layers) // MOST_TICKS
    ax.set_xticks(range(0, len(layers), every), [str(layer) for layer in layers[::every]])
    ax.set_ylim(0, 1)
    ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    ax.set_xlabel("layer" if len(signs) == 1 else "layer; left positive coefficients, right negative ones")
    ax.set_ylabel("share of the layer's neurons")
    handles: list[Any]
    handles, labels = ax.get_legend_handles_labels()
    ax.legend(handles[::-1], labels[::-1], frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    model = table.attrs.get("provenance", {}).get("model", "this model")
    return titled(ax, f"Verdicts on {len(table):,} neurons of {model}" if len(signs) == 1 else f"Verdicts on {model}")
