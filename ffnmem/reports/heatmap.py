"""The layer × position map as geometry: bands of columns, each its own drawing.

On a screen the bands stand side by side and scroll as one; in print they wrap, so that a long prompt stays legible.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..show.rendering import signed
from ..token_text import visible

WIDE_UP_TO = 18  # columns with room for numbers and upright labels
PAGE = 976  # pixels for the columns on a laptop
LABEL = 11  # characters of an upright label
BAND = 19  # narrow columns that fit the width of a printed page
PAPER = 660  # pixels of that width


@dataclass(frozen=True)
class Cell:
    y: int
    strength: float
    adds: bool
    text: str
    title: str


@dataclass(frozen=True)
class Column:
    x: int
    position: int
    label: str
    title: str
    read: bool
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Map:
    """``bands`` of columns; sizes in pixels; ``limit``: the largest \\|logit\\|, where colours are strongest."""

    bands: tuple[tuple[Column, ...], ...]
    layers: tuple[tuple[int, int], ...]
    column: int
    row: int
    label: int
    wide: bool
    limit: float
    position: int

    @property
    def height(self) -> int:
        return self.row * len(self.layers) + self.label

    @property
    def width(self) -> int:
        return 76 + self.column * sum(len(band) for band in self.bands)

    @property
    def print_zoom(self) -> float:
        return round(min(1.0, PAPER / (60 + self.column * len(self.bands[0]))), 3)


def heatmap(values: Sequence[Sequence[float]], tokens: Sequence[str], position: int) -> Map:
    """The map of ``values[layer][pos]`` in logits; ``position`` is where the answer is read off."""
    n_layers, n = len(values), len(tokens)
    wide = n <= WIDE_UP_TO
    column = max(min(PAGE // n, 96), 52) if wide else 32
    row = 30 if n_layers <= 16 else 20 if n_layers <= 32 else 15
    limit = max(abs(value) for layer in values for value in layer) or 1.0

    def cell(layer: int, pos: int) -> Cell:
        value = values[layer][pos]
        strength = abs(value) / limit
        text = signed(value, 2) if wide and row > 15 else ("+" if value > 0 else "−") if strength >= 0.15 else ""
        title = f"layer {layer}, position {pos} {tokens[pos]!r}: {signed(value, 3)}"
        return Cell((n_layers - 1 - layer) * row, round(strength, 3), value >= 0, text, title)

    def build(pos: int, x: int) -> Column:
        return Column(
            x=x,
            position=pos,
            label=visible(tokens[pos], (column - 4) // 7 if wide else LABEL),
            title=f"position {pos}: {tokens[pos]!r}",
            read=pos == position,
            cells=tuple(cell(layer, pos) for layer in range(n_layers)),
        )

    size = n if wide else BAND
    return Map(
        bands=tuple(
            tuple(build(pos, (pos - start) * column) for pos in range(start, min(start + size, n)))
            for start in range(0, n, size)
        ),
        layers=tuple((layer, (n_layers - 1 - layer) * row) for layer in reversed(range(n_layers))),
        column=column,
        row=row,
        label=40 if wide else 18 + max(8 * len(visible(token, LABEL)) for token in tokens),
        wide=wide,
        limit=limit,
        position=position,
    )
