"""``ffnmem weights``, ``geometry``, ``anatomy`` and ``activations``: what can be read off the weights."""

from __future__ import annotations

import math
from functools import partial
from typing import Annotated, Any

from cyclopts import Parameter

import ffnmem as fm

from ..core.errors import InputError, quoted
from .options import (
    Count,
    Layers,
    PlottedOutput,
    Seed,
    Tokens,
    WeightsChoice,
)
from .progress import show_progress


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


def geometry(
    *,
    layer: Layers | None = None,
    neurons: bool = False,
    seed: Seed = 0,
    model: WeightsChoice = WeightsChoice(),
    output: PlottedOutput = PlottedOutput(),
) -> None:
    """How keys and values share their space: overlap, rank, capacity.

    Measures from the weights alone. Cosines of pairs of neurons are compared with those of random vectors that are as
    anisotropic as the layer's own; effective rank and capacity (the share of a dimension that a neuron has to itself)
    with those of random vectors of the same lengths; the cosine of a neuron's key and value with keys and values of
    different neurons. A gated model has gates besides, and their cosines with value and key.

    Examples
      ffnmem geometry
      ffnmem geometry --layer 1 --layer 2 --plot geometry.png
      ffnmem geometry --layer 0 --neurons --csv

    --csv has one row a layer; with --neurons, a neuron (layer, neuron, io_cosine, and norm, capacity and interference
    of key and value). Gated models have columns of the gate too. --json has the layers, with --neurons the neurons too.
    The manual of the library's geometry names the columns by layer.

    Args:
        layer: Only this layer (repeatable).
        neurons: With --json or --csv: one row a neuron as well, or instead.
    """
    if neurons and output.form == "table":
        raise InputError("--neurons lists every neuron: give --csv or --json with it")
    loaded = model.load()
    with show_progress() as report:
        found = fm.neurons.geometry(loaded, layers=layer, seed=seed, progress=report)
    output.emit(
        found,
        data=found.to_dict if neurons else found.brief,
        frame=lambda: found.neurons if neurons else found.layers,
    )


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
