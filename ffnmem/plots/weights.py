"""Weights: the geometry of memories by layer, who is wired to whom, and where a model's parameters are."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from ..core.errors import InputError, check_choice
from ..core.token_text import visible
from ..models.parameters import Anatomy
from ..neurons.layer_geometry import Geometry
from ..neurons.wiring import INCOMING, VirtualWeights
from . import shapes
from .figures import draws

COLOURS = {"key": shapes.BLUE, "value": shapes.GREEN, "gate": shapes.PINK}
PAIRS = {
    "io": ("key and value", shapes.BLUE),
    "gate_io": ("gate and value", shapes.PINK),
    "gate_key": ("gate and key", shapes.GOLD),
}


@draws(Geometry, aspects=lambda geometry: DRAWS)
def geometry(geometry: Geometry, what: str = "interference", ax: Axes | None = None) -> Axes:
    """One aspect of the geometry of keys, values and gates, by layer, beside what random vectors give (grey).

    Args:
        geometry: from :func:`ffnmem.neurons.geometry`.
        what: ``"interference"``: the absolute cosine of pairs of neurons, a bar from its median to its 99.9% quantile
            and a dot at its maximum; in grey the same of random rows as anisotropic as the layer's, a dotted line at
            the 99.9% quantile of random directions. ``"capacity"``: the share of a dimension that a neuron has to
            itself, 5% to 95% of neurons light, 25% to 75% dark, a line at the median, a grey one at that of random
            rows. ``"io"``: the cosine of a neuron's key and value likewise, in grey 2.5% to 97.5% of mismatched
            pairs; of gated neurons also those of gate and value, and of gate and key. ``"rank"``: effective ranks;
            dotted, those of random rows.
    """
    draw = DRAWS[check_choice("what", what, DRAWS)]
    ax = shapes.axes_for(ax)
    shapes.layer_axis(ax, geometry.layers["layer"])
    return draw(geometry.layers, ax, geometry)


def draw_interference(rows: pd.DataFrame, ax: Axes, geometry: Geometry) -> Axes:
    places, widths = shapes.offsets(2 * len(geometry.sides), rows["layer"])
    for number, side in enumerate(geometry.sides):
        random = "random rows, as anisotropic" if side == geometry.sides[-1] else ""
        for of, colour, label in (("cosine", COLOURS[side], f"{side}s"), ("matched", shapes.GREY, random)):
            at = places[2 * number + (of == "matched")]
            ends = [rows[f"{side}_{of}_q50"], rows[f"{side}_{of}_q999"]]
            shapes.spreads(ax, at, ends, colour, [label], 0.8 * widths[0])
            ax.plot(at, rows[f"{side}_{of}_max"].abs(), "o", markersize=3.5, color=colour)
    shapes.line_at(ax, rows["key_isotropic_q999"].max(), "99.9% of random directions", linewidth=1)
    ax.set_ylim(0, 1.02)
    title = f"How much memories of {geometry.provenance.model} overlap in pairs, by layer"
    return shapes.finish(ax, title, "", "|cosine| of pairs: median to 99.9%, maximum", legend="beside")


def draw_capacity(rows: pd.DataFrame, ax: Axes, geometry: Geometry) -> Axes:
    for side, places, width in zip(geometry.sides, *shapes.offsets(len(geometry.sides), rows["layer"]), strict=True):
        draw_quantiles(ax, places, rows, f"{side}_capacity", COLOURS[side], f"{side}s", 0.8 * width)
        ends, random = (places - width / 2, places + width / 2), "random rows" if side == geometry.sides[-1] else ""
        ax.hlines(rows[f"{side}_isotropic_capacity_q50"], *ends, color=shapes.GREY, linewidth=2, label=random)
    ax.set_ylim(bottom=0)
    title = f"Capacity of the neurons of {geometry.provenance.model}, by layer"
    return shapes.finish(ax, title, "", "share of a dimension", percent="y", legend="beside")


def draw_io(rows: pd.DataFrame, ax: Axes, geometry: Geometry) -> Axes:
    names = geometry.alignments
    for name, places, width in zip(names, *shapes.offsets(len(names), rows["layer"]), strict=True):
        null = [rows[f"{name}_null_low"], rows[f"{name}_null_high"]]
        shapes.spreads(ax, places, null, shapes.GREY, ["95% of mismatched pairs" if name == names[-1] else ""], width)
        draw_quantiles(ax, places, rows, name, PAIRS[name][1], PAIRS[name][0], 0.6 * width)
    shapes.line_at(ax, 0)
    largest = 1.1 * max(0.7, rows[[f"{name}_{end}" for name in names for end in ("q5", "q95")]].abs().max(axis=None))
    ax.set_ylim(-largest, largest)
    title = f"Input–output cosine of the neurons of {geometry.provenance.model}, by layer"
    return shapes.finish(ax, title, "", "cosine within a neuron", legend="beside")


def draw_rank(rows: pd.DataFrame, ax: Axes, geometry: Geometry) -> Axes:
    random, places = "random rows", range(len(rows))
    for side in geometry.sides:
        for measure, marker in (("entropy", "o"), ("participation", "s"), ("stable", "^")):
            style = {"color": COLOURS[side], "marker": marker}
            shapes.curve(ax, places, rows[f"{side}_{measure}_rank"], f"{side}s: {measure}", **style)
            null = {"color": shapes.ink(), "linewidth": 0.8, "linestyle": ":"}
            shapes.curve(ax, places, rows[f"{side}_isotropic_{measure}_rank"], random, **null)
            random = ""
    shapes.line_at(ax, geometry.dimensions, "dimensions", color=shapes.GREY, linewidth=1.4, linestyle="-")
    ax.set_ylim(0, 1.05 * geometry.dimensions)
    title = f"Effective rank of the memories of {geometry.provenance.model}, by layer"
    return shapes.finish(ax, title, "", "effective rank", whole="y", legend="beside")


def draw_quantiles(
    ax: Axes, places: np.ndarray, rows: pd.DataFrame, name: str, colour: str, label: str, width: float
) -> None:
    quantiles = [rows[f"{name}_{quantile}"] for quantile in ("q5", "q25", "q50", "q75", "q95")]
    shapes.spreads(ax, places, quantiles, colour, ["", label], width)


DRAWS: dict[str, Callable[[pd.DataFrame, Axes, Geometry], Axes]] = {
    "interference": draw_interference,
    "capacity": draw_capacity,
    "io": draw_io,
    "rank": draw_rank,
}


@draws(Anatomy)
def anatomy(anatomy: Anatomy, ax: Axes | None = None) -> Axes:
    """Where the parameters of a model are: a bar a component, as long as its share of all parameters.

    Args:
        anatomy: from :func:`ffnmem.models.anatomy`.
    """
    rows = anatomy.to_frame().query("parameters > 0")
    ax = shapes.axes_for(ax, (6, 1.2 + 2 * shapes.PER_ROW * len(rows)))
    names = [
        f"{name}\n{parameter_count(count)}" for name, count in zip(rows["component"], rows["parameters"], strict=True)
    ]
    bars = ax.barh(range(len(rows)), rows["share"], color=[PARTS.get(name, shapes.GREY) for name in rows["component"]])
    ax.bar_label(bars, [f"{share:.1%}" for share in rows["share"]], padding=3)
    shapes.name_rows(ax, names)
    return shapes.finish(ax, f"{anatomy.name}: {anatomy.parameters:,} parameters", "share of parameters", percent="x")


PARTS = {"FFN": shapes.BLUE, "attention": shapes.DARK_GREY}


def parameter_count(number: int) -> str:
    """A number of parameters, whole below a million."""
    for unit, size in (("billion", 10**9), ("million", 10**6)):
        if number >= size:
            return f"{number / size:.4g} {unit}"
    return f"{number:,}"


@draws(VirtualWeights, aspects=lambda weights: weights.sides)
def virtual_weights(weights: VirtualWeights, direction: str | None = None, ax: Axes | None = None) -> Axes:
    """The neurons that are wired to one, as bars of their z, furthest from random directions first: blue makes fire,
    orange keeps from it.

    Args:
        weights: from :func:`ffnmem.virtual_weights`.
        direction: ``"incoming"`` or ``"outgoing"``; default the first that there is.
    """
    name = f"{weights.layer}.{weights.neuron}"
    if not weights.sides:
        raise InputError(f"{name} has no connections to draw: there is no other layer")
    side = check_choice("direction", direction or weights.sides[0], weights.sides)
    edges = weights.incoming if side == INCOMING else weights.outgoing
    labels = []
    for row in edges.itertuples():
        gate, via = " (gate)" * (row.input == "gate"), "" if row.via == "direct" else f", {row.via}"
        labels.append(f"{row.layer}.{row.neuron}{gate}{via}  {visible(row.promotes, shapes.LABEL)}")
    ax = shapes.axes_for(ax, (6, 1.2 + shapes.PER_ROW * len(edges)))
    shapes.bars(ax, labels, edges["z"])
    title = f"What makes {name} fire" if side == INCOMING else f"What {name} makes fire"
    return shapes.finish(ax, title, "z, against random directions")
