"""A matplotlib picture of activation functions and their gradients, told apart in colour and in grey."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes

from ..core.errors import InputError, check_number
from ..core.types import checked
from ..ffn.activations import BETA, Activation, curves, look
from .attribution import ink, pair_for, titled

STEPS = 1200
LOWEST_VALUE, LOWEST_SLOPE, HIGHEST_SLOPE = -0.5, -0.25, 1.5
"""Ends of the vertical axes. ReLU², its gradient and the negative half of the identity leave the frame."""


@checked
def activations(
    names: Iterable[str] | None = None,
    beta: float = BETA,
    axes: Iterable[Axes] | None = None,
    limit: float = 4.0,
) -> tuple[Axes, Axes]:
    """Activation functions, and beside them their gradients.

    Args:
        names: which, see :func:`ffnmem.ffn.activations.curves`; default all.
        beta: β of the Swish.
        axes: where to draw, two Axes: the first for the values, the second for the gradients; default a new figure.
        limit: x goes from ``-limit`` to ``limit``.

    Returns:
        The two Axes. Every curve has a colour and a pattern of dashes of its own; a curve too steep for the frame
        leaves it.

    Raises:
        InputError: an unknown name, a β below 0, a limit that is not above 0 and finite, or not two Axes.
    """
    shown = curves(names, beta)
    if not 0 < check_number("limit", limit) < np.inf:
        raise InputError(f"limit must be above 0 and finite, not {limit:g}")
    left, right = pair_for(axes, "of the values and of the gradients", 1, 2, figsize=(11, 4.4))
    x = np.linspace(-limit, limit, STEPS + 1)
    for one in shown:
        draw(left, x, one.value(torch.from_numpy(x)).numpy(), one)
        draw(right, x, slopes(one, x), one)
    left.set_ylim(LOWEST_VALUE, limit)
    right.set_ylim(LOWEST_SLOPE, HIGHEST_SLOPE)
    for ax, ylabel, title in (
        (left, "activation f(x)", "Activation functions"),
        (right, "gradient f′(x)", "Their gradients"),
    ):
        ax.axhline(0, color=ink(), linewidth=0.6, zorder=0.5)
        ax.axvline(0, color=ink(), linewidth=0.6, zorder=0.5)
        ax.set_xlim(-limit, limit)
        ax.set_xlabel("pre-activation x")
        ax.set_ylabel(ylabel)
        titled(ax, title)
    left.legend(frameon=False, loc="upper left", handlelength=4.2, fontsize="small", labelspacing=0.35)
    return left, right


def draw(ax: Axes, x: np.ndarray, y: np.ndarray, one: Activation) -> None:
    ax.plot(x, y, **line_of(one), linewidth=1.8, dash_capstyle="butt")


def line_of(one: Activation) -> dict[str, Any]:
    """The colour, dashes and label of an activation, the same in every picture."""
    dashes = look(one).dashes
    colour = ink() if one.name == "relu" else look(one).light  # ReLU's is the ink's, whatever the figure's style
    return {"color": colour, "linestyle": (0, dashes) if dashes else "solid", "label": one.title}


def slopes(one: Activation, x: np.ndarray) -> np.ndarray:
    """f′ at x; a jump, such as ReLU's at 0, becomes a gap rather than a slope that is not there."""
    y = one.gradient(torch.from_numpy(x)).numpy().copy()
    if one.name == "relu":
        y[np.flatnonzero(np.diff(y)) + 1] = np.nan
    return y
