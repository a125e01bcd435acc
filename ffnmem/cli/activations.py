"""``ffnmem activations``: the activation functions of FFNs with their gradients, as a table or a figure."""

from __future__ import annotations

import math
from functools import partial
from typing import Annotated, Any

from cyclopts import Parameter

import ffnmem as fm

from ..core.errors import InputError, quoted
from ..show.records import emit
from .figures import save_axes
from .options import Output, Plot, Tokens

BETA = 2.0  # as in activation_curves, which needs torch


def read_numbers(_kind: Any, tokens: Tokens) -> tuple[float, ...]:
    """Finite numbers, in several options or with commas between them."""
    typed = ",".join(token.value for token in tokens)
    try:
        numbers = tuple(map(float, typed.split(",")))
    except ValueError:
        numbers = (math.nan,)
    if not all(map(math.isfinite, numbers)):
        raise InputError(f"--at {quoted(typed)}: write finite numbers, with commas between them, such as -1,0.5")
    return numbers


Numbers = Annotated[
    tuple[float, ...], Parameter(converter=read_numbers, metavar="X", n_tokens=1, allow_leading_hyphen=True)
]


def activations(
    *names: str,
    at: Numbers | None = None,
    beta: Annotated[float, Parameter(metavar="B")] = BETA,
    plot: Plot | None = None,
    output: Output = Output(),
) -> None:
    """Activation functions and their gradients: table, figure.

    Shows activation functions and their gradients at some points; no model is needed.

    Examples
      ffnmem activations
      ffnmem activations gelu silu --at -0.7518 --at -1.2785
      ffnmem activations --beta 5 --plot activations.pdf

    --csv has name, beta, x, value, gradient in float64; --json these by activation with the formulas and the sources.

    Args:
        names: relu, gelu, gelu_tanh, silu, swish (that of --beta), relu2, sigmoid and identity, or what Hugging Face
            calls them, such as gelu_new. [default: all]
        at: Only at these points: a number, or several with commas (repeatable). [default: -2,-1,-0.5,0,0.5,1,2]
        beta: β of the Swish, xσ(βx); at least 0.
    """
    from ..ffn.activations import POINTS, activation_table, activations_dict, activations_sheet, curves
    from ..show.terminal import console

    shown = curves(names or None, beta)
    frame = activation_table(at or POINTS, names or None, beta)
    if plot is not None:
        draw = partial(fm.plots.activations, names or None, beta=beta)
        save_axes([draw, partial(draw, gradient=True)], plot)
    emit(
        frame[["name", "beta", "x", "value", "gradient"]],
        output.form,
        sheet=lambda: activations_sheet(shown, frame, console().width),
        data=lambda: activations_dict(shown, frame),
    )
