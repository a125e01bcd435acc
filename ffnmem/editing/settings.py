"""How an editor works: published settings by the model's name, derived ones otherwise; as plain values, too."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from ..core.errors import InputError, check_count, check_number, quoted
from ..models.model import Model

STEPS, RATE, STOP, KL, DECAY = 20, 0.5, 0.05, 0.0625, 0.5  # Meng et al. 2022, their program's hyperparameters
PUBLISHED = {  # layer and clamp of ROME
    "gpt2": (5, 4.0),
    "openai-community/gpt2": (5, 4.0),
    "gpt2-medium": (8, 3.0),
    "openai-community/gpt2-medium": (8, 3.0),
    "gpt2-large": (12, 4.0),
    "openai-community/gpt2-large": (12, 4.0),
    "gpt2-xl": (17, 4.0),
    "openai-community/gpt2-xl": (17, 4.0),
}
DERIVED_STEPS, DERIVED_RATE, DERIVED_CLAMP, DERIVED_STOP, DERIVED_PLAIN = 120, 0.03, 4.0, 0.12, 0.25


@dataclass(frozen=True)
class EditSettings:
    """How v* is found.

    Attributes:
        layer: whose FFN is edited.
        steps: at most; the last one only measures.
        rate: Adam's step size.
        relative: whether ``rate`` is in units of ‖v₀‖/√d_model, the size of a coordinate of what the FFN writes.
        stop: the loss from which down no further step is taken.
        clamp: the largest ‖δ‖ in units of ‖v₀‖.
        kl, decay: weights of the essence's KL divergence and of ‖δ‖/‖v₀‖².
        plain: the share of the prompt without context in averages over contexts (of keys and of the loss); None: as
            much as any context has.
        source: "published", "derived" or "given".
    """

    layer: int
    steps: int = STEPS
    rate: float = RATE
    relative: bool = False
    stop: float = STOP
    clamp: float = 4.0
    kl: float = KL
    decay: float = DECAY
    plain: float | None = None
    source: str = "given"

    def step_size(self, scales: Float[Tensor, " requests"], d_model: int) -> Float[Tensor, " requests"]:
        """Adam's step size for each request, given its ‖v₀‖."""
        if self.relative:
            return self.rate * scales / math.sqrt(d_model)
        return self.rate * scales.new_ones(scales.shape)

    def weights(self, contexts: int) -> Float64[Tensor, " contexts"]:
        """Of each context in an average, the first being the plain prompt; they sum to 1."""
        if self.plain is None or contexts == 1:
            return torch.full((contexts,), 1.0 / contexts, dtype=torch.float64)
        found = torch.full((contexts,), (1.0 - self.plain) / (contexts - 1), dtype=torch.float64)
        found[0] = self.plain
        return found

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self)

    def changed(self) -> dict[str, Any]:
        """What can be set, as it is."""
        return {name: value for name, value in asdict(self).items() if name not in ("source", "layer")}


def is_published(model: Model) -> bool:
    """Whether the papers give settings for a model of this name; their λ, thresholds and bounds hold for it then."""
    return model.name in PUBLISHED


def default_settings(name: str, n_layers: int) -> EditSettings:
    """Those of a model of this name and depth."""
    if name in PUBLISHED:
        layer, clamp = PUBLISHED[name]
        return EditSettings(layer, clamp=clamp, source="published")
    early = max(0, round(n_layers / 3) - 2)
    return EditSettings(
        early,
        DERIVED_STEPS,
        DERIVED_RATE,
        relative=True,
        stop=DERIVED_STOP,
        clamp=DERIVED_CLAMP,
        plain=DERIVED_PLAIN,
        source="derived",
    )


def settings_for(model: Model, layer: int | None = None, changes: Mapping[str, Any] | None = None) -> EditSettings:
    """The settings of a model: published ones for a name that has them, else derived from its size.

    Derived: a layer in the first third (the published ones lie between .33 and .42 of the depth; small models recall
    earlier); small steps in units of what the FFN writes, since Adam moves every coordinate by one whether it matters
    or not, and what does not matter leaks into neighbours; a quarter of the averages for the prompt without context,
    where a subject that begins a text has other tokens than behind one.

    Args:
        layer: another one than theirs.
        changes: fields of :class:`EditSettings` to set.

    Raises: InputError: an unknown field, or a value out of range. OutOfRangeError: no such layer.
    """
    found = default_settings(model.name, model.n_layers)
    if layer is not None:
        found = replace(found, layer=model.layer(layer))
        if (changes or {}).get("layer", found.layer) != found.layer:
            raise InputError(f"layer is {found.layer}, but settings have layer {(changes or {})['layer']!r}: name one")
    unknown = set(changes or {}) - {*asdict(found)} | ({"source"} & set(changes or {}))
    if unknown:
        names = ", ".join(name for name in asdict(found) if name != "source")
        raise InputError(f"unknown setting {quoted(sorted(unknown)[0])}: settings are {names}")
    if changes:
        found = replace(found, **changes, source="given")
    return check_settings(model, found)


def check_settings(model: Model, found: EditSettings) -> EditSettings:
    """Settings with every number looked at, and the layer counted from the first."""
    check_count("steps", found.steps)
    for name in ("rate", "clamp"):
        if not check_number(name, getattr(found, name)) > 0:
            raise InputError(f"{name} must be above 0, not {quoted(getattr(found, name))}")
    for name in ("stop", "kl", "decay"):
        if not check_number(name, getattr(found, name)) >= 0:
            raise InputError(f"{name} must be at least 0, not {quoted(getattr(found, name))}")
    if found.plain is not None and not 0 < check_number("plain", found.plain) < 1:
        raise InputError(f"plain must lie between 0 and 1, or be None, not {quoted(found.plain)}")
    return replace(found, layer=model.layer(found.layer))
