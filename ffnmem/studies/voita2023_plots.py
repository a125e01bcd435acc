"""The figures of :mod:`ffnmem.studies.voita2023`. Each draws on the Axes given and returns them."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter

from ..plots import FFN, MOST_TICKS, TAKES, titled
from ..semantics.counting import FiringCounts

SHADES = ("#08306B", "#2171B5", "#6BAED6", "#BDD7E7", "#E3E8EE", "#F5F5F5")
PATTERNS = {"oscillatory": "#7B5EA7", "both extremes": "#C8382D", "one extreme": "#4C9F50", "other": "#F0C000"}
"""The paper's colours."""
STRONGEST = 8


def draw_dead(summary: pd.DataFrame, ax: Axes) -> Axes:
    """The share of dead neurons by layer."""
    ax.bar(summary["layer"], summary["dead_share"], 0.75, color=FFN)
    ax.set_ylim(0, max(1.08 * float(summary["dead_share"].max()), 0.01))
    ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=None))
    ax.set_ylabel("dead neurons")
    dead, neurons = int(summary["dead"].sum()), int(summary["neurons"].sum())
    if not dead:
        ax.text(0.5, 0.5, "every neuron fired", transform=ax.transAxes, ha="center", va="center")
    return layered(ax, summary, f"{dead:,} of {neurons:,} neurons never fired")


def draw_rate(summary: pd.DataFrame, ax: Axes) -> Axes:
    """The mean firing rate of the neurons that fire, by layer."""
    ax.plot(summary["layer"], summary["firing_rate"], color=FFN, marker="o", markersize=4)
    ax.set_ylim(bottom=0)
    ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=None))
    ax.set_ylabel("mean firing rate")
    return layered(ax, summary, "How often a neuron that is not dead fires")


def draw_covering(covering: pd.DataFrame, ax: Axes) -> Axes:
    """Neurons by the number of tokens that make up their firings, stacked."""
    names = list(dict.fromkeys(covering["tokens"]))
    wide = covering.pivot_table("share", "layer", "tokens", sort=False)[names]
    below = np.zeros(len(wide))
    for name, shade in zip(names, SHADES, strict=True):
        ax.bar(wide.index, wide[name], 0.75, bottom=below, color=shade, edgecolor="#8A8F98", linewidth=0.4, label=name)
        below += wide[name].to_numpy()
    ax.set_ylim(0, 1)
    ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=None))
    ax.set_ylabel("share of the neurons that fired")
    beside(ax, "tokens")
    return layered(ax, covering, "How many tokens make up 95% of a neuron's firings")


def draw_detectors(summary: pd.DataFrame, ax: Axes) -> Axes:
    """Token detectors by layer, and how many of them suppress their triggers."""
    counts = summary["detectors"].to_numpy()
    against = counts * np.nan_to_num(summary["suppressing"].to_numpy())
    ax.bar(summary["layer"], counts, 0.75, color="#BDD7E7", label="token detectors")
    ax.bar(summary["layer"], against, 0.75, color=TAKES, label="that suppress their triggers")
    ax.set_ylim(0, max(1.08 * float(counts.max()), 1.0))
    ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_ylabel("neurons")
    total = int(counts.sum())
    if total:
        ax.legend(frameon=False)
        return layered(ax, summary, f"{total:,} token detectors, {against.sum() / total:.0%} suppress their triggers")
    ax.text(0.5, 0.5, "no token detectors", transform=ax.transAxes, ha="center", va="center")
    return layered(ax, summary, "No neuron fires for a few tokens only")


def draw_tokens(summary: pd.DataFrame, ax: Axes) -> Axes:
    """Tokens that have a detector: in the layer, new in it, and so far."""
    layers = summary["layer"]
    ax.plot(layers, summary["tokens_so_far"], color="#1A1A1A", linestyle="--", marker="o", markersize=3, label="so far")
    ax.plot(layers, summary["tokens"], color=FFN, marker="o", markersize=4, label="in the layer")
    ax.plot(layers, summary["new_tokens"], color=TAKES, marker="s", markersize=4, label="new in the layer")
    ax.set_ylim(0, max(1.08 * float(summary["tokens_so_far"].max()), 1.0))
    ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_ylabel("tokens with a detector")
    total = int(summary["tokens_so_far"].max())
    if total:
        ax.legend(frameon=False)
    else:
        ax.text(0.5, 0.5, "no token detectors", transform=ax.transAxes, ha="center", va="center")
    return layered(ax, summary, f"{total:,} tokens have a detector")


def draw_positional(positional: pd.DataFrame, summary: pd.DataFrame, ax: Axes) -> Axes:
    """Positional neurons by layer, stacked by pattern."""
    layers = summary["layer"].to_numpy()
    below = np.zeros(len(layers))
    for name, colour in PATTERNS.items():
        part = positional[positional["pattern"] == name].groupby("layer").size()
        counts = part.reindex(layers, fill_value=0).to_numpy()
        if counts.any():
            ax.bar(layers, counts, 0.75, bottom=below, color=colour, label=name)
            below += counts
    ax.set_ylim(0, max(1.08 * float(below.max()), 1.0))
    ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_ylabel("positional neurons")
    if len(positional):
        beside(ax, "pattern")
    else:
        ax.text(0.5, 0.5, "no positional neurons", transform=ax.transAxes, ha="center", va="center")
    return layered(ax, summary, f"{len(positional):,} neurons tell positions apart")


def draw_patterns(firing: FiringCounts, positional: pd.DataFrame, enough: int, ax: Axes) -> Axes:
    """The firing rate by position of the neurons that tell most about it."""
    used = np.flatnonzero(firing.positions >= enough)
    for row in positional.head(STRONGEST).itertuples():
        rate = firing.at_position[row.layer][used, row.neuron] / firing.positions[used]
        ax.plot(used, rate, linewidth=1.4, label=f"{row.layer}.{row.neuron}")
    ax.set_ylim(-0.02, 1.02)
    ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=None))
    ax.set_xlabel(f"position (those with {enough} tokens or more)")
    ax.set_ylabel("firing rate")
    if len(positional):
        beside(ax, "neuron", stacked=False)
    else:
        ax.text(0.5, 0.5, "no positional neurons", transform=ax.transAxes, ha="center", va="center")
    return titled(ax, "When positional neurons fire")


def layered(ax: Axes, rows: pd.DataFrame, title: str) -> Axes:
    layers = np.unique(rows["layer"].to_numpy())
    ax.set_xticks(layers[:: 1 + len(layers) // MOST_TICKS])
    ax.set_xlabel("layer")
    return titled(ax, title)


def beside(ax: Axes, title: str, stacked: bool = True) -> None:
    """A legend to the right of the picture, its entries in the order in which bars are stacked."""
    step = -1 if stacked else 1
    handles, labels = ax.get_legend_handles_labels()
    ax.legend(handles[::step], labels[::step], title=title, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
