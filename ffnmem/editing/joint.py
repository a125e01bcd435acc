"""What the editors of many facts at once share: their layers, the edit of all facts, and of each fact by itself."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float64
from torch import Tensor

from ..errors import InputError, check_count
from .edit import Edit
from .preparing import Plan, Progress, announce, check_change, check_reaches, find_values, finished, numbers_of
from .requests import Request
from .spreading import Closed, Text, spread
from .values import Found


@dataclass(frozen=True, eq=False)
class Form:
    """A closed form with all its choices made.

    Attributes:
        method: the editor's name.
        layers: which it changes, ascending.
        closed: gives ``left`` for keys.
        recorded: what an edit says of the choices.
    """

    method: str
    layers: Sequence[int]
    closed: Closed
    recorded: Mapping[str, Any]


def layer_range(plan: Plan, layers: int | None) -> list[int]:
    """The layers up to the plan's, ascending; by default a tenth of the depth (5 of 48 for GPT-2 XL), at least one."""
    high = plan.settings.layer
    wanted = math.ceil(plan.model.n_layers / 10) if layers is None else check_count("layers", layers)
    if wanted > high + 1:
        if layers is not None:
            raise InputError(f"layers {layers} is too many: layer {high} has {high} below it")
        wanted = high + 1
    return list(range(high - wanted + 1, high + 1))


def joint_edit(plan: Plan, form: Form, force: bool, progress: Progress | None) -> Edit:
    """One edit of all of a plan's requests; what is doubtful about it is warned of."""
    edit = solved(plan, range(len(plan.requests)), find_values(plan, progress), form, force)
    announce([edit])
    return edit


def solved(plan: Plan, which: Sequence[int], found: Sequence[Found], form: Form, force: bool) -> Edit:
    """The edit of some of a plan's requests, given what was found for each of them."""
    requests = plan.of(which)
    for request, one in zip(requests, found, strict=True):
        check_reaches(plan, request, one)
    changes = spread(plan, requests, found, form.layers, form.closed)
    name = repr(requests[0].fact.name)
    ratio = check_change(plan, changes, name if len(requests) == 1 else f"{len(requests)} facts", force)
    rows = [numbers_of(request, one, change=ratio) for request, one in zip(requests, found, strict=True)]
    recorded = {**plan.value_words(), "layers": list(form.layers), **form.recorded}
    return finished(plan, list(which), form.method, changes, rows, recorded)


def keys_of(plan: Plan, requests: Sequence[Request], layer: int) -> Float64[Tensor, "n d_mlp"]:
    """The key of each request in a layer, the average over contexts, in the model as it is."""
    return Text(plan, requests, [layer]).read([], layer)[0]
