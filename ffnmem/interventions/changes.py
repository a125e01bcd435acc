"""What an intervention does to coefficients: set, scale, add, means; and what that is row by row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..core.errors import InputError, listed, quoted
from ..core.neuron_names import layer_of_coefficients, read_neuron_or_layer
from ..core.types import Finite, checked, is_number
from ..models.model import Model
from ..prompts.means import Source, check_source, name_source, read_means

# What an intervention may do to a coefficient: set, scale, add a number; its mean.


@checked
@dataclass(frozen=True)
class Set:
    """The coefficient becomes ``value``."""

    value: Finite

    def __str__(self) -> str:
        return f"= {self.value:g}"


@checked
@dataclass(frozen=True)
class Scale:
    """The coefficient is multiplied by ``factor``."""

    factor: Finite

    def __str__(self) -> str:
        return f"× {self.factor:g}"


@checked
@dataclass(frozen=True)
class Add:
    """``value`` is added to the coefficient."""

    value: Finite

    def __str__(self) -> str:
        return f"+ {self.value:g}"


@checked
@dataclass(frozen=True, eq=False)
class Mean:
    """The coefficient becomes its mean over a ``Store``'s corpus or a ``Capture``'s content positions.

    Content leaves out pads, special tokens and the beginning-of-sequence token.
    """

    source: Source

    def __post_init__(self) -> None:
        check_source("Mean", self.source)

    def __str__(self) -> str:
        return f"= mean of {name_source(self.source)}"


Change = Set | Scale | Add | Mean


def as_change(what: Any) -> Change:
    """A change, or a number as one that sets it; raises InputError."""
    if isinstance(what, Tensor) and what.ndim == 0:
        what = what.item()
    if isinstance(what, Change):
        return what
    if is_number(what):
        return Set(float(what))
    raise InputError(f"a coefficient becomes a number, Set, Scale, Add or Mean, not {quoted(what)}")


# From what a user asks of neurons, row by row, to tensors; and those applied to a layer's coefficients.

NeuronChanges = Mapping[Any, Any]
"""(layer, neuron or None), or ``"3.17"``: what. Keys are invariant: no narrower type would fit a plain dict."""


@dataclass(frozen=True, eq=False)
class LayerChange:
    """What happens to one layer: m becomes factor·m + shift, or shift alone where the factor is 0.

    ``rows`` is 1 where all rows of a batch get the same.
    """

    neurons: Int[Tensor, " k"]
    factor: Float[Tensor, "rows k"]
    shift: Float[Tensor, "rows k"]

    @property
    def uniform(self) -> bool:
        """Whether rows and positions need not be known."""
        return len(self.factor) == 1

    def applied(
        self, m: Float[Tensor, "batch pos d_mlp"], cells: Bool[Tensor, "batch pos"] | None = None
    ) -> Float[Tensor, "batch pos d_mlp"]:
        """The coefficients changed in ``cells``, or everywhere; what is not named stays as it is, bit for bit."""
        part = m[..., self.neurons]
        factor, shift = (x.to(m.dtype).unsqueeze(1) for x in (self.factor, self.shift))
        new = torch.where(factor == 0, shift, part * factor + shift)
        if cells is not None:
            new = torch.where(cells.unsqueeze(-1), new, part)
        out = m.clone()
        out[..., self.neurons] = new
        return out


@dataclass(frozen=True, eq=False)
class Plan:
    """What an intervention does, layer by layer, and in words. ``rows``: None where all rows get the same."""

    layers: Mapping[int, LayerChange]
    rows: int | None
    words: str


def make_plan(model: Model, asked: Any) -> Plan:
    """Check what is asked and resolve it.

    Raises InputError: nothing asked, a neuron named twice, a value that is no finite number, a source of another model.
    OutOfRangeError: no such layer or neuron.
    """
    several = not isinstance(asked, Mapping)
    rows: list[Any] = list(asked) if several else [asked]
    named = [read_changes(model, row) for row in rows]
    if not any(named):
        raise InputError("nothing is intervened: name at least one neuron, as in {(3, 17): 0.0}")
    layers = sorted({layer for row in named for layer, _ in row})
    memo: dict[tuple[int, int], Tensor] = {}
    changes = {
        layer: make_layer_change(
            model, layer, [{n: c for (at, n), c in row.items() if at == layer} for row in named], memo
        )
        for layer in layers
    }
    words = [f"{'' if not several else f'row {i}: '}{describe_changes(row)}" for i, row in enumerate(named) if row]
    return Plan(changes, len(rows) if several else None, listed(words, 4))


def read_changes(model: Model, asked: NeuronChanges) -> dict[tuple[int, int | None], Change]:
    """Each layer and neuron as indices, each once; the neuron is None for a whole layer."""
    found: dict[tuple[int, int | None], Change] = {}
    for where, what in asked.items():
        asked_for = read_neuron_or_layer(where) if isinstance(where, str) else where
        if not isinstance(asked_for, tuple) or len(asked_for) != 2:
            raise InputError(
                f"{quoted(where)} names no neuron: write (layer, neuron), or (layer, None) for a whole layer"
            )
        layer = model.layer(layer_of_coefficients(asked_for[0]))
        place = (layer, None if asked_for[1] is None else model.neuron(layer, asked_for[1]))
        if place in found:
            raise InputError(f"{name_place(place)} is named twice")
        found[place] = as_change(what)
    return found


def make_layer_change(
    model: Model, layer: int, rows: Sequence[Mapping[int | None, Change]], memo: dict[tuple[int, int], Tensor]
) -> LayerChange:
    """The changes of one layer as tensors. A neuron named by itself takes that, whatever its whole layer takes."""
    d_mlp = model.ffn[layer].d_mlp
    whole = any(None in row for row in rows)
    columns = list(range(d_mlp)) if whole else sorted({n for row in rows for n in row if n is not None})
    place = {neuron: column for column, neuron in enumerate(columns)}
    factor = torch.ones(len(rows), len(columns), dtype=torch.float64)
    shift = torch.zeros_like(factor)

    def means(source: Source) -> Tensor:
        key = (id(source), layer)
        if key not in memo:
            memo[key] = read_means(source, model, layer).cpu()
        return memo[key]

    for row, changes in enumerate(rows):
        for neuron, change in sorted(changes.items(), key=lambda item: item[0] is not None):  # the whole layer first
            at = slice(None) if neuron is None else place[neuron]
            match change:
                case Set(value):
                    factor[row, at], shift[row, at] = 0.0, value
                case Scale(value):
                    factor[row, at], shift[row, at] = value, 0.0
                case Add(value):
                    factor[row, at], shift[row, at] = 1.0, value
                case Mean(source):
                    factor[row, at] = 0.0
                    shift[row, at] = means(source)[columns if neuron is None else neuron]
    neurons, factor, shift = (tensor.to(model.device) for tensor in (torch.tensor(columns), factor, shift))
    for tensor in (factor, shift):
        if not bool(tensor.to(model.dtype).isfinite().all()):
            raise InputError(f"layer {layer}: a coefficient to set is NaN or too large for {model.dtype}")
    return LayerChange(neurons, factor, shift)


def name_place(place: tuple[int, int | None]) -> str:
    return f"every neuron of layer {place[0]}" if place[1] is None else f"{place[0]}.{place[1]}"


def describe_changes(row: Mapping[tuple[int, int | None], Change]) -> str:
    """``3.17 = 0, 4.5 × 2``."""
    return listed([f"{name_place(place)} {change}" for place, change in row.items()], 6)
