"""What an intervention may do to a coefficient: set, scale, add a number; its mean; values drawn from elsewhere."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..arguments import public
from ..captures import Capture
from ..errors import InputError, check_seed, quoted
from ..models import Model

Source = Any  # a Store or a Capture; rooms above may not import the store's


@public
@dataclass(frozen=True)
class Set:
    """The coefficient becomes ``value``."""

    value: float

    def __post_init__(self) -> None:
        check_finite("Set", self.value)

    def __str__(self) -> str:
        return f"= {self.value:g}"


@public
@dataclass(frozen=True)
class Scale:
    """The coefficient is multiplied by ``factor``."""

    factor: float

    def __post_init__(self) -> None:
        check_finite("Scale", self.factor)

    def __str__(self) -> str:
        return f"× {self.factor:g}"


@public
@dataclass(frozen=True)
class Add:
    """``value`` is added to the coefficient."""

    value: float

    def __post_init__(self) -> None:
        check_finite("Add", self.value)

    def __str__(self) -> str:
        return f"+ {self.value:g}"


@public
@dataclass(frozen=True, eq=False)
class Mean:
    """The coefficient becomes its mean over a ``Store``'s corpus or a ``Capture``'s content positions.

    Content leaves out pads, special tokens and the beginning-of-sequence token.
    """

    source: Source

    def __post_init__(self) -> None:
        check_source("Mean", self.source)

    def __str__(self) -> str:
        return f"= mean of {source_name(self.source)}"


@public
@dataclass(frozen=True, eq=False)
class Resample:
    """The coefficient becomes one that it had elsewhere: at a random position of a ``Store``'s, or a ``Capture``'s
    content positions.

    Each position of each row draws one place from the source, by the seed, the row's number and the position alone, so
    that a cache or the batch changes nothing. All neurons with the same source and seed take their value from that same
    place, so that what they do together stays together.
    """

    source: Source
    seed: int = 0

    def __post_init__(self) -> None:
        check_source("Resample", self.source)
        check_seed(self.seed)

    def __str__(self) -> str:
        return f"resampled from {source_name(self.source)} (seed {self.seed})"


Change = Set | Scale | Add | Mean | Resample


def as_change(what: Any) -> Change:
    """A change, or a number as one that sets it; raises InputError."""
    if isinstance(what, Tensor) and what.ndim == 0:
        what = what.item()
    if isinstance(what, Change):
        return what
    if is_number(what):
        return Set(float(what))
    raise InputError(f"a coefficient becomes a number, Set, Scale, Add, Mean or Resample, not {quoted(what)}")


def is_number(value: Any) -> bool:
    """Whether a value is a real number, numpy's too; True and False are none here."""
    return isinstance(value, Real) and not isinstance(value, bool)


def check_finite(name: str, value: Any) -> None:
    if not is_number(value) or not math.isfinite(value):
        raise InputError(f"{name} takes a finite number, not {quoted(value)}")


def is_store(source: Source) -> bool:
    return all(hasattr(source, name) for name in ("stats", "view", "check_model"))


def check_source(name: str, source: Source) -> None:
    if not isinstance(source, Capture) and not is_store(source):
        raise InputError(f"{name} takes a Store or a Capture, not {type(source).__name__}")


def source_name(source: Source) -> str:
    return "a capture" if isinstance(source, Capture) else "a store"


def means_of(source: Source, model: Model, layer: int) -> Float[Tensor, " d_mlp"]:
    """Mean coefficients of a layer's neurons, in float64. Raises InputError: another model's source, or no content."""
    if isinstance(source, Capture):
        return content_of(source, model, layer).double().mean(0)
    source.check_model(model)
    frame = source.stats(layer).sort_values("neuron")
    means = torch.tensor(frame["mean"].to_numpy(dtype=float), device=model.device)
    if not bool(means.isfinite().all()):
        raise InputError(f"the store has no mean coefficients of layer {layer}: its scan saw no tokens")
    return means


def draws_of(source: Source, model: Model, layer: int) -> Float[Tensor, "n d_mlp"]:
    """Coefficients of a layer's neurons at places of a source. Raises InputError: another model's, or none."""
    if isinstance(source, Capture):
        return content_of(source, model, layer)
    source.check_model(model)
    values, _, positions = source.view(layer).draws
    kept = torch.tensor(values[positions >= 0], device=model.device)
    if not len(kept):
        raise InputError("the store kept no random positions to resample from: scan with draws of at least 1")
    return kept


def content_of(capture: Capture, model: Model, layer: int) -> Float[Tensor, "n d_mlp"]:
    if capture.provenance.fingerprint != model.fingerprint:
        raise InputError(f"the capture is of {capture.model.name} {capture.provenance.fingerprint}, not of this model")
    if layer not in capture.coefficients:
        raise InputError(f"layer {layer} was not captured: this capture holds layers {list(capture.layers)}")
    found = capture.coefficients[layer][capture.content]
    if not len(found):
        raise InputError("the capture has no content positions: only pads and special tokens")
    return found
