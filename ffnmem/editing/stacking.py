"""Two edits as one: the sum of their changes, and of what is known about them."""

from __future__ import annotations

from typing import Any

import pandas as pd
import torch

from ..errors import InputError, listed
from .edit import Edit, LayerChange


def stacked(first: Edit, second: Edit) -> Edit:
    """The edit that does what both do, ``first + second``.

    Args:
        first: made for some weights.
        second: made for the same weights, or for them with ``first`` written into them.

    Returns: An edit for the weights of ``first``; each layer's change has the ranks of both together.

    Raises: InputError: made for other weights; parts that both have; layers of other sizes.
    """
    shared = [part for part in second.parts if part in first.parts]
    if shared:
        raise InputError(f"edit {shared[0]} is in both: an edit stands in a sum once")
    on_top = second.under == (*first.under, *first.parts)
    if second.fingerprint != first.fingerprint and not on_top:
        raise InputError(
            f"{second.title} was made for weights {second.fingerprint} and {first.title} for {first.fingerprint}: "
            "edits add up where both were made for the same weights, or the second for a model that has the first"
        )
    changes = {change.layer: change for change in first.changes}
    for change in second.changes:
        changes[change.layer] = joined(changes[change.layer], change) if change.layer in changes else change
    return Edit(
        changes=tuple(changes[layer] for layer in sorted(changes)),
        fingerprint=first.fingerprint,
        method=first.method if first.method == second.method else f"{first.method} + {second.method}",
        facts=first.facts + second.facts,
        targets=first.targets + second.targets,
        settings=settings_of(first, second),
        numbers=numbers_of(first, second),
        provenance=first.provenance.with_settings(edits=first.parts + second.parts),
        under=first.under,
        parts=first.parts + second.parts,
        warnings=first.warnings + second.warnings,
    )


def joined(first: LayerChange, second: LayerChange) -> LayerChange:
    """Both changes of a layer; raises InputError where they are of other sizes."""
    if first.left.shape[1] != second.left.shape[1] or first.right.shape[1] != second.right.shape[1]:
        sizes = [[change.left.shape[1], change.right.shape[1]] for change in (first, second)]
        raise InputError(f"the changes of layer {first.layer} are of other sizes: {listed(sizes)}")
    return LayerChange(first.layer, torch.cat([first.left, second.left]), torch.cat([first.right, second.right]))


def settings_of(first: Edit, second: Edit) -> dict[str, Any]:
    """The settings of both where they are the same, else those of each part."""
    if dict(first.settings) == dict(second.settings):
        return dict(first.settings)
    lists = [e.settings["edits"] if "edits" in e.settings else [dict(e.settings)] for e in (first, second)]
    return {"edits": [*lists[0], *lists[1]]}


def numbers_of(first: Edit, second: Edit) -> pd.DataFrame:
    """The rows of both, in the order of the facts; missing where one did not measure what the other did."""
    rows = [e.numbers if len(e.numbers) else pd.DataFrame(index=range(len(e.facts))) for e in (first, second)]
    if all(frame.columns.empty for frame in rows):
        return pd.DataFrame()
    return pd.DataFrame([row for frame in rows for row in frame.to_dict("records")])
