"""A sheet as HTML: for notebooks in a frame of its own, for pages without it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from markupsafe import Markup

from ..core.sheets import Column, Context, Sheet, Span, Table, decimals, is_line
from .bars import Axis, Bar, bar
from .framing import framed
from .rendering import count, percent, plain, probability, provenance_line, render, signed, tiny


def html(sheet: Sheet) -> str:
    """A sheet in the frame that no style of the page around it reaches."""
    return framed(blocks(sheet))


def blocks(sheet: Sheet) -> str:
    """A sheet's title and blocks, for a page that has the styles."""
    return render("sheet.html", filters=FILTERS, sheet=sheet)


@dataclass(frozen=True)
class Cell:
    """A value in its column, as it reads, with its bar if the column has bars."""

    column: Column
    value: Any
    text: str
    bar: Bar | None


def cells(block: Table) -> list[list[Cell]]:
    """The rows of a table."""
    columns = [list(column_cells(column, [row[i] for row in block.rows])) for i, column in enumerate(block.columns)]
    return [list(row) for row in zip(*columns, strict=True)]


def column_cells(column: Column, values: list[Any]) -> Iterator[Cell]:
    known = [value for value in values if isinstance(value, int | float)]
    places = column.places
    if places is None:
        places = decimals(known, column.digits) if column.kind == "number" else 1
    axis, total = None, 0.0
    if column.bars:
        ends = known
        if column.bars == "steps":
            ends = list(accumulate(known))
        axis = Axis.over(ends)
    for value in values:
        drawing = None
        if axis is not None and isinstance(value, int | float):
            drawing = bar(axis, value, total)
            total += value if column.bars == "steps" else 0.0
        yield Cell(
            column,
            value,
            "" if value is None or is_line(value) else text(column, value, places),
            drawing,
        )


def text(column: Column, value: Any, places: int) -> str:
    """A number as its column reads it; nothing of what is no number."""
    match column.kind:
        case "neuron":
            return f"{value[0]}.{value[1]}"
        case "count":
            return count(value)
        case "number":
            return signed(value, places) if column.sign else plain(value, places)
        case "percent":
            return percent(value, places)
        case "change":
            return f"{signed(100 * value, places)}%"
        case "probability":
            return probability(value)
        case "small":
            return tiny(value)
        case _:
            return ""


def kind(value: Any) -> str:
    """Which block or content a value is: its class, or "line" or "lines" of a tuple."""
    if isinstance(value, tuple):
        return "lines" if value and not isinstance(value[0], Span) else "line"
    return "Context" if isinstance(value, Context) else type(value).__name__


def strength(value: float, limit: float) -> str:
    """A magnitude as a share of the limit; nothing for one that is no number."""
    return f"{min(abs(value) / (limit or 1.0), 1.0):.2f}" if value == value else "0"


def provenance(fields: Any) -> Markup | str:
    return provenance_line(fields)


FILTERS = {"is_line": is_line, "cells": cells, "kind": kind, "strength": strength, "provenance": provenance}
