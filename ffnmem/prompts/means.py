"""What coefficients are where they are not their own: zero, or their means over a store, a capture or given tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from ..core.checked_files import array_checksum
from ..core.errors import InputError, listed
from ..models.model import Model
from .captures import Capture

Source = Any  # a Store or a Capture; subpackages below may not import the store's


def is_store(source: Source) -> bool:
    return all(hasattr(source, name) for name in ("stats", "view", "check_model"))


def check_source(name: str, source: Source) -> None:
    if not isinstance(source, Capture) and not is_store(source):
        raise InputError(f"{name} takes a Store or a Capture, not {type(source).__name__}")


def name_source(source: Source) -> str:
    return "a capture" if isinstance(source, Capture) else "a store"


def over_all_tokens(means: Any, stats: pd.DataFrame, power: float = 1.0) -> Float64[np.ndarray, " neurons"]:
    """Means of a store, which are over the tokens routed to a neuron's expert, as means over all tokens, with 0 where
    they are not routed there; or means to a ``power``. ``stats``: the rows of :meth:`Store.stats`."""
    found = np.asarray(means, float)
    if "routed" not in stats:
        return found
    routed = stats["routed"].to_numpy(float)
    return np.where(routed == 0, 0.0, found * routed**power)


def read_means(source: Source, model: Model, layer: int) -> Float[Tensor, " d_mlp"]:
    """Mean coefficients of a layer's neurons over all content, 0 where it was not routed to a neuron's expert, in
    float64. Raises InputError: another model's source, or no content."""
    if isinstance(source, Capture):
        return read_content(source, model, layer).double().mean(0)
    source.check_model(model)
    frame = source.stats(layer).sort_values("neuron")
    means = torch.tensor(over_all_tokens(frame["mean"], frame), device=model.device)
    if not bool(means.isfinite().all()):
        raise InputError(f"the store has no mean coefficients of layer {layer}: its scan saw no tokens")
    return means


def read_content(capture: Capture, model: Model, layer: int) -> Float[Tensor, "n d_mlp"]:
    """A capture's coefficients of a layer at its content positions: no pads, no special tokens."""
    if capture.provenance.fingerprint != model.fingerprint:
        raise InputError(f"the capture is of {capture.model.name} {capture.provenance.fingerprint}, not of this model")
    if layer not in capture.coefficients:
        raise InputError(f"layer {layer} was not captured: this capture holds layers {list(capture.layers)}")
    found = capture.coefficients[layer][capture.content]
    if not len(found):
        raise InputError("the capture has no content positions: only pads and special tokens")
    return found


def read_numbers(given: Any) -> Tensor:
    """A tensor, an array or a list as a tensor. Raises InputError for what is no numbers."""
    if isinstance(given, Tensor):
        return given
    try:
        found = np.array(given)  # a copy: torch warns of arrays that are read-only
    except ValueError:  # rows of several lengths
        found = np.asarray(None)
    if not found.ndim or found.dtype.kind not in "fiu":
        raise InputError(f"mean is a Store, a Capture, or numbers [layer, d_mlp], not {type(given).__name__}")
    return torch.as_tensor(found)


def references(mean: Any, model: Model) -> tuple[Float[Tensor, "layer d_mlp"], str]:
    """What every neuron's coefficient is set to where it is taken away, in the model's type, and that in words.

    Args:
        mean: None for zero; a Store or a Capture; or numbers, ``[layer, d_mlp]`` or ``{layer: [d_mlp]}``.
        model: from :func:`ffnmem.load`.

    Raises: InputError: a source of another model, of some layers, or of another shape.
    """
    shape = (model.n_layers, model.d_mlp)
    if mean is None:
        return torch.zeros(shape, dtype=model.dtype, device=model.device), "zero"
    if isinstance(mean, Capture) or is_store(mean):
        found = model.stack_layers(read_means(mean, model, layer) for layer in range(model.n_layers))
        return name_means(found.to(model.dtype), f"mean over {name_source(mean)}")
    if isinstance(mean, Mapping):
        missing = [layer for layer in range(model.n_layers) if layer not in mean]
        if missing:
            raise InputError(f"mean has nothing for layer {missing[0]}: give every layer's [d_mlp]")
        rows = [read_numbers(mean[layer]) for layer in range(model.n_layers)]
        if tuple(tuple(row.shape) for row in rows) != tuple((width,) for width in model.widths):
            raise InputError(
                f"mean must have a number for each neuron of a layer, {listed(model.widths, 4)} by layer, not "
                f"{listed([list(row.shape) for row in rows], 4)}"
            )
        mean = model.stack_layers(rows)
    mean = read_numbers(mean)
    if tuple(mean.shape) != shape or not bool(mean.isfinite().all()):
        raise InputError(f"mean must be finite numbers {list(shape)}, [layer, d_mlp], not {list(mean.shape)}")
    return name_means(mean.to(model.device, model.dtype), "given means")


def name_means(means: Float[Tensor, "layer d_mlp"], words: str) -> tuple[Float[Tensor, "layer d_mlp"], str]:
    """Means and their name, with a checksum: results of two stores are not pooled, and say of which they are."""
    return means, f"{words} ({array_checksum(means.detach().float().cpu().numpy()):08x})"
