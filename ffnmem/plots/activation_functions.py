"""Activation functions and their gradients, told apart in colour and in grey."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes

from ..core.errors import InputError, check_number
from ..ffn.activation_tables import BETA, Activations, curves
from ..ffn.activations import Activation
from . import shapes
from .figures import draws

LOOKS: dict[str, tuple[str, tuple[float, ...]]] = {
    "relu": ("#22262c", ()),
    "gelu": ("#0072b2", (5.5, 1.8)),
    "gelu_tanh": ("#b0427f", (1.1, 1.5)),
    "silu": ("#c95500", (5.5, 1.5, 1.2, 1.5)),
    "swish": ("#00805c", (3, 1.4)),
    "relu2": ("#7d6300", (5.5, 1.4, 1.2, 1.4, 1.2, 1.4)),
    "sigmoid": ("#7446bd", (1.6, 2.6)),
    "identity": ("#6a717c", (9, 3)),
}
"""Colour and dashes of each, so that it can be told by either alone: Okabe and Ito's colours, darkened for white."""


@draws(Activations, aspects=lambda _: (False, True))
def activations(
    names: Activations | Iterable[str] | None = None,
    gradient: bool = False,
    ax: Axes | None = None,
    *,
    beta: float = BETA,
    limit: float = 4.0,
) -> Axes:
    """Activation functions, or their gradients. What is too steep for the frame leaves it.

    Args:
        names: which, see :func:`ffnmem.ffn.compare_activations`, or what that gave; default all.
        gradient: draw f′ in place of f.
        beta: β of the Swish.
        limit: x goes from ``-limit`` to ``limit``.
    """
    functions = curves(names.functions["name"], names.beta) if isinstance(names, Activations) else curves(names, beta)
    if not 0 < check_number("limit", limit) < np.inf:
        raise InputError(f"limit must be above 0 and finite, not {limit:g}")
    ax = shapes.axes_for(ax, (5.5, 4.4))
    x = torch.linspace(-limit, limit, 1201, dtype=torch.float64)
    for function in functions:
        y = (function.gradient(x) if gradient else function.value(x)).numpy().copy()
        if gradient and function.name == "relu":
            y[np.flatnonzero(np.diff(y)) + 1] = np.nan  # its jump is a gap rather than a slope that is not there
        shapes.curve(ax, x, y, **line_of(function), linewidth=1.8, dash_capstyle="butt")
    shapes.line_at(ax, 0, zorder=0.5)
    shapes.line_at(ax, 0, across=False, zorder=0.5)
    ax.set(xlim=(-limit, limit), ylim=(-0.25, 1.5) if gradient else (-0.5, limit))
    title, label = ("Their gradients", "gradient f′(x)") if gradient else ("Activation functions", "activation f(x)")
    shapes.finish(ax, title, "pre-activation x", label)
    ax.legend(frameon=False, loc="upper left", handlelength=4.2, fontsize="small", labelspacing=0.35)
    return ax


def line_of(activation: Activation) -> dict[str, Any]:
    """The colour, dashes and label of an activation, the same in every picture."""
    colour, dashes = LOOKS[activation.name]
    if activation.name == "relu":
        colour = shapes.ink()  # which shows in every style
    return {"color": colour, "linestyle": (0, dashes) if dashes else "solid", "label": activation.title}
