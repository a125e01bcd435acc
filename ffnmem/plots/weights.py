"""Pictures of weights: the geometry of memories by layer, and where a model's parameters are."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator, PercentFormatter

from ..core.errors import InputError, check_choice
from ..core.token_text import printable, visible
from ..core.types import checked
from ..models.parameters import Anatomy, Matrix
from ..neurons.layer_geometry import Geometry
from ..neurons.read_write import ORTHOGONAL
from ..neurons.wiring import INCOMING, VirtualWeights
from .attribution import ATTENTION, FFN, axes_for, ink, layer_axis, pair_for, sign_colours, stacked, titled

# matplotlib pictures of the geometry of memories, by layer.
#
# As in :mod:`ffnmem.plots.attribution`: each takes `ax=None`, draws on it or on a new figure, and returns the Axes.
# Keys are blue, values green and the gates of gated models purple in every one of them, and what random vectors give
# is grey.

COLOURS = {"key": FFN, "value": "#009E73", "gate": "#CC79A7"}
NAMES = {"key": "keys", "value": "values", "gate": "gates"}
OFFSETS = {2: (-0.2, 0.2), 3: (-0.28, 0.0, 0.28)}  # of the sides of a layer, by how many there are
WIDTHS = {1: 0.3, 2: 0.3, 3: 0.2}
PAIRS = {"io": COLOURS["key"], "gate_io": "#CC79A7", "gate_key": "#E69F00"}
CLASS_COLOURS = {
    "strengthening": "#0072B2",
    "atypical strengthening": "#99C7E0",
    "conditional strengthening": "#009E73",
    "atypical conditional strengthening": "#99D8C7",
    "proportional change": "#6B6B6B",
    "atypical proportional change": "#C4C4C4",
    "atypical conditional weakening": "#F5D999",
    "conditional weakening": "#E69F00",
    "atypical weakening": "#EEBF99",
    "weakening": "#D55E00",
}
"""Of read–write classes, from below; what is left of a layer writes along nothing that it reads."""
PAIR_NAMES = {"io": "key and value", "gate_io": "gate and value", "gate_key": "gate and key"}


@checked
def geometry(geometry: Geometry, what: str = "interference", ax: Axes | None = None) -> Axes:
    """One aspect of the geometry of keys, values and gates, by layer, beside what random vectors give.

    Args:
        geometry: from :func:`ffnmem.neurons.geometry`.
        what: ``"interference"``: the absolute cosine of pairs of neurons, a bar from its median to its 99.9% quantile
            and a dot at its maximum; in grey the same of random rows as anisotropic as the layer's, a dotted line at
            the 99.9% quantile of random directions. ``"capacity"``: the share of a dimension that a neuron has to
            itself, 5% to 95% of neurons light, 25% to 75% dark, a line at the median, a grey one at that of random
            rows. ``"io"``: the cosine of a neuron's key and value likewise, in grey 2.5% to 97.5% of mismatched
            pairs; of gated neurons also those of gate and value, and of gate and key. ``"classes"``: the shares of the
            read–write classes but orthogonal output, stacked; in grey what neurons of mismatched sides have of them.
            ``"rank"``: effective ranks; dotted, those of random rows.
        ax: where to draw; default a new figure.

    Returns:
        The Axes.

    Raises:
        InputError: an unknown ``what``.
    """
    check_choice("what", what, DRAWS)
    ax = axes_for(ax, (7, 3.8))
    rows = geometry.layers
    title = DRAWS[what](rows, ax, geometry)
    layer_axis(ax, list(rows["layer"]))
    return titled(ax, f"{title}, by layer")


def placed(geometry: Geometry) -> list[tuple[str, float, float]]:
    """Each side with where its bars stand beside a layer's middle, and how wide they are."""
    n = len(geometry.sides)
    return [(side, offset, WIDTHS[n]) for side, offset in zip(geometry.sides, OFFSETS[n], strict=True)]


def draw_interference(rows: pd.DataFrame, ax: Axes, geometry: Geometry) -> str:
    places = np.arange(len(rows))
    last = geometry.sides[-1]
    for side, offset, width in placed(geometry):
        for prefix, shift, colour, label in (
            ("cosine", -0.23, COLOURS[side], NAMES[side]),
            ("matched", 0.3, ATTENTION, "random rows, as anisotropic" if side == last else None),
        ):
            at = places + offset + shift * width
            low, high = (rows[f"{side}_{prefix}_{name}"] for name in ("q50", "q999"))
            ax.bar(at, high - low, width / 2, bottom=low, color=colour, label=label)
            largest = rows[f"{side}_{prefix}_max"].abs()
            ax.plot(at, largest, linestyle="none", marker="o", markersize=3.5, color=colour)
    ax.axhline(
        float(rows["key_isotropic_q999"].max()),
        color=ink(),
        linewidth=1,
        linestyle=":",
        label="99.9% of random directions",
    )
    ax.set_ylim(0, 1.02)
    ax.set_ylabel("|cosine| of pairs: median to 99.9%, maximum")
    ax.legend(frameon=False, loc="upper right", ncols=2, fontsize="small")
    return f"How much memories of {geometry.provenance.model} overlap in pairs"


def draw_capacity(rows: pd.DataFrame, ax: Axes, geometry: Geometry) -> str:
    places = np.arange(len(rows))
    last = geometry.sides[-1]
    for side, offset, width in placed(geometry):
        spread(ax, places + offset, rows, f"{side}_capacity", COLOURS[side], NAMES[side], width)
        null = rows[f"{side}_isotropic_capacity_q50"]
        ends = (places + offset - width / 2 - 0.03, places + offset + width / 2 + 0.03)
        ax.hlines(null, *ends, color=ATTENTION, linewidth=2, label="random rows" if side == last else "")
    ax.set_ylim(bottom=0)
    ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    ax.set_ylabel("share of a dimension")
    ax.legend(frameon=False, loc="best", fontsize="small")
    return f"Capacity of the neurons of {geometry.provenance.model}"


def draw_io(rows: pd.DataFrame, ax: Axes, geometry: Geometry) -> str:
    names = geometry.alignments
    alone = len(names) == 1
    width, offsets = WIDTHS[len(names)], (0.0,) if alone else OFFSETS[len(names)]
    for name, offset in zip(names, offsets, strict=True):
        places = np.arange(len(rows)) + offset
        low, high = rows[f"{name}_null_low"], rows[f"{name}_null_high"]
        label = "95% of mismatched pairs" if name == names[-1] else None
        ax.bar(places, high - low, 0.84 if alone else 0.26, bottom=low, color=ATTENTION, label=label)
        spread(ax, places, rows, name, PAIRS[name], "neurons" if alone else PAIR_NAMES[name], width)
    ax.axhline(0, color=ink(), linewidth=0.8)
    for threshold in (geometry.strengthening, geometry.weakening):
        ax.axhline(threshold, color=ink(), linewidth=0.8, linestyle=":")
    largest = max(0.7, *(abs(rows[f"{name}_{end}"]).max() for name in names for end in ("q5", "q95")))
    ax.set_ylim(-1.1 * largest, 1.1 * largest)
    ax.set_ylabel("cosine of key and value" if alone else "cosine within a neuron")
    ax.legend(frameon=False, loc="best", fontsize="small", ncols=1 if alone else 2)
    what = "Input–output cosine" if alone else "Cosines of key, value and gate"
    return f"{what} of the neurons of {geometry.provenance.model}"


def draw_classes(rows: pd.DataFrame, ax: Axes, geometry: Geometry) -> str:
    places = np.arange(len(rows))
    shares = geometry.classes.pivot(index="layer", columns="read_write", values="share").loc[rows["layer"]]
    drawn = {name: shares[name].to_numpy() for name in CLASS_COLOURS if name in shares and shares[name].any()}
    stacked(ax, places, drawn, 0.75, CLASS_COLOURS)
    chance = geometry.classes[geometry.classes["read_write"] == ORTHOGONAL]["chance"].to_numpy()
    ax.hlines(1 - chance, places - 0.45, places + 0.45, color=ATTENTION, linewidth=2, label="of mismatched sides")
    ax.set_ylim(0, max(0.01, 1.08 * float(shares.drop(columns=ORTHOGONAL).sum(axis=1).max())))
    ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=None))
    ax.set_ylabel("share of the layer's neurons")
    ax.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0), reverse=True, fontsize="small")
    return f"Read–write classes of the neurons of {geometry.provenance.model}"


def draw_rank(rows: pd.DataFrame, ax: Axes, geometry: Geometry) -> str:
    places = np.arange(len(rows))
    for side in geometry.sides:
        for measure, marker in (("entropy", "o"), ("participation", "s"), ("stable", "^")):
            label = f"{NAMES[side]}: {measure}"
            ax.plot(
                places, rows[f"{side}_{measure}_rank"], color=COLOURS[side], marker=marker, markersize=4, label=label
            )
            null = rows[f"{side}_isotropic_{measure}_rank"]
            known = side == geometry.sides[-1] and measure == "stable"
            ax.plot(places, null, color=ink(), linewidth=0.8, linestyle=":", label="random rows" if known else None)
    ax.axhline(geometry.dimensions, color=ATTENTION, linewidth=1.4, label="dimensions")
    ax.set_ylim(0, 1.05 * geometry.dimensions)
    ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_ylabel("effective rank")
    ax.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize="small")
    return f"Effective rank of {listed_sides(geometry)} of {geometry.provenance.model}"


def listed_sides(geometry: Geometry) -> str:
    """keys and values, or keys, values and gates."""
    *first, last = (NAMES[side] for side in geometry.sides)
    return f"{', '.join(first)} and {last}"


def spread(
    ax: Axes, places: np.ndarray, rows: pd.DataFrame, prefix: str, colour: str, label: str, width: float
) -> None:
    """Quantiles over neurons: 5% to 95% light, 25% to 75% dark, a line at the median."""
    low, first, median, third, high = (rows[f"{prefix}_{name}"] for name in ("q5", "q25", "q50", "q75", "q95"))
    ax.bar(places, high - low, width, bottom=low, color=colour, alpha=0.35)
    ax.bar(places, third - first, width, bottom=first, color=colour, label=label)
    ax.hlines(median, places - width / 2, places + width / 2, color=ink(), linewidth=2)


DRAWS: dict[str, Callable[[pd.DataFrame, Axes, Geometry], str]] = {
    "interference": draw_interference,
    "capacity": draw_capacity,
    "io": draw_io,
    "classes": draw_classes,
    "rank": draw_rank,
}


# A matplotlib picture of where a model's parameters are: all of them as one bar, one layer's matrices to scale.

PARTS = {
    "token embedding": "#D27D00",
    "position embedding": "#7F5200",
    "attention": ATTENTION,
    "FFN": FFN,
    "norms": "#000000",
    "unembedding": "#F5DC9A",
    "other": "#56B4E9",
}
MATRICES = {"keys": COLOURS["key"], "gates": COLOURS["gate"], "values": COLOURS["value"]}
NARROW = 0.11
"""What takes a smaller share of the width has its label beside it."""
SIZE, HEIGHTS = (9.5, 6.8), (1, 4)


@checked
def anatomy(anatomy: Anatomy, axes: Iterable[Axes] | None = None) -> tuple[Axes, Axes]:
    """Where the parameters of a model are: all as one stacked bar, and the matrices of one layer to scale.

    Args:
        anatomy: from :func:`ffnmem.models.anatomy`.
        axes: where to draw, two Axes: the first for the bar, the second for the layer; default a new figure.

    Returns:
        The two Axes. In the first the width of a piece is its component's parameters. In the second a rectangle is a
        matrix, its height d_model and its width the number of its vectors in one and the same unit, so that areas are
        parameters: in the first row attention's, below a row each for the FFN's keys, gates and values.

    Raises:
        InputError: not two Axes.
    """
    whole, layer = pair_for(axes, "of the whole and of a layer", 2, 1, figsize=SIZE, height_ratios=HEIGHTS)
    draw_whole(anatomy, whole)
    draw_layer(anatomy, layer)
    return whole, layer


def draw_whole(anatomy: Anatomy, ax: Axes) -> None:
    rows = anatomy.to_frame()
    left = 0
    for component, parameters, share in zip(rows["component"], rows["parameters"], rows["share"], strict=True):
        if not parameters:
            continue
        colour = PARTS[component]
        words = f"{component} {parameter_count(parameters)} ({share:.1%})"
        ax.barh(0, parameters, left=left, height=1, color=colour, edgecolor="white", linewidth=0.8, label=words)
        if share > NARROW:
            ax.text(left + parameters / 2, 0, f"{component}\n{share:.1%}", ha="center", va="center", color=over(colour))
        left += parameters
    ax.set_xlim(0, left)
    ax.set_ylim(-0.5, 0.5)
    bare(ax)
    ax.legend(frameon=False, loc="upper left", bbox_to_anchor=(-0.01, -0.04), ncols=3, fontsize="small")
    ax.set_title(f"{printable(anatomy.name)}: {anatomy.parameters:,} parameters", loc="left", parse_math=False)


def draw_layer(anatomy: Anatomy, ax: Axes) -> None:
    """Attention in one row, each matrix of the FFN in a row of its own, from the top."""
    attention = [matrix for matrix in anatomy.matrices if matrix.part == "attention"]
    rows = [attention, *([matrix] for matrix in anatomy.matrices if matrix.part == "FFN")]
    widest = max(sum(matrix.rows for matrix in row) for row in rows)
    height, gap, space = anatomy.d_model, 0.08 * anatomy.d_model, 0.02 * widest
    top = 0.0
    for row in rows:
        beside = draw_row(ax, row, top, widest)
        if beside:
            end = sum(matrix.rows for matrix in row) + space
            ax.text(end, top - height / 2, beside, ha="left", va="center", fontsize="small")
        top -= height + gap
    ax.set_xlim(0, widest)
    ax.set_ylim(top + gap, 0)
    ax.set_aspect("equal", anchor="W")
    bare(ax)
    n = anatomy.ledger.n_layers
    numbers = sum(matrix.numbers for matrix in anatomy.matrices)
    title = f"One of {n:,} layers" if n > 1 else "The layer"
    ax.set_title(
        f"{printable(title)}, to scale: {parameter_count(numbers)} weights in matrices", loc="left", parse_math=False
    )


def draw_row(ax: Axes, row: list[Matrix], top: float, widest: int) -> str:
    """Matrices side by side below ``top``; returns the words for those too narrow to hold their own."""
    left, beside = 0, []
    for matrix in row:
        colour = MATRICES.get(matrix.name, ATTENTION)
        corner = (left, top - matrix.d_model)
        ax.add_patch(Rectangle(corner, matrix.rows, matrix.d_model, facecolor=colour, edgecolor="white", linewidth=0.5))
        size = f"{matrix.rows:,} × {matrix.d_model:,}"
        if matrix.rows > NARROW * widest:
            words = f"attention {matrix.name}\n{size}" if matrix.part == "attention" else f"FFN {matrix.name}   {size}"
            at = (left + matrix.rows / 2, top - matrix.d_model / 2)
            ax.text(*at, words, ha="center", va="center", color=over(colour), fontsize="small")
        else:
            beside.append((matrix.name, size))
        left += matrix.rows
    names = ", ".join(name for name, _ in beside)
    return f"{names}   {beside[0][1]}{' each' * (len(beside) > 1)}" if beside else ""


def parameter_count(number: int) -> str:
    """A number of parameters, whole below a million."""
    for unit, size in (("billion", 10**9), ("million", 10**6)):
        if number >= size:
            return f"{number / size:.4g} {unit}"
    return f"{number:,}"


def over(colour: str) -> str:
    """Black or white, whichever shows on a colour."""
    red, green, blue = to_rgb(colour)
    return "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "white"


def bare(ax: Axes) -> None:
    ax.set_xticks([])
    ax.set_yticks([])
    ax.spines[:].set_visible(False)


@checked
def virtual_weights(weights: VirtualWeights, direction: str | None = None, ax: Axes | None = None) -> Axes:
    """The neurons that are wired to one, furthest from random directions first: blue makes fire, orange keeps from it.

    Args:
        weights: from :func:`ffnmem.virtual_weights`.
        direction: ``"incoming"`` or ``"outgoing"``; default the first that there is.
        ax: where to draw; default a new figure.

    Returns: The Axes: one horizontal bar a connection, its z.

    Raises: InputError: a direction without connections.
    """
    if not weights.sides:
        raise InputError(f"{weights.layer}.{weights.neuron} has no connections to draw: there is no other layer")
    side = weights.sides[0] if direction is None else check_choice("direction", direction, weights.sides)
    edges = weights.incoming if side == INCOMING else weights.outgoing
    names = []
    for row in edges.itertuples():
        how = "" if row.via == "direct" else f", {row.via}"
        what = " (gate)" if row.input == "gate" else ""
        names.append(f"{row.layer}.{row.neuron}{what}{how}  {visible(row.promotes, 14)}")
    ax = axes_for(ax, (6, 1.2 + 0.26 * len(edges)))
    ax.barh(range(len(edges)), edges["z"], color=sign_colours(edges["z"]), height=0.72)
    ax.set_yticks(range(len(edges)), names, parse_math=False)
    ax.set_ylim(len(edges) - 0.4, -0.6)
    ax.axvline(0, color=ink(), linewidth=0.8)
    ax.set_xlabel("z, against random directions")
    said = "What makes {} fire" if side == INCOMING else "What {} makes fire"
    return titled(ax, said.format(f"{weights.layer}.{weights.neuron}"))
