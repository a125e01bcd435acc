"""A matplotlib picture of where a model's parameters are: all of them as one bar, one layer's matrices to scale."""

from __future__ import annotations

from collections.abc import Iterable

from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.patches import Rectangle

from .arguments import public
from .errors import InputError
from .geometry_plots import COLOURS
from .models.anatomy import Anatomy, Matrix
from .plots import ATTENTION, FFN
from .token_text import printable

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


@public
def plot_anatomy(anatomy: Anatomy, axes: Iterable[Axes] | None = None) -> tuple[Axes, Axes]:
    """Where the parameters of a model are: all as one stacked bar, and the matrices of one layer to scale.

    Args:
        anatomy: from :func:`ffnmem.anatomy`.
        axes: where to draw, two Axes: the first for the bar, the second for the layer; default a new figure.

    Returns:
        The two Axes. In the first the width of a piece is its component's parameters. In the second a rectangle is a
        matrix, its height d_model and its width the number of its vectors in one and the same unit, so that areas are
        parameters: in the first row attention's, below a row each for the FFN's keys, gates and values.

    Raises:
        InputError: not two Axes.
    """
    whole, layer = pair_for(axes)
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
        words = f"{component} {shown(parameters)} ({share:.1%})"
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
    ax.set_title(f"{printable(title)}, to scale: {shown(numbers)} weights in matrices", loc="left", parse_math=False)


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


def shown(number: int) -> str:
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


def pair_for(axes: Iterable[Axes] | None) -> tuple[Axes, Axes]:
    """The two Axes given, or those of a new figure, one above the other."""
    if axes is None:
        import matplotlib.pyplot as plt  # only here: whoever brings Axes may run without pyplot's global figures

        axes = plt.subplots(2, 1, figsize=SIZE, height_ratios=HEIGHTS, layout="constrained")[1]
    two = tuple(axes)
    if len(two) != 2:
        raise InputError(f"axes must be two, of the whole and of a layer, not {len(two)}")
    return two
