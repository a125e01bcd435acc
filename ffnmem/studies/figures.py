"""What the figures of studies are painted with: lines, spreads and stacks over layers, on the shapes of all pictures.

Each function gives a painter of a :class:`ffnmem.studies.Figure`, which draws numbers of the study's tables on Axes."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from ..core.number_text import format_share
from ..plots import shapes
from .study import Figure, Study

Painter = Callable[[Axes, Study], None]
DPI = 150
DARK: Any = {
    **{f"{part}.facecolor": "#181c21" for part in ("figure", "axes", "savefig", "legend")},
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.titlecolor", "xtick.color", "ytick.color"), "#e8eaed"),
    "axes.edgecolor": "#8a929d",
    "grid.color": "#2c323a",
}
"""Of figures on dark screens: the colours of page.css there."""


@dataclass(frozen=True)
class Series:
    """A column of a table as a line over layers.

    Attributes:
        column: of which. label: in the legend.
        colour: default that of text. style: of the line.
        low, high: columns of its interval, which becomes a band.
        where: the rows that it is of, by the values of other columns.
    """

    column: str
    label: str = ""
    colour: str = ""
    style: str = "-"
    low: str = ""
    high: str = ""
    where: Mapping[str, Any] = field(default_factory=dict)

    def draw(self, ax: Axes, frame: pd.DataFrame) -> None:
        for name, value in self.where.items():
            frame = frame[frame[name] == value]
        low, high = (frame[name] if name else None for name in (self.low, self.high))
        line = {"color": self.colour or shapes.ink(), "linestyle": self.style, "marker": "o"}
        shapes.curve(ax, frame["layer"], frame[self.column], self.label, low, high, **line)


@dataclass(frozen=True)
class Scale:
    """What a y axis reaches: from 0, or with ``log``, logarithmic with counts written out.

    ``whole``: ticks at whole numbers. ``top``: at least to there. ``none``: said in place of numbers that are all 0.
    """

    log: bool = False
    whole: bool = False
    top: float | None = None
    none: str = ""

    def begin(self, ax: Axes, layers: list[int], values: Any) -> bool:
        """Set the axes, given all that will be drawn; whether there is anything."""
        shapes.layer_axis(ax, layers)
        if self.whole:
            ax.yaxis.set_major_locator(MaxNLocator(integer=True))
        if self.none and not np.nan_to_num(np.asarray(values, float)).any():
            ax.set_ylim(0, self.top or 1)
            shapes.say(ax, self.none)
            return False
        return True

    def end(self, ax: Axes) -> None:
        """Set what the y axis reaches, given what is drawn."""
        if self.log:
            ax.set_yscale("log")
            ax.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        else:
            shapes.reach(ax, 0.0, self.top or 0.0)


def curves(table: str, *series: Series, scale: Scale = Scale()) -> Painter:
    """Lines over layers."""

    def paint(ax: Axes, study: Study) -> None:
        frame = study.table(table)
        if scale.begin(ax, study.layers, frame[[one.column for one in series]]):
            for one in series:
                one.draw(ax, frame)
            scale.end(ax)

    return paint


def spread(table: str, name: str, *series: Series, of: str, scale: Scale = Scale()) -> Painter:
    """How numbers are spread at every layer: quantiles in columns ``<name>_5`` to ``<name>_95``; and lines.

    Args:
        of: what the quantiles are over, such as "positions".
    """

    def paint(ax: Axes, study: Study) -> None:
        frame = study.table(table)
        quantiles = [frame[f"{name}_{q}"] for q in (5, 25, 50, 75, 95)]
        scale.begin(ax, study.layers, quantiles)
        shapes.spreads(ax, range(len(frame)), quantiles, labels=(f"5% to 95% of {of}", "25% to 75%", "median"))
        for one in series:
            one.draw(ax, frame)
        scale.end(ax)

    return paint


def stack(parts: Callable[[Study], Mapping[str, Any]], colours: Mapping[str, str], scale: Scale = Scale()) -> Painter:
    """Bars on top of each other at every layer: numbers by layer, by name."""

    def paint(ax: Axes, study: Study) -> None:
        found = parts(study)
        if scale.begin(ax, study.layers, list(found.values())):
            shapes.stacks(ax, study.layers, found, colours)
            scale.end(ax)

    return paint


# A figure as a picture, and in words.


def png(study: Study, figure: Figure, *, dark: bool = False) -> bytes:
    """A figure drawn on a canvas of its own, on a light ground or on the ``dark`` one of pages."""
    with mpl.rc_context(DARK if dark else {}):
        canvas = Canvas(figsize=figure.size, layout="constrained")
        figure.draw(study, canvas.add_subplot())
        buffer = io.BytesIO()
        canvas.savefig(buffer, format="png", dpi=DPI)
    return buffer.getvalue()


def describe_figure(study: Study, figure: Figure) -> str:
    """What a figure shows, for those who do not see it: its title, its axes, and from where to where each line goes."""
    ax = figure.draw(study, Canvas(figsize=figure.size).add_subplot())
    axes = " by ".join(text for text in (ax.get_ylabel(), ax.get_xlabel()) if text)
    parts = []
    for line, name in zip(*ax.get_legend_handles_labels(), strict=True):
        values = np.asarray(line.get_ydata() if isinstance(line, Line2D) else [], float)
        values = values[np.isfinite(values)]
        if len(values):
            first, last, low, high = (
                format_share(float(value)) if figure.percent else f"{value:,.4g}"
                for value in (values[0], values[-1], values.min(), values.max())
            )
            ends = f"{first} throughout" if low == high else f"{first} to {last}, lowest {low}, highest {high}"
            parts.append(f"{name}: {ends}")
    return " ".join(". ".join(text for text in (figure.title, axes, *parts) if text).split())
