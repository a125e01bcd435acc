"""The figures of Geva et al. 2021 and Voita et al. 2023. Each draws on the Axes given and returns them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter, StrMethodFormatter

from ..neurons.counting import FiringCounts
from ..plots.shapes import ADDS, ATTENTION, FFN, MOST_TICKS, TAKES, ink, titled
from .composition import CASES, SHARES

# The figures of Geva et al. 2021, drawn from the tables of :mod:`ffnmem.studies.geva2021`.

GREEN = "#009E73"
OF_REMOVED = {"first": (ADDS, "s"), "random": (GREEN, "^"), "last": (TAKES, "o")}
OF_CASE = {"residual": ADDS, "agreement": "#56B4E9", "composition": GREEN, "ffn": TAKES}
WHISKERED: dict[str, Any] = {"markersize": 5, "linewidth": 1.6, "elinewidth": 1, "capsize": 2}
OF_SHARE = (ADDS, GREEN, TAKES)


def layer_axis(ax: Axes, layers: pd.Series) -> None:
    """Ticks at whole layers, at most ``MOST_TICKS`` of them; a table may have several rows a layer."""
    each = np.unique(layers)
    ax.set_xticks(each[:: 1 + len(each) // MOST_TICKS])
    ax.set_xlim(float(each[0]) - 0.6, float(each[-1]) + 0.6)
    ax.set_xlabel("layer")


def in_percent(ax: Axes, label: str, decimals: int | None = None) -> None:
    ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=decimals))
    ax.set_ylabel(label)


def whiskers(frame: pd.DataFrame, name: str, low: str, high: str) -> np.ndarray:
    """Lengths of error bars below and above; none where the interval is unknown."""
    below, above = frame[name] - frame[low], frame[high] - frame[name]
    return np.nan_to_num(np.clip(np.stack([below, above]), 0, None))


def log_axis(ax: Axes, label: str) -> None:
    """A logarithmic y axis of counts, written out."""
    ax.set_yscale("log")
    ax.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    ax.set_ylabel(label)


def spread(ax: Axes, frame: pd.DataFrame, name: str) -> None:
    """Bars of the quantiles of a column over positions, by layer."""
    layers = frame["layer"].to_numpy()
    low, first, median, third, high = (frame[f"{name}_{q}"].to_numpy() for q in (5, 25, 50, 75, 95))
    ax.bar(layers, high - low, 0.7, bottom=low, color=ATTENTION, label="5% to 95% of positions")
    ax.bar(layers, third - first, 0.7, bottom=first, color=ADDS, label="25% to 75%")
    ax.hlines(median, layers - 0.35, layers + 0.35, color=ink(), linewidth=2, label="median")


def below(ax: Axes, columns: int, **given: Any) -> None:
    """A legend under the Axes, where it hides nothing."""
    ax.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=columns, fontsize="small", **given)


def plot_changes(frame: pd.DataFrame, ax: Axes) -> Axes:
    """The relative change of coefficients when a token is removed, by layer (figure 3)."""
    ax.axhline(0, color=ink(), linewidth=0.8)
    for name, (colour, marker) in OF_REMOVED.items():
        rows = frame[frame["removed"] == name]
        ax.errorbar(
            rows["layer"],
            rows["change"],
            whiskers(rows, "change", "low", "high"),
            color=colour,
            marker=marker,
            **WHISKERED,
            label=f"the {name} token" if name != "random" else "a random token",
        )
    layer_axis(ax, frame["layer"])
    in_percent(ax, "change of the coefficient")
    ax.legend(frameon=False, title="removed", alignment="left")
    return titled(ax, "What a key looks at: its coefficient without one token")


def plot_agreement(frame: pd.DataFrame, ax: Axes) -> Axes:
    """How often a value's top token follows its key's top trigger, by layer, and by chance (figure 4)."""
    ax.errorbar(
        frame["layer"],
        frame["agreement"],
        whiskers(frame, "agreement", "low", "high"),
        color=ADDS,
        marker="o",
        **WHISKERED,
        label="agreement, with its 95% interval",
    )
    ax.plot(
        frame["layer"], frame["shuffled"], color=TAKES, linewidth=1.4, linestyle="--", label="other keys' next tokens"
    )
    ax.plot(frame["layer"], frame["uniform"], color=ink(), linewidth=1, linestyle=":", label="a random token")
    ax.set_ylim(bottom=0)
    layer_axis(ax, frame["layer"])
    in_percent(ax, "keys")
    ax.legend(frameon=False)
    return titled(ax, "Values that predict what follows their key's top trigger")


def plot_ranks(frame: pd.DataFrame, ax: Axes) -> Axes:
    """The rank of the trigger's next token among what the value predicts: quantiles over keys (figure 5)."""
    for row in frame.itertuples():
        ax.bar(row.layer, row.rank_95 - row.rank_5, 0.7, bottom=row.rank_5, color=ATTENTION)
        ax.bar(row.layer, row.rank_75 - row.rank_25, 0.7, bottom=row.rank_25, color=ADDS)
    layers = frame["layer"].to_numpy()
    ax.hlines(frame["rank_50"], layers - 0.35, layers + 0.35, color="white", linewidth=2.2)
    ax.plot(layers, frame["random_rank_50"], color=TAKES, marker="o", markersize=4, linestyle="--", linewidth=1.2)
    log_axis(ax, "rank in the value's prediction")
    layer_axis(ax, frame["layer"])
    labels = ["5% to 95% of keys", "25% to 75%, median white", "a token drawn from the corpus, median"]
    handles = [*ax.patches[:2], ax.lines[0]]
    below(ax, 3, handles=handles, labels=labels)
    return titled(ax, "How high values rank what follows their key's top trigger")


def plot_active(frame: pd.DataFrame, ax: Axes) -> Axes:
    """The share of a layer's memories that are active at a position, by layer (figure 7)."""
    spread(ax, frame, "active_share")
    ax.set_ylim(bottom=0)
    layer_axis(ax, frame["layer"])
    in_percent(ax, "memories with a coefficient above 0", 0)
    ax.legend(frameon=False)
    return titled(ax, "Active memories at a position")


def plot_zero_agreement(frame: pd.DataFrame, ax: Axes) -> Axes:
    """How often a layer predicts what none of its memories predicts, by layer (figure 8)."""
    layers = frame["layer"].to_numpy()
    for shift, name, colour, label in (
        (-0.2, "zero_agreement", ADDS, "no memory of the layer"),
        (0.2, "zero_agreement_active", ATTENTION, "no active memory"),
    ):
        ends = whiskers(frame, name, f"{name}_low", f"{name}_high")
        ax.bar(layers + shift, frame[name], 0.4, color=colour, label=label)
        ax.errorbar(layers + shift, frame[name], ends, fmt="none", ecolor=ink(), elinewidth=1, capsize=2)
    by_chance = frame["zero_agreement_shuffled"]
    ax.hlines(by_chance, layers, layers + 0.4, color=TAKES, linewidth=2, label="no active memory of another position")
    ax.set_ylim(0, 1)
    layer_axis(ax, frame["layer"])
    in_percent(ax, "positions", 0)
    below(ax, 3)
    return titled(ax, "Layers that predict what none of their memories predicts")


def plot_match(frame: pd.DataFrame, ax: Axes) -> Axes:
    """How often the residual stream before an FFN already predicts what the model will, by layer (figure 9)."""
    ax.bar(frame["layer"], frame["match"], 0.7, color=ADDS)
    ends = whiskers(frame, "match", "match_low", "match_high")
    ax.errorbar(frame["layer"], frame["match"], ends, fmt="none", ecolor=ink(), elinewidth=1, capsize=2)
    ax.set_ylim(0, 1)
    layer_axis(ax, frame["layer"])
    in_percent(ax, "positions", 0)
    return titled(ax, "Where the residual already predicts the model's answer")


def plot_probability(frame: pd.DataFrame, ax: Axes) -> Axes:
    """The probability of the model's answer, read off the residual stream before each FFN (figure 10)."""
    spread(ax, frame, "probability")
    ax.plot(frame["layer"], frame["probability"], color=TAKES, marker="o", markersize=4, linewidth=1.4, label="mean")
    ax.set_ylim(0, 1)
    layer_axis(ax, frame["layer"])
    ax.set_ylabel("probability of the model's answer")
    ax.legend(frameon=False, loc="upper left")
    return titled(ax, "How sure of its answer the residual is")


def plot_cases(frame: pd.DataFrame, ax: Axes) -> Axes:
    """Where the prediction after each layer comes from: stacked shares of positions (figure 11)."""
    bottom = np.zeros(len(frame))
    for name in CASES:
        ax.bar(frame["layer"], frame[name], 0.74, bottom=bottom, color=OF_CASE[name], label=name)
        bottom += frame[name].to_numpy()
    ax.set_ylim(0, 1)
    layer_axis(ax, frame["layer"])
    in_percent(ax, "positions", 0)
    below(ax, 4)
    return titled(ax, "Whose prediction stands after the layer")


def plot_updates(frame: pd.DataFrame, ax: Axes) -> Axes:
    """How few sub-updates make up a layer's output: medians, and bands of half the positions."""
    for measure, style in (("output", "-"), ("weight", ":")):
        for colour, (share, rows) in zip(OF_SHARE, frame[frame["measure"] == measure].groupby("share"), strict=False):
            label = f"{share:.0%} of the {'output' if measure == 'output' else 'weights'}"
            ax.plot(
                rows["layer"], rows["needed_50"], color=colour, linestyle=style, marker="o", markersize=4, label=label
            )
            if measure == "output":
                ax.fill_between(
                    rows["layer"], rows["needed_25"], rows["needed_75"], color=colour, alpha=0.18, linewidth=0
                )
    half = frame[(frame["measure"] == "random") & (frame["share"] == SHARES[0])]
    label = f"{SHARES[0]:.0%} of the output, in random order"
    ax.plot(half["layer"], half["needed_50"], color=ink(), alpha=0.6, linestyle="--", linewidth=1.2, label=label)
    log_axis(ax, "largest sub-updates")
    layer_axis(ax, frame["layer"])
    below(ax, 2)
    return titled(ax, "How few sub-updates make up a layer's output")


# The figures of :mod:`ffnmem.studies.voita2023`.

SHADES = ("#08306B", "#2171B5", "#6BAED6", "#BDD7E7", "#E3E8EE", "#F5F5F5")
PATTERNS = {"oscillatory": "#7B5EA7", "both extremes": "#C8382D", "one extreme": "#4C9F50", "other": "#F0C000"}
"""The paper's colours."""
STRONGEST = 8


def draw_dead(summary: pd.DataFrame, ax: Axes) -> Axes:
    """The share of dead neurons by layer."""
    ax.bar(summary["layer"], summary["dead_share"], 0.75, color=FFN)
    ax.set_ylim(0, max(1.08 * float(summary["dead_share"].max()), 0.01))
    in_percent(ax, "dead neurons")
    dead, neurons = int(summary["dead"].sum()), int(summary["neurons"].sum())
    if not dead:
        in_place(ax, "every neuron fired")
    return layered(ax, summary, f"{dead:,} of {neurons:,} neurons never fired")


def draw_rate(summary: pd.DataFrame, ax: Axes) -> Axes:
    """The mean firing rate of the neurons that fire, by layer."""
    ax.plot(summary["layer"], summary["firing_rate"], color=FFN, marker="o", markersize=4)
    ax.set_ylim(bottom=0)
    in_percent(ax, "mean firing rate")
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
    in_percent(ax, "share of the neurons that fired")
    beside(ax, "tokens")
    return layered(ax, covering, "How many tokens make up 95% of a neuron's firings")


def draw_detectors(summary: pd.DataFrame, ax: Axes) -> Axes:
    """Token detectors by layer, and how many of them suppress their triggers."""
    counts = summary["detectors"].to_numpy()
    against = counts * np.nan_to_num(summary["suppressing"].to_numpy())
    ax.bar(summary["layer"], counts, 0.75, color="#BDD7E7", label="token detectors")
    ax.bar(summary["layer"], against, 0.75, color=TAKES, label="that suppress their triggers")
    count_axis(ax, counts, "neurons")
    total = int(counts.sum())
    if total:
        ax.legend(frameon=False)
        return layered(ax, summary, f"{total:,} token detectors, {against.sum() / total:.0%} suppress their triggers")
    in_place(ax, "no token detectors")
    return layered(ax, summary, "No neuron fires for a few tokens only")


def draw_tokens(summary: pd.DataFrame, ax: Axes) -> Axes:
    """Tokens that have a detector: in the layer, new in it, and so far."""
    layers = summary["layer"]
    ax.plot(layers, summary["tokens_so_far"], color="#1A1A1A", linestyle="--", marker="o", markersize=3, label="so far")
    ax.plot(layers, summary["tokens"], color=FFN, marker="o", markersize=4, label="in the layer")
    ax.plot(layers, summary["new_tokens"], color=TAKES, marker="s", markersize=4, label="new in the layer")
    count_axis(ax, summary["tokens_so_far"], "tokens with a detector")
    total = int(summary["tokens_so_far"].max())
    if total:
        ax.legend(frameon=False)
    else:
        in_place(ax, "no token detectors")
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
    count_axis(ax, below, "positional neurons")
    if len(positional):
        beside(ax, "pattern")
    else:
        in_place(ax, "no positional neurons")
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
        in_place(ax, "no positional neurons")
    return titled(ax, "When positional neurons fire")


def in_place(ax: Axes, words: str) -> None:
    """What is said in the middle of a picture where there is nothing to draw."""
    ax.text(0.5, 0.5, words, transform=ax.transAxes, ha="center", va="center")


def count_axis(ax: Axes, counts: Any, label: str) -> None:
    """A y axis of whole numbers from 0 to a little above the largest."""
    ax.set_ylim(0, max(1.08 * float(counts.max()), 1.0))
    ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_ylabel(label)


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
