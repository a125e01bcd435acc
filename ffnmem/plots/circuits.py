"""Circuits: who made whom fire, position by position and layer by layer."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch
from matplotlib.patheffects import withStroke

from ..core.types import Count
from ..prompts.circuits import ANSWER, Circuit
from . import shapes
from .attribution import answer
from .figures import draws

EDGES = 240  # more than that are a felt
NAMED = 16
KINDS = {
    "firing": ("o", "#2F3640"),
    "embedding": ("s", shapes.DARK_GREY),
    "answer": ("D", shapes.GREEN),
}
"""Mark and colour of each kind of node."""
ABREAST, LINES, LINE = 4, 3, 0.34
"""Nodes of one layer and position side by side, unless they would need more lines than fit between two layers; and how
far lines are apart, in layers."""
INCHES = 0.55  # that a name needs, and so a node
LEAST, LARGEST = 16.0, 230.0  # areas of marks, in points²


@draws(Circuit)
def circuit(circuit: Circuit, ax: Axes | None = None, top: Count = 40) -> Axes:
    """The graph of firings behind an answer: positions across, layers up, the answer on top.

    A mark is a node, the larger the more influence it has; a line an edge, blue where it adds and orange where it
    takes, the wider the more of its target's influence it carries. What is no node of the graph is left out. The most
    influential firings are named.

    Args:
        circuit: from :func:`ffnmem.circuit`, or the graph of a contrast.
        top: how many firings, those of most influence.
    """
    nodes = choose_nodes(circuit, top)
    columns = place_nodes(nodes, circuit)
    width, layers = float(columns["width"].sum()), circuit.n_layers
    ax = shapes.axes_for(ax, (min(3.0 + INCHES * width, 26), min(2.0 + 0.75 * (layers + 2), 26)))
    draw_edges(ax, circuit, nodes)
    draw_nodes(ax, nodes)
    shapes.token_ticks(ax, circuit.tokens, columns["middle"].tolist())
    ticks = range(0, layers, 1 + layers // shapes.MOST_TICKS)
    ax.set_yticks([-1, *ticks, layers], ["embedding", *(str(layer) for layer in ticks), "answer"])
    ax.set(xlim=(-0.5, width - 0.5), ylim=(-1.6, layers + 0.6))
    for edge in columns["start"][1:]:
        ax.axvline(edge - 0.5, color=shapes.GREY, linewidth=0.5, alpha=0.5, zorder=0)
    ax.tick_params(length=0)
    for name, colour in (("adds", shapes.ADDS), ("takes", shapes.TAKES)):
        ax.plot([], [], color=colour, linewidth=2, label=name)
    return shapes.finish(ax, f"The circuit behind {answer(circuit)}", "fired at", "layer", legend="beside")


def choose_nodes(circuit: Circuit, top: int) -> pd.DataFrame:
    """The nodes to draw: the answer, the strongest firings, and the embeddings that these read."""
    nodes = circuit.nodes
    strong = nodes[nodes["kind"] == "firing"].nlargest(top, "influence")
    kept = {ANSWER, *strong["id"]}
    read = set(circuit.edges.loc[circuit.edges["target"].isin(kept), "source"])
    ends = (nodes["kind"] == "embedding") & nodes["id"].isin(read)
    return nodes[nodes["id"].isin(kept) | ends].reset_index(drop=True)


def place_nodes(nodes: pd.DataFrame, circuit: Circuit) -> pd.DataFrame:
    """Give every node its x and y; nodes of one layer and position stand side by side.

    Returns one row a position: where its column starts, its width and its middle.
    """
    level = nodes["layer"].astype("float64").fillna(-1.0) + 0.0
    level[nodes["kind"] == "answer"] = circuit.n_layers
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
    nodes["y"] = level + ((lines - 1) / 2 - line) * LINE
    return pd.DataFrame({"start": start, "width": width, "middle": middle})


def draw_edges(ax: Axes, circuit: Circuit, nodes: pd.DataFrame) -> None:
    """Lines between the nodes, the strongest last; of a gated neuron, one for what both inputs are given."""
    by_id = nodes.set_index("id")
    edges = circuit.edges[circuit.edges["source"].isin(by_id.index) & circuit.edges["target"].isin(by_id.index)]
    signed = edges.assign(signed=edges["share"] * np.sign(edges["weight"]))
    lines = signed.groupby(["source", "target"], sort=False)["signed"].sum().reset_index()
    lines["flow"] = lines["signed"].abs() * by_id["influence"].reindex(lines["target"]).to_numpy()
    lines = lines.nlargest(EDGES, "flow").iloc[::-1]
    largest = float(lines["flow"].max()) if len(lines) else 0.0
    places = dict(zip(nodes["id"], zip(nodes["x"], nodes["y"], strict=True), strict=True))
    for line in lines.itertuples():
        part = (line.flow / largest) ** 0.5 if largest else 0.0
        style: shapes.Style = {"arrowstyle": "-", "connectionstyle": "arc3,rad=0.06", "shrinkA": 0, "shrinkB": 0}
        style |= {"linewidth": 0.3 + 3.2 * part, "alpha": 0.12 + 0.7 * part, "zorder": 1 + part}
        style["color"] = shapes.ADDS if line.signed >= 0 else shapes.TAKES
        edge = FancyArrowPatch(places[line.source], places[line.target], **style)
        edge.set_in_layout(False)  # it lies between its nodes
        ax.add_patch(edge)


def draw_nodes(ax: Axes, nodes: pd.DataFrame) -> None:
    """Marks, and the strongest firings' names above them."""
    largest = float(nodes.loc[nodes["kind"] != "answer", "influence"].max()) or 1.0
    nodes["area"] = LEAST + (LARGEST - LEAST) * (nodes["influence"] / largest).clip(upper=1.0)
    for kind, some in nodes.groupby("kind", sort=False):
        mark, colour = KINDS[str(kind)]
        style: shapes.Style = {"marker": mark, "color": colour, "edgecolor": "white", "linewidth": 0.7, "zorder": 4}
        ax.scatter(some["x"], some["y"], s=some["area"], clip_on=False, label=kind, **style)
    readable = [withStroke(linewidth=1.5, foreground=ax.get_facecolor())]  # above the lines
    for row in nodes[nodes["kind"] == "firing"].nlargest(NAMED, "influence").itertuples():
        style = {"textcoords": "offset points", "ha": "center", "va": "bottom", "fontsize": 6.5}
        name, place = str(row.id).split("@")[0], (0, row.area**0.5 / 2 + 1.5)
        ax.annotate(name, (row.x, row.y), place, zorder=5, path_effects=readable, **style)
