"""The shapes that pictures are made of: heat maps, curves, bars, stacks, spreads and dots, and their axes.

Blue adds and orange takes in every picture where colour means sign. Nothing here calls ``show`` or changes rcParams.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.ticker import MaxNLocator, PercentFormatter

from ..core.errors import InputError
from ..core.token_text import printable, visible

# From Okabe and Ito's palette, which stays apart in every common colour blindness and in grey.
BLUE, ORANGE, GREEN, PINK, SKY, RED, GOLD = "#0072B2", "#E07B00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#E69F00"
GREY, DARK_GREY, BLACK = "#B8BEC6", "#8A9099", "#1A1A1A"
ADDS, TAKES = BLUE, ORANGE
FFN, ATTENTION = BLUE, GREY
SIGNS = LinearSegmentedColormap.from_list("orange-white-blue", [TAKES, "#FFFFFF", ADDS])
MOST_TICKS = 26
LABEL = 14  # characters of a token
WIDE = (7.0, 3.8)  # inches
PER_ROW = 0.26  # inches of height
Style = dict[str, Any]
SIZES: WeakKeyDictionary[Axes, tuple[float, float]] = WeakKeyDictionary()
"""Inches that the picture on these Axes needs; :func:`ffnmem.plots.arrange` makes room for them."""


def axes_for(ax: Axes | None, size: tuple[float, float] = WIDE) -> Axes:
    """The given Axes, or those of a new figure of this size in inches."""
    if ax is None:
        import matplotlib.pyplot as plt  # only here: whoever brings Axes may run without pyplot's global figures

        ax = plt.subplots(figsize=size, layout="constrained")[1]
    SIZES[ax] = size
    return ax


def panels_below(ax: Axes, count: int) -> list[Axes]:
    """So many panels in the lower part of an Axes' place, with the same x; raises InputError where there is no grid."""
    if not count:
        return []
    place = ax.get_subplotspec()
    if place is None or ax.figure is None:
        raise InputError(f"panels below ({count}) need Axes of a grid (plt.subplots), or none")
    grid = place.subgridspec(1 + count, 1, height_ratios=[5] + [2] * count)
    ax.set_subplotspec(grid[0])
    panels = [ax.figure.add_subplot(grid[1 + i], sharex=ax) for i in range(count)]
    for upper in (ax, *panels[:-1]):
        upper.tick_params(labelbottom=False)
    for panel in panels:
        panel.spines[["top", "right"]].set_visible(False)
    return panels


def finish(
    ax: Axes, title: str, x: str = "", y: str = "", *, percent: str = "", whole: str = "", legend: str = ""
) -> Axes:
    """Title and labels; which axes are in percent or have whole numbers; a legend "inside", "beside" or "stacked"."""
    titled(ax, title)
    for name, label in (("x", x), ("y", y)):
        axis = ax.xaxis if name == "x" else ax.yaxis
        if label:
            axis.set_label_text(label)
        if name in percent:
            axis.set_major_formatter(PercentFormatter(1.0, decimals=None))
        if name in whole:
            axis.set_major_locator(MaxNLocator(integer=True))
    if legend == "inside":
        ax.legend(frameon=False, fontsize="small")
    elif legend and ax.get_legend_handles_labels()[0]:  # where it hides nothing; of stacks, in the order of the bars
        place: Style = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)}
        ax.legend(frameon=False, fontsize="small", reverse=legend == "stacked", **place)
    return ax


def titled(ax: Axes, title: str) -> Axes:
    # A token may hold a dollar sign, which would begin mathematics.
    ax.set_title(printable(title, keep="\n"), loc="left", parse_math=False, wrap=True)
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def ink() -> str:
    """The colour of text in the style in use, so that lines show on dark figures too."""
    return mpl.rcParams["text.color"]


def sign_colours(values: Iterable[float]) -> list[str]:
    return [ADDS if value >= 0 else TAKES for value in values]


def say(ax: Axes, words: str) -> None:
    """Write in the middle of a picture where there is nothing to draw."""
    ax.text(0.5, 0.5, words, transform=ax.transAxes, ha="center", va="center")


def line_at(ax: Axes, value: float, label: str = "", across: bool = True, **options: Any) -> None:
    """A thin line at a value of the y axis, or of the x axis: solid at 0, else dotted."""
    style: Style = {"color": ink(), "linewidth": 0.8, "linestyle": "-" if value == 0 else ":", "label": label or None}
    (ax.axhline if across else ax.axvline)(value, **style | options)


def reach(ax: Axes, low: float, high: float) -> None:
    """Make the y axis reach at least from low to high."""
    bottom, top = ax.get_ylim()
    ax.set_ylim(min(low, bottom), max(high, top))


def layer_axis(ax: Axes, layers: Iterable[object]) -> None:
    """A place a layer, from 0, and ticks at most at MOST_TICKS of them."""
    names = [str(layer) for layer in layers]
    every = 1 + len(names) // MOST_TICKS
    ax.set_xticks(range(0, len(names), every), names[::every])
    ax.set_xlim(-0.5, len(names) - 0.5)
    ax.set_xlabel("layer")


def name_rows(ax: Axes, names: Sequence[str]) -> None:
    """Names down the y axis, the first one on top."""
    ax.set_yticks(range(len(names)), list(names), parse_math=False)
    ax.set_ylim(len(names) - 0.5, -0.5)


def token_ticks(ax: Axes, tokens: Iterable[str], places: Sequence[float] | None = None) -> None:
    """Tokens along the x axis, as one line of text each."""
    labels = [visible(token, LABEL) for token in tokens]
    places = range(len(labels)) if places is None else places
    ax.set_xticks(places, labels, rotation=45, ha="right", rotation_mode="anchor", parse_math=False)


def heat(ax: Axes, values: np.ndarray, label: str, origin: Any = "upper") -> None:
    """Rows and columns of signed numbers, white at 0, with a colour bar that takes its room from the Axes."""
    limit = float(np.nanmax(np.abs(values), initial=0.0)) or 1.0
    shades: Style = {"cmap": SIGNS.with_extremes(bad="#DADDE1"), "vmin": -limit, "vmax": limit}
    image = ax.imshow(values, aspect="auto", origin=origin, interpolation="nearest", **shades)
    assert ax.figure is not None
    ax.figure.colorbar(image, ax=ax, label=label, pad=0.02)


def curve(ax: Axes, x: Any, y: Any, label: str = "", low: Any = None, high: Any = None, **line: Any) -> None:
    """A line, and its interval as a band; of a single point the interval is a bar, as a band would have no width."""
    drawn = ax.plot(x, y, label=label or None, **{"markersize": 4, "linewidth": 1.5, **line})[0]
    shade: Style = {"color": drawn.get_color(), "zorder": drawn.get_zorder() - 0.1}
    if low is not None and len(x) > 1:
        ax.fill_between(np.asarray(x, float), low, high, alpha=0.15, linewidth=0, **shade)
    elif low is not None:
        ax.vlines(x, low, high, alpha=0.5, linewidth=1, **shade)


def bars(ax: Axes, names: Sequence[str], values: Any, **options: Any) -> None:
    """A named bar a number, the first on top: blue above 0, orange below."""
    ax.barh(range(len(names)), values, **{"color": sign_colours(values), "height": 0.72, **options})
    name_rows(ax, names)
    line_at(ax, 0, across=False)


def groups(ax: Axes, layers: Iterable[int], series: Mapping[str, Any], colours: Mapping[str, str]) -> None:
    """Upright bars side by side at every layer, one a series."""
    layer_axis(ax, layers)
    for (name, heights), places, width in zip(series.items(), *offsets(len(series), layers), strict=True):
        ax.bar(places, heights, width, color=colours[name], label=name)


def offsets(count: int, layers: Iterable[int]) -> tuple[list[np.ndarray], list[float]]:
    """Places of so many things side by side at every layer, and how wide each may be."""
    step, middles = 0.8 / count, np.arange(len(list(layers)))
    return [middles + step * (number - (count - 1) / 2) for number in range(count)], [0.92 * step] * count


def stacks(
    ax: Axes,
    layers: Iterable[object],
    shares: Mapping[str, Any],
    colours: Mapping[str, str],
    places: Any = None,
    width: float = 0.75,
) -> None:
    """Upright bars on top of each other at every layer, one a name; ``places`` of bars beside a layer's middle."""
    layer_axis(ax, layers)
    below: Any = 0.0
    for name, share in shares.items():
        heights = np.asarray(share, float)
        at = np.arange(len(heights)) if places is None else places
        ax.bar(at, heights, width, bottom=below, color=colours[name], label=name)
        below = below + heights


def spreads(
    ax: Axes, places: Any, quantiles: Sequence[Any], colour: str = BLUE, labels: Sequence[str] = (), width: float = 0.7
) -> None:
    """How numbers are spread at every place: nested bars, the widest the lightest, and a line at the median.

    ``quantiles`` are from low to high, the median in the middle if their number is odd; ``labels`` are of the bars from
    the widest on, and of the median.
    """
    pairs, places = len(quantiles) // 2, np.asarray(places)
    names = [*labels, *[""] * (1 + pairs - len(labels))]
    for number in range(pairs):
        low, high = quantiles[number], quantiles[-1 - number]
        alpha = None if number == pairs - 1 else 0.7 * (number + 1) / pairs
        ax.bar(places, high - low, width, bottom=low, color=colour, alpha=alpha, label=names[number])
    if len(quantiles) % 2:
        ends = places - width / 2, places + width / 2
        ax.hlines(quantiles[pairs], *ends, color=ink(), linewidth=2, label=names[pairs])


def dots(ax: Axes, names: Sequence[str], series: Mapping[str, Sequence[Any]], colours: Mapping[str, str]) -> None:
    """Rows of dots, the first name on top: of each series ``(value, low, high)``, or ``(value,)`` without interval."""
    step = 0.8 / len(series)
    for number, (name, (value, *ends)) in enumerate(series.items()):
        places = np.arange(len(names)) + step * (number + 0.5) - 0.4
        spans = np.abs(np.nan_to_num(np.stack([value - end for end in ends]).astype(float))) if ends else None
        ax.errorbar(value, places, xerr=spans, fmt="o", color=colours[name], markersize=5, capsize=2, label=name)
    name_rows(ax, names)
