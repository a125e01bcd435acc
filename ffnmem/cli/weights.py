"""``ffnmem weights``, ``geometry`` and ``anatomy``: what can be read off the weights."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

import ffnmem as fm

from ..core.defaults import DUPLICATE_COSINE
from ..core.errors import InputError
from .options import Count, Layers, Neurons, PlottedOutput, Seed, Top, WeightsChoice
from .progress import show_progress


def weights(
    neuron: Neurons,
    /,
    *,
    top: Top = 20,
    heads: Annotated[bool, Parameter(negative="--no-heads")] = True,
    draws: Count = 64,
    seed: Seed = 0,
    model: WeightsChoice = WeightsChoice(),
    output: PlottedOutput = PlottedOutput(),
) -> None:
    """Which neurons make one fire and which it makes fire, by weights alone.

    What one neuron writes, times what another of a later layer reads, through the gain of the norm in front of it:
    directly, or through an attention head between them. All neurons have such weights with all others, because there
    are more of them than dimensions. z is how far a connection is from those that a random direction in place of the
    neuron has with the same layers, the same way; q is the share of connections as far as that which are chance.

    Examples
      ffnmem weights 3.17
      ffnmem weights 4.629 --no-heads --top 10
      ffnmem weights 5.705 --top 5 --plot weights.png

    --json and --csv have direction (incoming, outgoing), rank, layer, neuron, input (key; of gated neurons also gate),
    via (direct, or the head), weight, cosine, z, q, promotes (the token that the row's neuron promotes most).

    Args:
        heads: Also through an attention head. [default: --heads]
        draws: Random directions in place of the neuron, with which its connections are compared.
    """
    if len(neuron) != 1:
        raise InputError("one neuron at a time")
    with show_progress() as report:
        found = fm.virtual_weights(
            model.load(), *neuron[0], k=top, heads=heads, draws=draws, seed=seed, progress=report
        )
    output.emit(found)


def anatomy(model: str = "atlas", /, *, context: Count | None = None, output: PlottedOutput = PlottedOutput()) -> None:
    """Where parameters and FLOPs are, and the FFNs as memories; no weights are read.

    Counts a model's parameters and the FLOPs of a token by component, and describes its FFNs as memories. Only the
    config is read and no weights, so that the largest model takes as long as the smallest. FLOPs are those of matrix
    products in one forward pass, two for a multiply-add. Parity is the width at which an FFN of the other kind, gated
    or classic, has as many weights.

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
    duplicates: bool = False,
    threshold: float | None = None,
    limit: Count | None = None,
    neurons: bool = False,
    seed: Seed = 0,
    model: WeightsChoice = WeightsChoice(),
    output: PlottedOutput = PlottedOutput(),
) -> None:
    """How keys and values share their space: overlap, rank, capacity, duplicates.

    Measures from the weights alone. Cosines of pairs of neurons are compared with those of random vectors that are as
    anisotropic as the layer's own; effective rank and capacity (the share of a dimension that a neuron has to itself)
    with those of random vectors of the same lengths; the cosine of a neuron's key and value with keys and values of
    different neurons. A gated model has gates besides, and their cosines with value and key; by all three a neuron
    belongs to one of eleven read-write classes, such as conditional strengthening, which are counted by layer.

    Examples
      ffnmem geometry
      ffnmem geometry --layer 1 --layer 2 --plot geometry.png
      ffnmem geometry --duplicates --threshold 0.6
      ffnmem geometry --layer 0 --neurons --csv

    --csv has one row a layer; with --neurons, a neuron (layer, neuron, io_cosine, read_write, and norm, capacity and
    interference of key and value); with --duplicates, a pair (by, rank, layer, neuron, other_layer, other_neuron,
    key_cosine, value_cosine). Gated models have columns of the gate too. --json has these, the classes and all else.
    The manual of the library's geometry names the columns by layer.

    Args:
        layer: Only this layer (repeatable).
        duplicates: Also seek neurons, within and across layers, that nearly coincide.
        threshold: With --duplicates: above this cosine two keys, values or gates nearly coincide. [default: 0.9]
        limit: With --duplicates: how many pairs to list by keys, by values, (by gates,) and by both. [default: 20]
        neurons: With --json or --csv: one row a neuron as well, or instead.
    """
    if not duplicates and (threshold, limit) != (None, None):
        raise InputError("--threshold and --limit go with --duplicates: give that, or leave them out")
    if neurons and output.form == "table":
        raise InputError("--neurons lists every neuron: give --csv or --json with it")
    if neurons and duplicates and output.form == "csv":
        raise InputError("--csv prints one table: give --neurons or --duplicates, or --json for both")
    above = (DUPLICATE_COSINE if threshold is None else threshold) if duplicates else None
    limit = limit or 20
    loaded = model.load()
    with show_progress() as report:
        found = fm.neurons.geometry(loaded, layers=layer, threshold=above, limit=limit, seed=seed, progress=report)
    pairs = found.duplicates
    output.emit(
        found,
        sheet=lambda: found.sheet(limit),
        data=found.to_dict if neurons else found.brief,
        frame=lambda: pairs if pairs is not None else found.neurons if neurons else found.layers,
    )
