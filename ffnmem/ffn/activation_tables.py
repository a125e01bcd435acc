"""``compare_activations``: activations side by side, their values and gradients at some points."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import pandas as pd
import torch

from ..core.errors import InputError, check_number
from ..core.types import checked
from ..show.result import Result
from .activations import Activation, activation, swish

POINTS = (-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0)
BETA = 2.0
"""Of the Swish that is shown unless another is asked for: β = 1 would be SiLU a second time."""
SWISH = "swish"
SHOWN = ("relu", "gelu", "gelu_tanh", "silu", SWISH, "relu2", "sigmoid", "identity")
FIELDS = ("name", "title", "beta", "formula", "gradient_formula", "source")


def curves(names: Iterable[str] | None = None, beta: float = BETA) -> list[Activation]:
    """The activations of these names, in the order given, each once; see :func:`compare_activations`.

    Raises InputError: an unknown name, no name, or a β that is NaN, negative or infinite.
    """
    variable = swish(beta)
    asked = SHOWN if names is None else [names] if isinstance(names, str) else names
    found = [variable if name == SWISH else activation(name) for name in asked]
    if not found:
        raise InputError(f"no activation is named: name some of {', '.join(SHOWN)}")
    return list({one.title: one for one in found}.values())


@checked
@dataclass(frozen=True, eq=False, repr=False)
class Activations(Result):
    """Activations side by side. Made by :func:`ffnmem.ffn.compare_activations`.

    Attributes:
        functions: formulas and their papers: name, title, beta (of the Swish), formula, gradient_formula, source.
        points: one row an activation and point, in float64: name, beta, x, value, gradient.
        beta: of the Swish, where it is one of them.
    """

    tables: ClassVar = {"values": "*", "gradients": "*", "functions": "|title formula gradient_formula source"}
    main, uncut, only_shown = "points", "values gradients functions points", "values gradients"

    functions: pd.DataFrame
    points: pd.DataFrame
    beta: float = BETA

    @property
    def values(self) -> pd.DataFrame:
        """f(x) at each x."""
        return self.by_point("value")

    @property
    def gradients(self) -> pd.DataFrame:
        """f′(x) at each x."""
        return self.by_point("gradient")

    def by_point(self, column: str) -> pd.DataFrame:
        """A row an activation, a column a point."""
        points = [f"{x:g}" for x in self.points["x"][: len(self.points) // len(self.functions)]]
        rows = self.points[column].to_numpy().reshape(-1, len(points))
        found = pd.DataFrame(rows, columns=points)
        found.insert(0, "activation", self.functions["title"])
        return found


@checked
def compare_activations(
    names: Iterable[str] | None = None, *, at: Iterable[float] = POINTS, beta: float = BETA
) -> Activations:
    """Activation functions and their gradients.

    Shows activation functions and their gradients at some points, in float64; no model is needed.

    Args:
        names: relu, gelu, gelu_tanh, silu, swish (that of beta, not SiLU), relu2, sigmoid and identity, or what Hugging
            Face calls them, such as gelu_new. [default: all]
        at: the points x, finite.
        beta: of the Swish, xσ(βx): β, at least 0.

    Raises:
        InputError: an unknown name, no name, a point that is no finite number, no points, or a β that is NaN, negative
            or infinite.

    Example:
        $ ffnmem activations
        $ ffnmem activations --names gelu --names silu --at -0.7518 --at -1.2785
        $ ffnmem activations --beta 5 --plot activations.pdf
    """
    points = [check_number("x", x) for x in at]
    if not points or not all(math.isfinite(x) for x in points):
        raise InputError(f"x must be finite numbers, at least one, not {points}")
    x, shown = torch.tensor(points, dtype=torch.float64), curves(names, beta)
    parts = [
        pd.DataFrame(
            {
                "name": one.name,
                "beta": math.nan if one.beta is None else one.beta,
                "x": points,
                "value": one.value(x).numpy(),
                "gradient": one.gradient(x).numpy(),
            }
        )
        for one in shown
    ]
    functions = pd.DataFrame([[getattr(one, name) for name in FIELDS] for one in shown], columns=FIELDS)
    return Activations(functions, pd.concat(parts, ignore_index=True), beta)
