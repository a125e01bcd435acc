"""A circuit as geometry: a row per layer, a column per position, nodes of one cell side by side, edges as curves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from ..core.token_text import visible
from ..prompts.circuits import ANSWER, GROUP, PRUNED

LABEL = 11  # characters of an upright label
PAPER = 660  # pixels of the width of a printed page
PAGE = 800  # pixels for the columns on a laptop, beside the panels
MOST_ACROSS, FEWEST_ACROSS = 12, 5  # nodes of a cell side by side
SLOT, LINE, ROOM, NARROW = 16, 16, 10, 44  # of a node, of a line of them, between rows, of a column at least
SMALLEST, LARGEST, FIXED = 2.2, 7.6, 5.0  # radii: of firings by their influence, and of all others
GROUPED, RING, NAMED = 7.6, 2.6, 14  # of a group: its radius, the width of its ring, characters of its name
LEVELS = 8  # widths of edges
LETTER = 7.3  # pixels of a character of a label
BOTTOM, TOP = 0, 1_000_000  # rows: of what no layer computes, and of the answer


@dataclass(frozen=True)
class Place:
    """Where a node stands, and how it is drawn. ``mark``: "plus", "minus" (of a firing's coefficient), "ring" of a
    group, or its kind. ``label``: of a group, its name."""

    x: float
    y: float
    mark: str
    path: str
    label: str = ""


@dataclass(frozen=True)
class Row:
    """A row of cells from ``top`` to ``bottom``."""

    label: str
    top: float
    bottom: float

    @property
    def middle(self) -> float:
        return (self.top + self.bottom) / 2


@dataclass(frozen=True)
class Column:
    """A position. ``x``: its left edge."""

    position: int
    x: float
    width: float
    label: str
    title: str
    read: bool

    @property
    def middle(self) -> float:
        return round(self.x + self.width / 2, 1)


@dataclass(frozen=True)
class Drawing:
    """``places``: one a node, in their order. ``margin``: pixels left of the columns, for what has no position."""

    places: tuple[Place, ...]
    rows: tuple[Row, ...]
    columns: tuple[Column, ...]
    margin: float
    width: float
    cells: float
    upright: bool
    label: float

    @property
    def height(self) -> float:
        return self.cells + self.label

    @property
    def print_zoom(self) -> float:
        return round(min(1.0, PAPER / (60 + self.width)), 3)

    def curves(self, edges: Iterable[tuple[int, int, float]]) -> list[tuple[str, int, str]]:
        """Edges (source, target, weight) as few paths: the sign, the level of their width, and the path.

        The page's script draws them in the same way.
        """
        found: dict[tuple[str, int], list[str]] = {}
        some = list(edges)
        largest = max((abs(weight) for *_, weight in some), default=0.0) or 1.0
        for source, target, weight in some:
            level = max(1, math.ceil(LEVELS * math.sqrt(abs(weight) / largest)))
            found.setdefault(("plus" if weight >= 0 else "minus", level), []).append(self.curve(source, target))
        signs, levels = ("minus", "plus"), range(1, LEVELS + 1)
        return [(sign, level, "".join(found.get((sign, level), []))) for level in levels for sign in signs]

    def curve(self, source: int, target: int) -> str:
        a, b = self.places[source], self.places[target]
        middle = f"{(a.y + b.y) / 2:g}"
        return f"M{a.x:g} {a.y:g}C{a.x:g} {middle} {b.x:g} {middle} {b.x:g} {b.y:g}"


def drawing(nodes: Sequence[Any], tokens: Sequence[str], position: int) -> Drawing:
    """The drawing of a circuit's nodes, rows of ``Circuit.nodes`` in which what is missing is None."""
    cells: dict[tuple[int, int], list[int]] = {}
    for index, node in enumerate(nodes):
        cells.setdefault((row_of(node), column_of(node)), []).append(index)
    highest = max((node.layer for node in nodes if node.layer is not None), default=-1)
    across, widths = column_widths(cells, len(tokens))
    rows = make_rows(cells, across, highest)
    xs = list(accumulate(widths))  # of the positions: the first width is the margin's
    middles = [left + width / 2 for left, width in zip([0.0, *xs], widths, strict=False)]
    strongest = max((node.influence for node in nodes if node.kind == "firing"), default=1.0) or 1.0
    places: dict[int, Place] = {}
    for (row, column), members in cells.items():
        lines = [members[i : i + across] for i in range(0, len(members), across)]
        for line, some in enumerate(lines):
            y = rows[row].middle + (line - (len(lines) - 1) / 2) * LINE
            for slot, index in enumerate(some):
                x = middles[column + 1] + (slot - (len(some) - 1) / 2) * SLOT
                places[index] = place(nodes[index], round(x, 1), round(y, 1), strongest)
    fits = [LETTER * len(visible(token)) <= width - 4 for token, width in zip(tokens, widths[1:], strict=True)]
    columns = [
        Column(
            position=i,
            x=xs[i],
            width=widths[i + 1],
            label=visible(token, None if all(fits) else LABEL),
            title=f"position {i}: {token!r}",
            read=i == position,
        )
        for i, token in enumerate(tokens)
    ]
    return Drawing(
        places=tuple(places[i] for i in range(len(nodes))),
        rows=tuple(sorted(rows.values(), key=lambda row: row.top)),
        columns=tuple(columns),
        margin=widths[0],
        width=sum(widths),
        cells=max(row.bottom for row in rows.values()),
        upright=not all(fits),
        label=40 if all(fits) else 18 + LETTER * max(len(column.label) for column in columns),
    )


def row_of(node: Any) -> int:
    """0 for what stands below all layers, two rows for each layer (attention below FFN), one for the answer above."""
    if node.id == ANSWER:
        return TOP
    if node.layer is None:
        return BOTTOM
    return 2 * int(node.layer) + (1 if node.kind in ("attention", "head") else 2)


def column_of(node: Any) -> int:
    """Its position; −1, the margin, for what has none."""
    return -1 if node.position is None else int(node.position)


def column_widths(cells: dict[tuple[int, int], list[int]], n: int) -> tuple[int, list[float]]:
    """How many nodes of a cell stand side by side, as many as the page has room for; and the width of the margin and
    of every position."""
    most = dict.fromkeys(range(-1, n), 1)
    for (_, column), members in cells.items():
        most[column] = max(most[column], len(members))
    for across in range(MOST_ACROSS, 0, -1):
        widths = [float(max(NARROW, SLOT * min(count, across) + ROOM)) for count in most.values()]
        if across == FEWEST_ACROSS or sum(widths) <= PAGE:
            break
    return across, widths


def make_rows(cells: dict[tuple[int, int], list[int]], across: int, highest: int) -> dict[int, Row]:
    """Every row from the answer's down, as high as its fullest cell; a layer without nodes has one, too."""
    lines = {BOTTOM: 1, TOP: 1} | {2 * layer + 2: 1 for layer in range(highest + 1)}
    for (row, _), members in cells.items():
        lines[row] = max(lines.get(row, 1), math.ceil(len(members) / across))
    found, top = {}, 0.0
    for row in sorted(lines, reverse=True):
        bottom = top + LINE * lines[row] + ROOM
        found[row] = Row(row_label(row), top, bottom)
        top = bottom
    return found


def row_label(row: int) -> str:
    if row == TOP:
        return ANSWER
    if row == BOTTOM:
        return "input"
    return str(row // 2 - 1) if row % 2 == 0 else "attn"


def place(node: Any, x: float, y: float, strongest: float) -> Place:
    """A node where it stands: a disc that fires with a positive coefficient, a diamond with a negative one, a square
    that is no firing, a ring around several."""
    if node.kind == GROUP:
        return Place(x, y, "ring", disc(x, y, GROUPED) + disc(x, y, GROUPED - RING), visible(node.token, NAMED))
    if node.kind != "firing":
        r = LARGEST if node.kind == ANSWER else FIXED
        shape = disc(x, y, r) if node.kind == ANSWER else f"M{x - r:g} {y - r:g}h{2 * r:g}v{2 * r:g}h{-2 * r:g}z"
        return Place(x, y, node.kind if node.kind in (ANSWER, PRUNED) else "other", shape)
    r = round(SMALLEST + (LARGEST - SMALLEST) * math.sqrt(max(node.influence, 0.0) / strongest), 1)
    if (node.coefficient or 0.0) >= 0:
        return Place(x, y, "plus", disc(x, y, r))
    return Place(x, y, "minus", f"M{x:g} {y - r:g}l{r:g} {r:g}l{-r:g} {r:g}l{-r:g} {-r:g}z")


def disc(x: float, y: float, r: float) -> str:
    return f"M{x - r:g} {y:g}a{r:g} {r:g} 0 1 0 {2 * r:g} 0a{r:g} {r:g} 0 1 0 {-2 * r:g} 0z"
