"""The page of two models compared: what became of the memories, layer by layer, and which moved most."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ..comparing.comparison import VERDICTS, Comparison
from ..core.errors import InputError
from ..core.files import check_destination, write_whole
from ..core.types import Count, checked
from ..models.model import Model
from ..models.turns import in_turn
from .prompts import with_bars, with_tokens
from .rendering import render

TOKENS = 6
WIDTH = 1000  # of the drawing of a layer
TOLD = {
    "same": "weights as in their place, to rounding",
    "moved": "changed, and still most like the neuron of their place",
    "permuted": "most like a neuron at another place",
    "new": "like none beyond chance",
    "silent": "changed, and never varying on this text",
}


@checked
@in_turn
def comparison(
    comparison: Comparison,
    out: str | Path = "comparison.html",
    first: Model | None = None,
    *,
    top: Count = 20,
) -> Path:
    """Write a comparison as one HTML file without scripts, links to elsewhere or fonts of its own.

    Args:
        comparison: from :func:`ffnmem.compare`.
        out: the file to write, in a folder that exists; replaced only once the new one is complete.
        first: the first model as it was compared, without the edit, for what memories promote.
        top: how many memories to list of each kind.

    Returns: The path written.

    Raises: FileError: ``out`` is a folder, its folder is missing, or it cannot be written. InputError: another model.
    """
    path = check_destination(out)
    if first is not None and first.fingerprint != comparison.provenance.fingerprint:
        raise InputError(
            f"the comparison is of {comparison.first} {comparison.provenance.fingerprint}, the model given is "
            f"{first.name} {first.fingerprint}"
        )
    write_whole(path, comparison_html(comparison, first, top))
    return path


def comparison_html(found: Comparison, first: Model | None, top: int) -> str:
    """The page of a comparison."""
    held = [verdict for verdict in VERDICTS if found.counts()[verdict]]
    elsewhere = found.neurons[found.neurons["verdict"] == "permuted"]
    if len(elsewhere):
        elsewhere = elsewhere.sort_values("excess", ascending=False, kind="stable").head(top)
    return render(
        "comparison.html",
        found=found,
        sentences=found.conclusion(),
        counts={verdict: found.counts()[verdict] for verdict in held},
        total=len(found.neurons),
        told=TOLD,
        layers=[layer_row(row, held) for row in found.layers.to_dict("records")],
        moved=listed(found.moved(top).head(top if found.in_place else 0), first, "largest", ("layer", "neuron")),
        matched=listed(elsewhere, first, "excess", ("match_layer", "match_neuron")),
        sides=found.changed_sides,
        sensitivity=found.sensitivity().to_dict("records"),
        promotes=first is not None,
        provenance={
            **found.provenance.to_dict(),
            "second model": found.second,
            "its fingerprint": found.other.fingerprint,
            "tolerance": found.tolerance,
        },
    )


def layer_row(row: Mapping[Any, Any], held: list[str]) -> dict[str, Any]:
    """A layer with the parts of its bar: verdict, where it begins, how wide it is, and how many neurons it is of."""
    parts, at = [], 0.0
    for verdict in held:
        width = WIDTH * row[verdict] / row["neurons"]
        if width:
            parts.append({"verdict": verdict, "x": round(at, 2), "width": round(width, 2), "count": row[verdict]})
        at += width
    return {**row, "parts": parts}


def listed(neurons: pd.DataFrame, first: Model | None, column: str, place: tuple[str, str]) -> list[Any]:
    """Rows of neurons with bars, and what the memories of the first model at those places promote."""
    if not len(neurons):
        return []
    changes = [name for name in ("key_change", "gate_change", "value_change") if name in neurons]
    rows = neurons.assign(largest=neurons[changes].max(axis=1), coefficient=np.ones(len(neurons)))
    if first is not None:
        at = rows[list(place)].set_axis(["layer", "neuron"], axis=1).assign(coefficient=1.0)
        rows = rows.assign(promoted=with_tokens(first, at, TOKENS, ())["promoted"].to_list())
    return with_bars(rows, column)
