"""Pictures of what neurons stand for: meanings, verdicts, roles."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from ..core.errors import InputError
from ..core.token_text import visible
from ..core.types import VERDICTS, checked
from ..neurons.concepts import Meanings, verdict_counts
from ..neurons.role_assignment import NONE, known_roles, role_counts
from .attribution import MOST_TICKS, SIGNS, axes_for, stacked, titled

# matplotlib pictures of polysemanticity. As in :mod:`ffnmem.plots.attribution`: each takes `ax=None` and returns the
# Axes.

VERDICT_COLOURS = {"monosemantic": "#0072B2", "polysemantic": "#E07B00", "unclear": "#B8BEC6", "inactive": "#1A1A1A"}
LINE = "#1A1A1A"  # on the heat map's light colours, whatever the style
LEAST = 0.045  # of the height: labels nearer than that would overlap
TOKENS = 4
LABEL = 34  # characters of trigger tokens


@checked
def meanings(meanings: Meanings, ax: Axes | None = None) -> Axes:
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
    shades = SIGNS.with_extremes(bad="#DADDE1")
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


@checked
def verdicts(table: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """How many neurons of each layer are monosemantic, polysemantic, unclear and inactive, as stacked shares.

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
    shares = {verdict: (counts[verdict] / counts["neurons"]).to_numpy() for verdict in VERDICTS}
    stacked(ax, places, shares, width, VERDICT_COLOURS)
    every = 1 + len(layers) // MOST_TICKS
    ax.set_xticks(range(0, len(layers), every), [str(layer) for layer in layers[::every]])
    ax.set_ylim(0, 1)
    ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    ax.set_xlabel("layer" if len(signs) == 1 else "layer; left positive coefficients, right negative ones")
    ax.set_ylabel("share of the layer's neurons")
    ax.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0), reverse=True)
    model = table.attrs.get("provenance", {}).get("model", "this model")
    return titled(ax, f"Verdicts on {len(table):,} neurons of {model}" if len(signs) == 1 else f"Verdicts on {model}")


# matplotlib pictures of roles. As in :mod:`ffnmem.plots.attribution`: each takes `ax=None` and returns the Axes.

ROLE_COLOURS = {
    "dead": "#1A1A1A",
    "position": "#CC79A7",
    "entropy": "#D55E00",
    "token-frequency": "#F0C000",
    "prediction": "#0072B2",
    "suppression": "#E69F00",
    "partition": "#009E73",
    "token-detector": "#56B4E9",
    "strengthening": "#7B5EA7",
    "weakening": "#A6761D",
}
"""From Okabe and Ito's palette as far as it goes."""


@checked
def roles(frame: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """What part the neurons of each layer play: the shares of their primary roles, stacked.

    Args:
        frame: of :func:`ffnmem.roles`.
        ax: where to draw; default a new figure.

    Returns:
        The Axes: a bar a layer, in the order of precedence from below; what is left of the layer has none of the roles.
        Roles that no neuron has are not drawn; the axis reaches as far as the fullest layer.

    Raises:
        InputError: a table of something else.
    """
    if "role" not in frame:
        raise InputError("frame must be a table of fm.roles, with a column role")
    ax = axes_for(ax, (8, 4))
    counts = role_counts(frame)
    layers = counts["layer"].to_numpy()
    names = [role.name for role in known_roles(frame)]
    total = counts[[*names, NONE]].sum(axis=1).to_numpy()
    shares = {name: counts[name].to_numpy() / total for name in names if counts[name].any()}
    stacked(ax, layers, shares, 0.75, ROLE_COLOURS)
    highest = float(sum(shares.values(), start=np.zeros(len(layers))).max())
    ax.set_ylim(0, min(1.0, max(1.08 * highest, 0.01)))
    ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=None))
    ax.set_xticks(layers[:: 1 + len(layers) // MOST_TICKS])
    ax.set_xlabel("layer")
    ax.set_ylabel("share of the layer's neurons, by first role")
    if shares:
        ax.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0), reverse=True)
    else:
        ax.text(0.5, 0.5, "no neuron has any of these roles", transform=ax.transAxes, ha="center", va="center")
    model = frame.attrs.get("provenance", {}).get("model", "this model")
    return titled(ax, f"{int(counts[names].to_numpy().sum()):,} of {int(total.sum()):,} neurons of {model} have a role")


def percentiles(frame: pd.DataFrame, column: str, ax: Axes | None = None, threshold: float | None = None) -> Axes:
    """How a statistic is spread over the neurons of each layer: 1–99%, 5–95%, 25–75% and the median, as bands.

    Args:
        frame: of :func:`ffnmem.roles`. column: which of its statistics.
        ax: where to draw; default a new figure.
        threshold: a line at it, and at its negative where the statistic has both signs.
    """
    ax = axes_for(ax, (7, 3.8))
    quantiles = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
    rows = frame.groupby("layer")[column].quantile(list(quantiles)).unstack()
    layers = rows.index.to_numpy()
    for low, high, shade in ((0.01, 0.99, "#DCE9F2"), (0.05, 0.95, "#A9CBE2"), (0.25, 0.75, "#5B9CC9")):
        label = f"{low:.0%}–{high:.0%}"
        ax.fill_between(layers, rows[low].to_numpy(), rows[high].to_numpy(), color=shade, label=label, linewidth=0)
    ax.plot(layers, rows[0.5].to_numpy(), color="#00324F", marker="o", markersize=3, label="median")
    if threshold is not None:
        ax.axhline(threshold, color="#E07B00", linestyle="--", linewidth=1, label=f"threshold {threshold:.3g}")
        if float(rows.to_numpy().min()) < 0 and column != "cosine_kurtosis":
            ax.axhline(-threshold, color="#E07B00", linestyle="--", linewidth=1)
    ax.set_xticks(layers[:: 1 + len(layers) // MOST_TICKS])
    ax.set_xlabel("layer")
    ax.set_ylabel(column.replace("_", " "))
    ax.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return titled(ax, f"{column.replace('_', ' ')} by layer, quantiles over neurons")
