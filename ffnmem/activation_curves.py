"""What the table, the figure and the page of the activations share: which are shown, at which points, in which look."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pandas as pd
import torch

from ._version import __version__
from .core.sheets import Column, Sheet, Table, rows
from .errors import InputError, check_number
from .ffn.activations import ACTIVATIONS, Activation, activation, swish

POINTS = (-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0)
BETA = 2.0
"""Of the Swish that is shown unless another is asked for: β = 1 would be SiLU a second time."""

SWISH = "swish"
AFTER = "silu"


@dataclass(frozen=True)
class Look:
    """How a curve is drawn, so that it can be told by its colour or by its dashes alone.

    Attributes:
        light: its colour on white.
        dark: its colour on a dark page.
        dashes: lengths of strokes and gaps in line widths; empty for an unbroken line.
    """

    light: str
    dark: str
    dashes: tuple[float, ...] = ()


LOOKS: Mapping[str, Look] = MappingProxyType(
    {
        "relu": Look("#22262c", "#f1f3f5"),
        "gelu": Look("#0072b2", "#5fb0ee", (5.5, 1.8)),
        "gelu_tanh": Look("#b0427f", "#ef9fcb", (1.1, 1.5)),
        "silu": Look("#c95500", "#ff9a57", (5.5, 1.5, 1.2, 1.5)),
        "swish": Look("#00805c", "#45cfa3", (3, 1.4)),
        "relu2": Look("#7d6300", "#e3c64c", (5.5, 1.4, 1.2, 1.4, 1.2, 1.4)),
        "sigmoid": Look("#7446bd", "#bda2f5", (1.6, 2.6)),
        "identity": Look("#6a717c", "#9aa3af", (9, 3)),
    }
)
"""Okabe and Ito's colours, darkened on white and lightened on dark pages to a contrast of at least 3."""


def curves(names: Iterable[str] | None = None, beta: float = BETA) -> list[Activation]:
    """The activations of these names, in the order given; a Swish has ``beta``.

    Args:
        names: as :func:`ffnmem.ffn.activations.activation` takes them, and ``"swish"``, which here is the Swish of
            ``beta`` rather than SiLU; default: all, the Swish after SiLU.
        beta: β of the Swish, at least 0.

    Returns:
        The activations, each once.

    Raises:
        InputError: an unknown name, no name, or a β that is NaN, negative or infinite.
    """
    variable = swish(beta)
    if names is None:
        return [one for name in ACTIVATIONS for one in ([ACTIVATIONS[name], variable][: 1 + (name == AFTER)])]
    if isinstance(names, str):
        names = [names]
    found = [variable if name == SWISH else activation(name) for name in names]
    if not found:
        raise InputError(f"no activation is named: name some of {', '.join(one.name for one in curves())}")
    return list({one.title: one for one in found}.values())


GAP = 2  # columns between two cells
WIDTH = 80  # columns of a table: more points make another


def activations_dict(shown: Sequence[Activation], frame: pd.DataFrame) -> dict[str, Any]:
    """The activations with their formulas, and their values and gradients of :func:`activation_table`, plain."""
    points = frame[["x", "value", "gradient"]].to_dict("records")
    count = len(points) // len(shown)
    fields = ("name", "title", "beta", "formula", "gradient_formula", "source")
    return {
        "activations": [
            {**{field: getattr(one, field) for field in fields}, "points": points[i * count : (i + 1) * count]}
            for i, one in enumerate(shown)
        ],
        "ffnmem": __version__,
    }


def activations_sheet(shown: Sequence[Activation], frame: pd.DataFrame, width: int = WIDTH) -> Sheet:
    """Values and gradients, one row an activation, one column a point, as many of these a table as ``width`` allows."""
    count = len(frame) // len(shown)
    points = [f"{x:g}" for x in frame["x"][:count]]
    tables: list[Table] = []
    for column, title in (("value", "f(x) at x ="), ("gradient", "f′(x) at x =")):
        values = frame[column].to_numpy().reshape(len(shown), count)
        widths = [max(len(points[i]), *(len(f"{value:.4f}") for value in values[:, i])) for i in range(count)]
        start = 0
        while start < count:
            left, stop = width - max(map(len, [title, *(one.title for one in shown)])), start
            while stop < count and (stop == start or left >= GAP + widths[stop]):
                left -= GAP + widths[stop]
                stop += 1
            table = rows(title, *(Column(point, "number", places=4) for point in points[start:stop]))
            for one, numbers in zip(shown, values, strict=True):
                table.add(one.title, *numbers[start:stop])
            tables.append(table.table())
            start = stop
    return Sheet.of(*tables)


def look(one: Activation) -> Look:
    """How its curve is drawn."""
    return LOOKS[one.name]


def activation_table(
    at: Iterable[float] = POINTS, names: Iterable[str] | None = None, beta: float = BETA
) -> pd.DataFrame:
    """Values and gradients of activations at some points, in float64.

    Args:
        at: the points x, finite.
        names: which activations, see :func:`curves`; default all.
        beta: β of the Swish.

    Returns:
        One row an activation and point: name, title, beta (missing but for Swish), x, value, gradient.

    Raises:
        InputError: a point that is no finite number, no points, or what :func:`curves` refuses.
    """
    points = [check_number("x", x) for x in at]
    if not points or not all(math.isfinite(x) for x in points):
        raise InputError(f"x must be finite numbers, at least one, not {points}")
    x = torch.tensor(points, dtype=torch.float64)
    parts = [
        pd.DataFrame(
            {
                "name": one.name,
                "title": one.title,
                "beta": math.nan if one.beta is None else one.beta,
                "x": points,
                "value": one.value(x).numpy(),
                "gradient": one.gradient(x).numpy(),
            }
        )
        for one in curves(names, beta)
    ]
    return pd.concat(parts, ignore_index=True)
