"""``ffnmem anatomy`` and ``activations``."""

from __future__ import annotations

import math
from functools import partial
from typing import Annotated, Any

from cyclopts import Parameter

import ffnmem as fm

from ..core.errors import InputError, quoted
from .options import (
    Count,
    PlottedOutput,
    Tokens,
)


def anatomy(model: str = "atlas", /, *, context: Count | None = None, output: PlottedOutput = PlottedOutput()) -> None:
    """Where parameters and FLOPs are; no weights are read.

    Counts a model's parameters and the FLOPs of a token by component. Only the config is read and no weights, so that
    the largest model takes as long as the smallest. FLOPs are those of matrix products in one forward pass, two for a
    multiply-add.

    Examples
      ffnmem anatomy
      ffnmem anatomy atlas --context 128 --csv
      ffnmem anatomy --plot anatomy.png

    --csv has one row a component: component, layer_parameters, parameters, share, layer_flops, flops, flops_share.
    --json has these and all else.

    Args:
        model: atlas, a folder of which config.json is enough, or a Hugging Face id such as gpt2.
        context: FLOPs are those of a token that attends over N positions. [default: 1024, or all that the model has]
    """
    output.emit(fm.models.anatomy(model, context=context))


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
    output: PlottedOutput = PlottedOutput(),
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

    shown = curves(names or None, beta)
    frame = activation_table(at or POINTS, names or None, beta)
    output.emit(
        frame[["name", "beta", "x", "value", "gradient"]],
        sheet=lambda: activations_sheet(frame),
        data=lambda: activations_dict(shown, frame),
        draws=lambda: [
            partial(fm.plots.activations, names or None, beta=beta, gradient=gradient) for gradient in (False, True)
        ],
    )
