"""Pictures of circuits: who made whom fire, position by position and layer by layer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch
from matplotlib.patheffects import withStroke

from ..core.errors import InputError, check_count
from ..core.token_text import visible
from ..core.types import Count, checked
from ..prompts.circuits import ANSWER, Circuit
from .attribution import ADDS, ATTENTION, MOST_TICKS, TAKES, answer, axes_for, ink, titled

EDGES = 240  # more than that are a felt
NAMED = 16
KINDS = {
    "firing": ("o", "#2F3640", "firing"), "embedding": ("s", "#8A9099", "embedding"),
    "position": ("d", "#8A9099", "position"), "attention": ("^", "#CC79A7", "attention"),
    "head": ("^", "#CC79A7", "head"), "answer": ("D", "#009E73", "answer"),
}  # fmt: skip
"""How each kind of node is drawn: its mark, its colour, and its name."""
ABREAST, LINES, LINE = 4, 3, 0.34
"""Nodes of one layer and position side by side, unless they would need more lines than fit between two layers; and how
far lines are apart, in layers."""
INCHES = 0.55  # that a name needs, and so a node
LEAST, LARGEST = 16.0, 230.0  # areas of marks, in points²


@checked
def circuit(circuit: Circuit, ax: Axes | None = None, top: Count = 40) -> Axes:
    """The graph of firings behind an answer: positions across, layers up, the answer on top.

    Args:
        circuit: from :func:`ffnmem.circuit`.
        ax: where to draw; default a new figure.
        top: how many firings and heads, those of most influence.

    Returns:
        The Axes: a mark a node, the larger the more influence it has; a line an edge, blue where it adds and orange
        where it takes, the wider the more of its target's influence it carries. Biases and what was pruned are left
        out. The most influential firings are named.

    Raises:
        InputError: ``top`` below 1, or a circuit without firings.
    """
    nodes = shown(circuit, top)
    places = arrange(nodes, circuit)
    ax = axes_for(ax, inches(places, circuit))
    draw_edges(ax, circuit, nodes)
    draw_nodes(ax, nodes)
    name_nodes(ax, nodes)
    labels = [visible(text, 14) for text in circuit.tokens]
    ax.set_xticks(places["middle"], labels, rotation=45, ha="right", rotation_mode="anchor", parse_math=False)
    every = 1 + circuit.n_layers // MOST_TICKS
    layers = range(0, circuit.n_layers, every)
    ax.set_yticks([-1, *layers, circuit.n_layers], ["embedding", *map(str, layers), "answer"])
    ax.set_xlim(-0.5, places["width"].sum() - 0.5)
    ax.set_ylim(-1.6, circuit.n_layers + 0.6)
    for edge in places["start"][1:]:
        ax.axvline(edge - 0.5, color=ATTENTION, linewidth=0.5, alpha=0.5, zorder=0)
    ax.set_xlabel("fired at")
    ax.set_ylabel("layer")
    ax.tick_params(length=0)
    legend(ax, nodes)
    return titled(ax, f"The circuit behind {answer(circuit)}")


def circuit_size(circuit: Circuit, top: int = 40) -> tuple[float, float]:
    """Width and height in inches in which a picture's names can be read."""
    return inches(arrange(shown(circuit, check_count("top", top)), circuit), circuit)


def inches(places: pd.DataFrame, circuit: Circuit) -> tuple[float, float]:
    return min(3.0 + INCHES * float(places["width"].sum()), 26), min(2.0 + 0.75 * (circuit.n_layers + 2), 26)


def shown(circuit: Circuit, top: int) -> pd.DataFrame:
    """The nodes to draw: the answer, the strongest firings and heads, and the embeddings that these read."""
    nodes = circuit.nodes
    strong = nodes[nodes["kind"].isin(["firing", "attention", "head"])].nlargest(top, "influence")
    if strong.empty:
        raise InputError("the circuit has no firings to draw: expand more (nodes=) or prune less (node_threshold=)")
    kept = {ANSWER, *strong["id"]}
    read = set(circuit.edges.loc[circuit.edges["target"].isin(kept), "source"])
    ends = nodes["kind"].isin(["embedding", "position"]) & nodes["id"].isin(read)
    return nodes[nodes["id"].isin(kept) | ends].reset_index(drop=True)


def arrange(nodes: pd.DataFrame, circuit: Circuit) -> pd.DataFrame:
    """Give every node its x and y; nodes of one layer and position stand side by side.

    Returns one row a position: where its column starts, its width and its middle.
    """
    level = nodes["layer"].astype("float64").fillna(-1.0) + 0.0
    level[nodes["kind"] == "answer"] = circuit.n_layers
    level[nodes["kind"].isin(["attention", "head"])] -= 0.42  # attention comes before the layer's FFN
    nodes["y"] = level
    position = nodes["position"].astype(int)
    cells = nodes.groupby([position, level], sort=False)
    rank, count = cells.cumcount(), cells["id"].transform("size")
    lines = (-(-count // ABREAST)).clip(upper=LINES)
    abreast = -(-count // lines)
    width = abreast.groupby(position).max().reindex(range(len(circuit.tokens)), fill_value=1)
    start = width.cumsum() - width
    middle = start + (width - 1) / 2
    line, place = rank // abreast, rank % abreast
    last = count - abreast * (lines - 1)  # the last line may have fewer
    nodes["x"] = position.map(middle) + place - (abreast.where(line < lines - 1, last) - 1) / 2
    nodes["y"] = nodes["y"] + ((lines - 1) / 2 - line) * LINE
    return pd.DataFrame({"start": start, "width": width, "middle": middle})


def draw_edges(ax: Axes, circuit: Circuit, nodes: pd.DataFrame) -> None:
    """Lines between what is shown, the strongest last; of a gated neuron, one for what both inputs are given."""
    by_id = nodes.set_index("id")
    edges = circuit.edges[circuit.edges["source"].isin(by_id.index) & circuit.edges["target"].isin(by_id.index)]
    signed = edges.assign(signed=edges["share"] * np.sign(edges["weight"]))
    lines = signed.groupby(["source", "target"], sort=False)["signed"].sum().reset_index()
    lines["flow"] = lines["signed"].abs() * by_id["influence"].reindex(lines["target"]).to_numpy()
    lines = lines.nlargest(EDGES, "flow").iloc[::-1]
    largest = float(lines["flow"].max()) if len(lines) else 1.0
    for line in lines.itertuples():
        source, target = by_id.loc[line.source], by_id.loc[line.target]
        part = (line.flow / largest) ** 0.5 if largest else 0.0
        ax.add_patch(
            FancyArrowPatch(
                (source["x"], source["y"]),
                (target["x"], target["y"]),
                arrowstyle="-",
                connectionstyle="arc3,rad=0.06",
                linewidth=0.3 + 3.2 * part,
                alpha=0.12 + 0.7 * part,
                color=ADDS if line.signed >= 0 else TAKES,
                zorder=1 + part,
            )
        )


def draw_nodes(ax: Axes, nodes: pd.DataFrame) -> None:
    strong = nodes["kind"] != "answer"
    largest = float(nodes.loc[strong, "influence"].max()) or 1.0
    area = LEAST + (LARGEST - LEAST) * (nodes["influence"] / largest).clip(upper=1.0)
    nodes["radius"] = area**0.5 / 2
    for kind, some in nodes.groupby("kind", sort=False):
        mark, colour, _ = KINDS[str(kind)]
        ax.scatter(
            some["x"],
            some["y"],
            s=area[some.index],
            marker=mark,
            color=colour,
            edgecolor="white",
            linewidth=0.7,
            zorder=4,
            clip_on=False,
        )


def name_nodes(ax: Axes, nodes: pd.DataFrame) -> None:
    """The strongest firings' names, above them, and heads', below: of one layer, they are near each other."""
    for row in nodes[nodes["kind"].isin(["firing", "attention", "head"])].nlargest(NAMED, "influence").itertuples():
        above = 1 if row.kind == "firing" else -1
        ax.annotate(
            str(row.id).split("@")[0].replace("attention.", "attention ").replace("head.", "head "),
            (row.x, row.y),
            xytext=(0, above * (row.radius + 1.5)),
            textcoords="offset points",
            ha="center",
            va="bottom" if above > 0 else "top",
            fontsize=6.5,
            color=ink(),
            zorder=5,
            path_effects=[withStroke(linewidth=1.5, foreground=ax.get_facecolor())],  # above the lines, still read
        )


def legend(ax: Axes, nodes: pd.DataFrame) -> None:
    entries: list[Any] = [
        Line2D([], [], linestyle="", marker=mark, color=colour, label=name)
        for kind, (mark, colour, name) in KINDS.items()
        if (nodes["kind"] == kind).any()
    ]
    entries += [
        Line2D([], [], color=colour, linewidth=2, label=name) for colour, name in ((ADDS, "adds"), (TAKES, "takes"))
    ]
    ax.legend(handles=entries, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8)
