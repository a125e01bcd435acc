"""``project``: what memories write, and what excites them, in tokens: one, a layer's, or all of a model's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import SupportsIndex, overload

import numpy as np
import pandas as pd
import pyarrow as pa

from ..arguments import public
from ..errors import InputError, check_choice, check_count, quoted
from ..files import check_destination
from ..models import Model
from ..models.turns import in_turn
from .scoring import BLOCK, Scorer
from .storing import Tables, frugal_frame, plain_frame, write_projection
from .vectors import BASES, check_sides, everything, side_tokens, side_vectors

GROUP = 256  # neurons in a row group of a file: the smaller, the less is read for one and the longer the file's index
Progress = Callable[[int, int], None]
"""Called with the neurons done and the neurons to do."""


PROMOTED = 12  # tokens: more than a line of 120 columns holds


@overload
def project(
    model: Model,
    layer: SupportsIndex | None = None,
    neuron: SupportsIndex | Iterable[SupportsIndex] | None = None,
    *,
    k: int = 10,
    basis: str = "folded",
    side: str | Sequence[str] | None = None,
    out: None = None,
    candidates: str = "auto",
    progress: Progress | None = None,
) -> pd.DataFrame: ...


@overload
def project(
    model: Model,
    layer: SupportsIndex | None = None,
    neuron: SupportsIndex | Iterable[SupportsIndex] | None = None,
    *,
    k: int = 10,
    basis: str = "folded",
    side: str | Sequence[str] | None = None,
    out: str | Path,
    candidates: str = "auto",
    progress: Progress | None = None,
) -> Path: ...


@public
@in_turn
def project(
    model: Model,
    layer: SupportsIndex | None = None,
    neuron: SupportsIndex | Iterable[SupportsIndex] | None = None,
    *,
    k: int = 10,
    basis: str = "folded",
    side: str | Sequence[str] | None = None,
    out: str | Path | None = None,
    candidates: str = "auto",
    progress: Progress | None = None,
) -> pd.DataFrame | Path:
    """What neurons write (values) and what excites them (keys), in tokens.

    Args:
        model: from :func:`ffnmem.load`.
        layer: one layer; None for all. neuron: one or several neurons of that layer; None for all.
        k: tokens a side and sign.
        basis: ``"folded"`` (default) scores values by ``((v − mean v) ⊙ γ_f)·W_U``, the final norm's gain folded in,
            and keys by the gain of the norm before the FFN and W_E; ``"raw"`` by ``v·W_U`` and ``k·W_E``. They rank
            tokens differently, so the basis is a column. An RMSNorm takes no mean away, and a norm behind the FFN
            (Gemma 2) has its gain folded in as well.
        side: ``"value"``, ``"key"``, in a gated model ``"gate"``, or several; None for all that the model has.
        out: stream the rows into this Parquet file instead; memory then does not grow with the number of neurons.
        candidates: how the tokens in question are found, ``"auto"``, ``"bfloat16"`` or ``"float32"``: the faster on
            this machine, or that one. It never changes the result.
        progress: called after every block with the neurons done and the neurons to do.

    Returns:
        Columns layer, neuron, side, sign ("promoted"/"suppressed"), rank (from 1), token, token_id, score, basis;
        ties by token id. A score is the dot product taken in float64 in one fixed order and rounded once to float32
        (kept in float64 for a float64 model): the same whatever the block and the path. A key's score tells how a
        token's embedding moves the pre-activation; it says nothing about context, which grows with depth.
        Of a whole model, text columns are categorical and numbers have 32 bits. With ``out``, the file's path.

    Raises:
        OutOfRangeError: no such layer or neuron. InputError: unknown basis, side or candidates, or neurons without a
        layer. FileError: a file that cannot be written.

    Source: Geva et al. 2022 (2203.14680), §4, for values; Dar et al. 2023 (2209.02535) for keys.
    """
    check_choice("basis", basis, BASES)
    sides = check_sides(side, model)
    wanted = choose_neurons(model, layer, neuron)
    k = min(check_count("k", k), model.d_vocab)
    if out is not None:
        check_destination(out)
    tables = project_blocks(model, wanted, sides, basis, k, candidates, progress)
    provenance = model.provenance(basis=basis).as_dict()
    if out is not None:
        return write_projection(out, tables, provenance, k=k, sides=sides)
    if layer is None:
        return frugal_frame(list(tables), provenance)
    return plain_frame(pa.concat_tables(list(tables)).unify_dictionaries(), provenance)


def promoted_tokens(model: Model, neurons: pd.DataFrame, k: int = PROMOTED) -> dict[tuple[int, int], list[str]]:
    """The ``k`` tokens that the value of each neuron of a table promotes most, best first, by (layer, neuron)."""
    found: dict[tuple[int, int], list[str]] = {}
    for layer, rows in neurons.groupby("layer"):
        frame = project(model, int(layer), rows["neuron"].tolist(), k=k, side="value")
        for row in frame[frame["sign"] == "promoted"].itertuples():
            found.setdefault((row.layer, row.neuron), []).append(row.token)
    return found


def project_each(
    model: Model, neurons: Sequence[tuple[int, int]], *, k: int, basis: str, side: str | Sequence[str] | None
) -> pd.DataFrame:
    """:func:`project` of neurons of several layers, each (layer, neuron), in the order asked."""
    for layer, neuron in neurons:
        model.neuron(layer, neuron)  # refuse all before computing any
    frames = {
        layer: project(model, layer, [n for other, n in neurons if other == layer], k=k, basis=basis, side=side)
        for layer in dict.fromkeys(layer for layer, _ in neurons)
    }
    ordered = [frames[layer][frames[layer]["neuron"] == neuron] for layer, neuron in neurons]
    result = pd.concat(ordered, ignore_index=True)
    result.attrs = next(iter(frames.values())).attrs
    return result


def choose_neurons(
    model: Model, layer: SupportsIndex | None, neuron: SupportsIndex | Iterable[SupportsIndex] | None
) -> dict[int, list[int]]:
    """Neurons by layer, in the order asked."""
    if layer is None:
        if neuron is not None:
            raise InputError(
                f"neuron {quoted(neuron)} without a layer: name its layer, or leave both out for all neurons"
            )
        return {index: everything(model, index) for index in range(model.n_layers)}
    index = model.layer(layer)
    if neuron is None:
        return {index: everything(model, index)}
    neurons = [model.neuron(index, n) for n in (neuron if isinstance(neuron, Iterable) else [neuron])]
    if not neurons:
        raise InputError("no neuron given")
    return {index: neurons}


def project_blocks(
    model: Model,
    wanted: dict[int, list[int]],
    sides: list[str],
    basis: str,
    k: int,
    candidates: str,
    progress: Progress | None,
) -> Iterator[pa.Table]:
    """The rows of one block of neurons after the other; only one block's scores exist at a time."""
    total, done = sum(map(len, wanted.values())), 0
    scorers: dict[int, Scorer] = {}  # by where the embeddings are: tied ones are prepared once
    by_side = {}
    for side in sides:
        tokens = side_tokens(model, side)
        if tokens.data_ptr() not in scorers:
            scorers[tokens.data_ptr()] = Scorer(tokens, k, candidates, total)
        by_side[side] = scorers[tokens.data_ptr()]
    tables = Tables(model, sides, basis)
    for layer, neurons in wanted.items():
        for start in range(0, len(neurons), BLOCK):
            block = neurons[start : start + BLOCK]
            found = [by_side[side].block(side_vectors(model, layer, block, side, basis)) for side in sides]
            ids, scores = (np.stack(part, axis=1) for part in zip(*found, strict=True))
            for first in range(0, len(block), GROUP):
                group = slice(first, first + GROUP)
                yield tables.table(layer, block[group], ids[group], scores[group])
            done += len(block)
            if progress is not None:
                progress(done, total)
